"""The standard Wald family, and the inverse Gaussian prior it is a case of."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import torch
from torch import Tensor

from bayesify.distributions.family import Prior, Support, families, priors
from bayesify.distributions.scaling import Scaling
from bayesify.distributions.special import mean_over_standard_wald
from bayesify.distributions.statistic import Log, Power, Terms

_HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)


@families.register("standard_wald")
@dataclass(frozen=True)
class StandardWald(Scaling):
    """Independent sizes mean · x, x inverse Gaussian with mean and shape 1.

    The standard deviation is the mean.
    """

    name: ClassVar[str] = "standard_wald"

    def standard_noise(self, like: Tensor) -> Tensor:
        """Draw by the transformation of Michael, Schucany and Haas (1976)."""
        chi_square = torch.randn_like(like).square_()
        # The smaller root as a quotient: as a difference it would lose all digits.
        root = 2.0 / (2.0 + chi_square + torch.sqrt(chi_square * (4.0 + chi_square)))
        return torch.where(torch.rand_like(like) * (1.0 + root) <= 1.0, root, 1.0 / root)

    def noise_log_prob(self, noise: Tensor) -> Tensor:
        """Return −½ log 2π − 3/2 log x − (x − 1)² / (2 x)."""
        return -_HALF_LOG_TWO_PI - 1.5 * noise.log() - (noise - 1.0).square() / (2 * noise)

    def noise_entropy(self) -> float:
        """Return ½ log 2πe + 3/2 E[log x]."""
        return _HALF_LOG_TWO_PI + 0.5 + 1.5 * self.noise_log_moments()[0]

    def noise_moment(self, power: float) -> float:
        """Return E[x^power], by K_{power − ½}(1); its first whole ones are 1, 2, 7, 37."""
        return _moment(power)

    def noise_log_moments(self) -> tuple[float, float]:
        """Return the mean and the variance of log x."""
        return _log_moments()

    def has_moment(self, power: float) -> bool:
        """Return True: the density falls faster than any power at both ends."""
        del power
        return True


@cache
def _log_moments() -> tuple[float, float]:
    mean = mean_over_standard_wald(lambda log: log)
    return mean, mean_over_standard_wald(lambda log: (log - mean) ** 2)


@cache
def _moment(power: float) -> float:
    return mean_over_standard_wald(lambda log: torch.exp(power * log))


@priors.register("inverse_gaussian")
@dataclass(frozen=True)
class InverseGaussianPrior(Prior):
    """Inverse Gaussian sizes of this mean and shape."""

    name: ClassVar[str] = "inverse_gaussian"
    support: ClassVar[Support] = "half line"
    positive: ClassVar[tuple[str, ...]] = ("mean", "shape")

    mean: float = 1.0
    shape: float = 1.0

    def terms(self) -> tuple[float, Terms]:
        """Return ½ log(l / 2π) − 3/2 log |w| − l (|w| − m)² / (2 m² |w|)."""
        weight = -self.shape / (2 * self.mean**2)
        constant = 0.5 * math.log(self.shape) - _HALF_LOG_TWO_PI + self.shape / self.mean
        powers = ((weight, Power(1.0)), (-self.shape / 2, Power(-1.0)))
        return constant, ((-1.5, Log()), *powers)


@priors.register("standard_wald")
@dataclass(frozen=True)
class StandardWaldPrior(Prior):
    """Sizes scale · x, x inverse Gaussian with mean and shape 1."""

    name: ClassVar[str] = "standard_wald"
    support: ClassVar[Support] = "half line"
    positive: ClassVar[tuple[str, ...]] = ("scale",)

    scale: float = 1.0

    def terms(self) -> tuple[float, Terms]:
        """Return the terms of the inverse Gaussian whose mean and shape are the scale."""
        return InverseGaussianPrior(self.scale, self.scale).terms()
