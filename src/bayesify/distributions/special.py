"""Special functions of one number, in float64, and the one of tensors that torch lacks."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

EULER = 0.5772156649015329
# The series below this, the continued fraction above: both reach float64 with this many terms.
_SERIES_BELOW = 2.0
_NUM_SERIES, _NUM_FRACTION = 34, 80
# From here on six terms of the asymptotic series have all digits.
_ASYMPTOTIC_ABOVE = 16.0


def digamma(value: float) -> float:
    """Return d log Γ(x) / dx for x > 0."""
    # In numbers of Python, which the compiler takes as constants.
    total = 0.0
    while value < _ASYMPTOTIC_ABOVE:
        total -= 1.0 / value
        value += 1.0
    square = value**-2
    series = square * (
        1 / 12 - square * (1 / 120 - square * (1 / 252 - square * (1 / 240 - square / 132)))
    )
    return total + math.log(value) - 0.5 / value - series


def trigamma(value: float) -> float:
    """Return d² log Γ(x) / dx² for x > 0."""
    total = 0.0
    while value < _ASYMPTOTIC_ABOVE:
        total += value**-2
        value += 1.0
    square = value**-2
    series = square * (
        1 / 6 - square * (1 / 30 - square * (1 / 42 - square * (1 / 30 - square * 5 / 66)))
    )
    return total + (1.0 + 0.5 / value + series) / value


def standard_gamma(shape: Tensor) -> Tensor:
    """Draw gamma numbers of these shapes and scale 1, never 0; the gradient is implicit."""
    drawn = torch._standard_gamma(shape)  # pyright: ignore[reportPrivateImportUsage]
    return drawn.clamp_min(torch.finfo(shape.dtype).tiny)


def log_scaled_exponential_integral(value: Tensor) -> Tensor:
    """Return log(exp(x) E₁(x)) for x > 0, E₁(x) = ∫ₓ exp(−t) / t dt."""
    return _LogScaledE1.apply(value)


class _LogScaledE1(torch.autograd.Function):
    """d log g / dx = 1 − 1 / (x g): no derivative of a series."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        scaled, slope = _scaled_e1_and_slope(value.clamp_min(torch.finfo(value.dtype).tiny))
        ctx.save_for_backward(slope)
        return scaled.log()

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, gradient: Tensor
    ) -> Tensor:
        return gradient * ctx.saved_tensors[0]


def _scaled_e1_and_slope(value: Tensor) -> tuple[Tensor, Tensor]:
    """Return g = exp(x) E₁(x), and the derivative of its logarithm."""
    small = value.clamp_max(_SERIES_BELOW)
    term, total = torch.ones_like(small), torch.zeros_like(small)
    for k in range(1, _NUM_SERIES + 1):
        term = term * (-small / k)
        total = total - term / k
    below = small.exp() * (total - small.log() - EULER)
    large = value.clamp_min(_SERIES_BELOW)
    fraction = torch.zeros_like(large)
    for k in range(_NUM_FRACTION, 0, -1):
        fraction = k / (1.0 + k / (large + fraction))
    is_small = value < _SERIES_BELOW
    scaled = torch.where(is_small, below, 1.0 / (large + fraction))
    # With g = 1 / (x + f) the difference is −f / x: far out it would be all rounding.
    slope = torch.where(is_small, 1.0 - 1.0 / (small * below), -fraction / large)
    return scaled, slope


def mean_over_standard_wald(function: Callable[[Tensor], Tensor]) -> float:
    """Return the mean of a function of log x under the standard Wald distribution, by quadrature.

    With x = exp(2 u) the density is exp(−u − 2 sinh² u), so smooth and so short that the trapezium
    rule is exact to float64 with a few hundred points.
    """
    points = torch.linspace(-4.0, 4.0, 801, dtype=torch.float64)
    density = torch.exp(-points - 2 * torch.sinh(points).square())
    return float((density * function(2 * points)).sum() / density.sum())
