"""The Weibull family and prior of a weight's size: a power of an exponential number."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bayesify.distributions.family import Prior, Support, families, priors
from bayesify.distributions.gamma import above_least, check_least_shape
from bayesify.distributions.log_location_scale import LogLocationScale
from bayesify.distributions.scale import softplus
from bayesify.distributions.special import EULER
from bayesify.distributions.statistic import Log, Power, Terms

# Below this shape a tenth of the weights would hold all of the variance.
_LEAST_START, _LARGEST_START = 0.2, 1e4


@families.register("weibull")
@dataclass(frozen=True)
class Weibull(LogLocationScale):
    """Independent Weibull sizes of shape least_shape + softplus(rho).

    Args:
        least_shape: What the shape stays above. Priors that need the mean of 1 / |w| take a
            least shape of 1 or more.
    """

    name: ClassVar[str] = "weibull"

    least_shape: float = 0.0

    def __post_init__(self) -> None:
        check_least_shape(self.least_shape, 0.0)

    def shape(self, rho: Tensor) -> Tensor:
        """Return the shape k."""
        return above_least(self.least_shape, softplus(rho))

    def spread(self, rho: Tensor) -> Tensor:
        """Return 1 / k."""
        return 1.0 / self.shape(rho)

    def log_spread(self, rho: Tensor) -> Tensor:
        """Return −log k."""
        return -self.shape(rho).log()

    def initial_softplus(self, ratio: Tensor) -> Tensor:
        """Return the shape with this std / mean, to 1 %, above the least.

        A power of the ratio is right to 6 %; Newton steps in logarithms do the rest.
        """
        shape = (ratio**-1.086).clamp(_LEAST_START, _LARGEST_START)
        for _ in range(8):
            log_ratio, slope = _log_ratio_and_slope(shape)
            step = (log_ratio - ratio.log()) / slope
            shape = (shape * torch.exp(-step)).clamp(_LEAST_START, _LARGEST_START)
        return (shape - self.least_shape).clamp_min(1e-3)

    def standard_noise(self, like: Tensor) -> Tensor:
        """Draw the logarithm of an exponential number."""
        least = torch.finfo(like.dtype).tiny
        return torch.empty_like(like).exponential_().clamp_min_(least).log_()

    def noise_log_prob(self, noise: Tensor) -> Tensor:
        """Return noise − exp(noise)."""
        return noise - noise.exp()

    def noise_entropy(self) -> float:
        """Return 1 + γ."""
        return 1.0 + EULER

    def noise_mean_and_variance(self) -> tuple[float, float]:
        """Return −γ and π²/6."""
        return -EULER, math.pi**2 / 6

    def log_moment(self, rate: Tensor) -> Tensor:
        """Return log Γ(1 + rate)."""
        return torch.lgamma(1.0 + rate)

    def has_moment(self, power: float) -> bool:
        """Whether the shape stays above −power."""
        return power >= -self.least_shape


def _log_ratio_and_slope(shape: Tensor) -> tuple[Tensor, Tensor]:
    """Return log(std / mean) of a Weibull and its derivative in log shape."""
    rate = 1.0 / shape
    excess = torch.lgamma(1 + 2 * rate) - 2 * torch.lgamma(1 + rate)
    steepness = 2 * (torch.digamma(1 + 2 * rate) - torch.digamma(1 + rate))
    variance = torch.expm1(excess).clamp_min(1e-12)
    slope = -0.5 * steepness * rate * excess.exp() / variance
    return 0.5 * variance.log(), slope


@priors.register("weibull")
@dataclass(frozen=True)
class WeibullPrior(Prior):
    """Weibull sizes of this shape and scale."""

    name: ClassVar[str] = "weibull"
    support: ClassVar[Support] = "half line"
    positive: ClassVar[tuple[str, ...]] = ("shape", "scale")

    shape: float = 1.0
    scale: float = 1.0

    def terms(self) -> tuple[float, Terms]:
        """Return log k − k log l + (k − 1) log |w| − (|w| / l)^k."""
        constant = math.log(self.shape) - self.shape * math.log(self.scale)
        power = (-(self.scale**-self.shape), Power(float(self.shape)))
        return constant, ((self.shape - 1.0, Log()), power)
