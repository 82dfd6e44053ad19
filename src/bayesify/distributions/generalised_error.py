"""The generalised error family and prior: exp(−|x|^power), Laplace at 1 and Normal at 2."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bayesify.distributions.family import families, is_finite_number, priors
from bayesify.distributions.location_scale import LocationScale, LocationScalePrior
from bayesify.distributions.special import standard_gamma
from bayesify.distributions.statistic import Power, Terms


@families.register("generalised_error")
@dataclass(frozen=True)
class GeneralisedError(LocationScale):
    """Independent generalised error (exponential power) with std = softplus(rho).

    Args:
        power: How fast the tails fall; 1 is Laplace, 2 Normal, more is nearer to uniform.
    """

    name: ClassVar[str] = "generalised_error"

    power: float = 1.5

    def __post_init__(self) -> None:
        if not (is_finite_number(self.power) and self.power > 0):
            raise ValueError(f"power must be positive and finite, got {self.power!r}")

    def standard_noise(self, like: Tensor) -> Tensor:
        """Draw a root of a gamma number on a random side."""
        size = standard_gamma(torch.full_like(like, 1.0 / self.power)) ** (1.0 / self.power)
        return torch.where(torch.rand_like(like) < 0.5, -size, size) * unit_scale(self.power)

    def noise_log_prob(self, noise: Tensor) -> Tensor:
        """Return log(power / (2 a Γ(1/power))) − |noise / a|^power."""
        # Below power 1 the slope at 0 is infinite: a noise that is rounded to 0 has none.
        size = noise.abs().clamp_min(torch.finfo(noise.dtype).tiny) / unit_scale(self.power)
        return _log_peak(self.power) - size**self.power

    def noise_entropy(self) -> float:
        """Return 1 / power − log(power / (2 a Γ(1/power)))."""
        return 1.0 / self.power - _log_peak(self.power)

    def noise_moment(self, power: int) -> float:
        """Return a^k Γ((k + 1) / power) / Γ(1 / power) for an even k, 0 for an odd one."""
        if power % 2:
            return 0.0
        ratio = math.lgamma((power + 1) / self.power) - math.lgamma(1 / self.power)
        return unit_scale(self.power) ** power * math.exp(ratio)


@priors.register("generalised_error")
@dataclass(frozen=True)
class GeneralisedErrorPrior(LocationScalePrior):
    """Generalised error with this mean, standard deviation and power on every entry."""

    name: ClassVar[str] = "generalised_error"
    positive: ClassVar[tuple[str, ...]] = ("std", "power")

    power: float = 1.5

    def of_noise(self) -> GeneralisedError:
        """Return the family of this power."""
        return GeneralisedError(self.power)

    def terms(self) -> tuple[float, Terms]:
        """Return log peak − (|w − mean| / a)^power."""
        weight = -((self.std * unit_scale(self.power)) ** -self.power)
        constant = _log_peak(self.power) - math.log(self.std)
        return constant, ((weight, Power(float(self.power), self.mean)),)


def unit_scale(power: float) -> float:
    """Return the scale a at which the variance is 1."""
    return math.exp(0.5 * (math.lgamma(1 / power) - math.lgamma(3 / power)))


def _log_peak(power: float) -> float:
    return math.log(power / (2 * unit_scale(power))) - math.lgamma(1 / power)
