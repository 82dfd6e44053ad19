"""The Laplace family and prior: two exponentials back to back."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bayesify.distributions.family import families, priors
from bayesify.distributions.location_scale import (
    LocationScale,
    LocationScalePrior,
    bounded_below,
)
from bayesify.distributions.statistic import Power, Terms

_SCALE = math.sqrt(0.5)  # of the noise of variance 1


@families.register("laplace")
@dataclass(frozen=True)
class Laplace(LocationScale):
    """Independent Laplace with std = softplus(rho); its textbook scale is std / √2."""

    name: ClassVar[str] = "laplace"

    def standard_noise(self, like: Tensor) -> Tensor:
        """Draw an exponential number on a random side."""
        size = torch.empty_like(like).exponential_()
        return torch.where(torch.rand_like(like) < 0.5, -size, size) * _SCALE

    def noise_log_prob(self, noise: Tensor) -> Tensor:
        """Return −log 2c − |noise| / c."""
        return -math.log(2 * _SCALE) - noise.abs() / _SCALE

    def noise_entropy(self) -> float:
        """Return 1 + log 2c."""
        return 1.0 + math.log(2 * _SCALE)

    def noise_moment(self, power: int) -> float:
        """Return power! · c^power for an even power, 0 for an odd one."""
        return math.factorial(power) * _SCALE**power if power % 2 == 0 else 0.0

    def expected_distance(self, offset: Tensor, std: Tensor) -> Tensor:
        """Return |offset| + c · exp(−|offset| / c)."""
        distance, scale = offset.abs(), std * _SCALE
        return distance + scale * torch.exp(-distance / bounded_below(scale, distance / 800))


@priors.register("laplace")
@dataclass(frozen=True)
class LaplacePrior(LocationScalePrior):
    """Laplace with this mean and standard deviation on every entry."""

    name: ClassVar[str] = "laplace"

    def of_noise(self) -> Laplace:
        """Return the Laplace family."""
        return Laplace()

    def terms(self) -> tuple[float, Terms]:
        """Return −log 2c − |w − mean| / c."""
        scale = self.std * _SCALE
        return -math.log(2 * scale), ((-1.0 / scale, Power(1.0, self.mean)),)
