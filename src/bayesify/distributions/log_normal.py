"""The log-normal family and prior of a weight's size."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bayesify.distributions.family import Prior, Support, families, priors
from bayesify.distributions.log_location_scale import LogLocationScale
from bayesify.distributions.scale import log_softplus, softplus
from bayesify.distributions.statistic import Log, LogSquare, Terms

_HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)


@families.register("log_normal")
@dataclass(frozen=True)
class LogNormal(LogLocationScale):
    """Independent sizes whose logarithm is Normal with standard deviation softplus(rho)."""

    name: ClassVar[str] = "log_normal"

    def spread(self, rho: Tensor) -> Tensor:
        """Return the standard deviation of log |w|."""
        return softplus(rho)

    def log_spread(self, rho: Tensor) -> Tensor:
        """Return its logarithm."""
        return log_softplus(rho)

    def initial_softplus(self, ratio: Tensor) -> Tensor:
        """Return √log(1 + (std / mean)²)."""
        return torch.log1p(ratio.square()).sqrt()

    def standard_noise(self, like: Tensor) -> Tensor:
        """Draw from N(0, 1)."""
        return torch.randn_like(like)

    def noise_log_prob(self, noise: Tensor) -> Tensor:
        """Return −½ log 2π − ½ noise²."""
        return -_HALF_LOG_TWO_PI - 0.5 * noise.square()

    def noise_entropy(self) -> float:
        """Return ½ log 2πe."""
        return _HALF_LOG_TWO_PI + 0.5

    def noise_mean_and_variance(self) -> tuple[float, float]:
        """Return 0 and 1."""
        return 0.0, 1.0

    def log_moment(self, rate: Tensor) -> Tensor:
        """Return rate² / 2."""
        return 0.5 * rate.square()

    def has_moment(self, power: float) -> bool:
        """Return True: every power has a mean."""
        del power
        return True


@priors.register("log_normal")
@dataclass(frozen=True)
class LogNormalPrior(Prior):
    """Sizes whose logarithm is N(log_mean, log_std²)."""

    name: ClassVar[str] = "log_normal"
    support: ClassVar[Support] = "half line"
    positive: ClassVar[tuple[str, ...]] = ("log_std",)

    log_mean: float = 0.0
    log_std: float = 1.0

    def terms(self) -> tuple[float, Terms]:
        """Return −log |w| − ½ log 2πs² − (log |w| − m)² / (2 s²)."""
        constant = -_HALF_LOG_TWO_PI - math.log(self.log_std)
        return constant, ((-1.0, Log()), (-0.5 / self.log_std**2, LogSquare(self.log_mean)))
