"""How much a Normal weight matters, by six rules: which weights a sparse subspace gives up first.

With t = |mean| / std. "snr" and "magnitude_snr" order weights alike: the signal-to-noise ratio of
|w| is a rising function of t. But it is flat near t = 0 (float32 cannot tell t = 0 from t = 0.02),
so what is ranked is t, and the function `magnitude_snr` gives the number itself for reporting.

Reference: Li, Miao, Qiu, Zhang (2024), "Training Bayesian neural networks with sparse subspace
variational inference", section 3.3.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from bayesify.registry import Registry

Importance = Callable[[Tensor, Tensor], Tensor]
"""importance(mean, std): a number for every weight, the larger the more it matters."""

importances: Registry[Importance] = Registry("removal criterion")

_ROOT_TWO_OVER_PI = math.sqrt(2 / math.pi)


def importance(name: str, mean: Tensor, std: Tensor) -> Tensor:
    """Return how much each weight matters, in float64: in float32 half of the rules lose ties."""
    return importances[name](mean.double(), std.double())


@importances.register("magnitude")
def _magnitude(mean: Tensor, std: Tensor) -> Tensor:
    """Return |mean|."""
    del std
    return mean.abs()


@importances.register("snr")
def _snr(mean: Tensor, std: Tensor) -> Tensor:
    """Return t = |mean| / std; a weight without spread is kept, one without anything is not."""
    return torch.where(mean == 0, torch.zeros_like(mean), mean.abs() / std)


@importances.register("expected_magnitude")
def _expected_magnitude(mean: Tensor, std: Tensor) -> Tensor:
    """Return E|w| = |mean| erf(t/√2) + std √(2/π) exp(−t²/2)."""
    ratio = _snr(mean, std)
    spread = std * _ROOT_TWO_OVER_PI * torch.exp(-0.5 * ratio.square())
    return mean.abs() * torch.erf(ratio * math.sqrt(0.5)) + spread


# The ranking of |mean| / std, exactly, where the number itself would have lost it.
importances.register("magnitude_snr")(_snr)


@importances.register("expected_exponential")
def _expected_exponential(mean: Tensor, std: Tensor) -> Tensor:
    """Return log E[exp|w|], which ranks as E[exp|w|] and does not overflow."""
    return log_expected_exponential(mean, std, 1.0)


@importances.register("exponential_snr")
def _exponential_snr(mean: Tensor, std: Tensor) -> Tensor:
    """Return E[exp|w|] / std[exp|w|]; a weight without spread has an infinite one."""
    twice = log_expected_exponential(mean, std, 2.0)
    variance = torch.expm1(twice - 2 * log_expected_exponential(mean, std, 1.0))
    ratio = variance.clamp_min(torch.finfo(variance.dtype).tiny).rsqrt()
    nothing = (mean == 0) & (std == 0)
    return torch.where(nothing, torch.zeros_like(ratio), ratio)


def log_expected_exponential(mean: Tensor, std: Tensor, rate: float) -> Tensor:
    """Return log E[exp(rate |w|)]."""
    shifted = rate * std
    ratio = torch.where(mean == 0, torch.zeros_like(mean), mean / std)
    sides = (
        rate * sign * mean + torch.special.log_ndtr(sign * ratio + shifted) for sign in (1.0, -1.0)
    )
    return 0.5 * shifted.square() + torch.logaddexp(*sides)


def magnitude_snr(mean: Tensor, std: Tensor) -> Tensor:
    """Return the signal-to-noise ratio of |w| itself, E|w| / std|w|, stable at every t.

    At least 1.3236, at mean 0. For ranking take t, which orders weights alike.
    """
    ratio = _snr(mean.double(), std.double())
    gap = _ROOT_TWO_OVER_PI * torch.exp(-0.5 * ratio.square())
    gap = gap - ratio * torch.erfc(ratio * math.sqrt(0.5))
    return (ratio + gap) / (1 - 2 * ratio * gap - gap.square()).sqrt()
