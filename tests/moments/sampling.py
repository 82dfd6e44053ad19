"""What the rules are tested against: sampling with its standard error, and exact integrals."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayesify.moments import Moments

# Each comparison of some hundred numbers fails by chance less than once in ten thousand runs.
NUM_STANDARD_ERRORS = 5.0


def normal_moments(
    *shape: int, variance: float = 1.0, dtype: torch.dtype = torch.float64
) -> Moments:
    """Return random means, and variances between a half and one and a half times `variance`."""
    spread = variance * (0.5 + torch.rand(*shape, dtype=dtype))
    return Moments(torch.randn(*shape, dtype=dtype), spread)


def draw(value: Any, num_samples: int) -> Tensor:
    """Return independent samples of moments, or as many copies of a tensor."""
    if not isinstance(value, Moments):
        return value.expand(num_samples, *value.shape)
    noise = torch.randn(num_samples, *value.shape, dtype=value.dtype)
    return value.expected + value.variance.sqrt() * noise


def assert_like_sampling(
    function: Callable[..., Any],
    *inputs: Any,
    on_sample: Callable[..., Tensor] | None = None,
    num_samples: int = 40_000,
    mean_error: float = 0.0,
    variance_error: float = 0.0,
) -> None:
    """Assert that a function of moments gives the moments of the function of samples.

    Args:
        function: Called once on the inputs, once on many samples of them.
        inputs: Moments or tensors.
        on_sample: The same function for one sample, where `function` cannot be batched.
        num_samples: Number of samples.
        mean_error: What the rule's own approximation may be off by, in standard deviations.
        variance_error: The same for the variance, as a share of it.
    """
    result = function(*inputs)
    drawn = torch.vmap(on_sample or function)(*(draw(value, num_samples) for value in inputs))
    mean, variance = drawn.mean(0), drawn.var(0)
    fourth = ((drawn - mean) ** 4).mean(0)
    mean_tolerance = NUM_STANDARD_ERRORS * (variance / num_samples).sqrt()
    mean_tolerance += mean_error * variance.sqrt() + 1e-9
    errors = (fourth - variance**2).clamp_min(0.0) / num_samples
    variance_tolerance = NUM_STANDARD_ERRORS * errors.sqrt() + variance_error * variance + 1e-12
    assert result.shape == mean.shape
    mean_excess = ((result.expected - mean).abs() / mean_tolerance).max()
    variance_excess = ((result.variance - variance).abs() / variance_tolerance).max()
    assert mean_excess <= 1.0, f"mean is {float(mean_excess):.2f} tolerances off"
    assert variance_excess <= 1.0, f"variance is {float(variance_excess):.2f} tolerances off"


def integrated_moments(
    function: Callable[[Tensor], Tensor], m: Tensor, v: Tensor, kinks: tuple[float, ...] = ()
) -> tuple[Tensor, Tensor]:
    """Return mean and variance of f(z), z normal, by Gauss-Legendre between the kinks of f."""
    nodes, weights = (torch.tensor(part) for part in np.polynomial.legendre.leggauss(200))
    s = v.sqrt()
    edges = [m - 12.0 * s, *(m.new_full(m.shape, kink) for kink in kinks), m + 12.0 * s]
    edges = [torch.minimum(torch.maximum(edge, edges[0]), edges[-1]) for edge in edges]
    points, masses = [], []
    for left, right in pairwise(edges):
        half = (0.5 * (right - left)).unsqueeze(-1)
        z = left.unsqueeze(-1) + half * (nodes + 1.0)
        t = (z - m.unsqueeze(-1)) / s.unsqueeze(-1)
        points.append(z)
        masses.append(
            half * weights * torch.exp(-0.5 * t * t) / (2 * np.pi * v.unsqueeze(-1)).sqrt()
        )
    values, mass = function(torch.cat(points, -1)), torch.cat(masses, -1)
    mean = (values * mass).sum(-1)
    return mean, ((values - mean.unsqueeze(-1)) ** 2 * mass).sum(-1)
