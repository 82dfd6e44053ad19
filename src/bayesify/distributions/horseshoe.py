"""The horseshoe family and prior: Normal given a scale of its own, half-Cauchy, for each weight.

Its density is known without that scale: exp(u) E₁(u) / √(2π³) with u = noise² / 2, infinite at 0
and falling as 1 / noise². It has neither a mean nor a variance: `mean` is its centre, and the
variance is infinite.

Reference: Carvalho, Polson, Scott (2010), "The horseshoe estimator for sparse signals".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bayesify.distributions.family import Parameters, Prior, families, priors
from bayesify.distributions.location_scale import LocationScale
from bayesify.distributions.precision import at_least_float32
from bayesify.distributions.special import log_scaled_exponential_integral
from bayesify.distributions.statistic import Statistic


@families.register("horseshoe")
@dataclass(frozen=True)
class Horseshoe(LocationScale):
    """Independent mean + scale · λ · N(0, 1), λ half-Cauchy, scale = softplus(rho).

    `std` in its start is this scale: there is no standard deviation.
    """

    name: ClassVar[str] = "horseshoe"

    def standard_noise(self, like: Tensor) -> Tensor:
        """Draw the auxiliary scale, then a Normal number of that scale."""
        # The ratio of two Normal numbers is Cauchy; a further Normal number takes its scale.
        first, second, third = (torch.randn_like(like) for _ in range(3))
        least = math.sqrt(torch.finfo(like.dtype).tiny)
        return first * second / third.abs().clamp_min(least)

    def noise_log_prob(self, noise: Tensor) -> Tensor:
        """Return log(exp(u) E₁(u)) − ½ log 2π³."""
        half_square = 0.5 * noise.square()
        return log_scaled_exponential_integral(half_square) - 0.5 * math.log(2 * math.pi**3)

    def noise_moment(self, power: int) -> float | None:
        """Return None above 0: no moment exists."""
        return 1.0 if power == 0 else None

    def expected(self, statistic: Statistic, parameters: Parameters) -> None:
        """Return None: no statistic has a closed form."""
        del statistic, parameters

    def variance(self, parameters: Parameters) -> Tensor:
        """Return infinity."""
        return torch.full_like(at_least_float32(parameters["rho"]), math.inf)

    def has_moment(self, power: float) -> bool:
        """Whether the power lies between −1 and 1."""
        return -1 < power < 1


@priors.register("horseshoe")
@dataclass(frozen=True)
class HorseshoePrior(Prior):
    """Horseshoe around 0 of this global scale."""

    name: ClassVar[str] = "horseshoe"
    positive: ClassVar[tuple[str, ...]] = ("scale",)

    scale: float = 1.0

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density with every weight's own scale summed out."""
        standardised = at_least_float32(value) / self.scale
        return Horseshoe().noise_log_prob(standardised) - math.log(self.scale)
