"""The Logistic family and prior: a bell with exponential tails."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from bayesify.distributions.family import families, priors
from bayesify.distributions.location_scale import (
    LocationScale,
    LocationScalePrior,
    bounded_below,
)

_SCALE = math.sqrt(3) / math.pi  # of the noise of variance 1


@families.register("logistic")
@dataclass(frozen=True)
class Logistic(LocationScale):
    """Independent Logistic with std = softplus(rho); its textbook scale is std · √3 / π."""

    name: ClassVar[str] = "logistic"

    def standard_noise(self, like: Tensor) -> Tensor:
        """Draw the difference of two logarithms of exponential numbers, which is Logistic.

        Unlike the logit of a uniform number it is never infinite.
        """
        least = torch.finfo(like.dtype).tiny
        first, second = (torch.empty_like(like).exponential_().clamp_min_(least) for _ in range(2))
        return (first.log_() - second.log_()) * _SCALE

    def noise_log_prob(self, noise: Tensor) -> Tensor:
        """Return −log c − x − 2 log(1 + exp(−x)), x = noise / c, in its symmetric form."""
        size = noise.abs() / _SCALE
        return -math.log(_SCALE) - size - 2 * F.softplus(-size)

    def noise_entropy(self) -> float:
        """Return 2 + log c."""
        return 2.0 + math.log(_SCALE)

    def noise_moment(self, power: int) -> float | None:
        """Return E[noise^power] up to the fourth."""
        return 4.2 if power == 4 else 0.0 if power % 2 else super().noise_moment(power)

    def expected_distance(self, offset: Tensor, std: Tensor) -> Tensor:
        """Return |offset| + 2c · log(1 + exp(−|offset| / c))."""
        distance, scale = offset.abs(), std * _SCALE
        ratio = distance / bounded_below(scale, distance / 800)
        return distance + 2 * scale * F.softplus(-ratio)


@priors.register("logistic")
@dataclass(frozen=True)
class LogisticPrior(LocationScalePrior):
    """Logistic with this mean and standard deviation on every entry."""

    name: ClassVar[str] = "logistic"

    def of_noise(self) -> Logistic:
        """Return the Logistic family."""
        return Logistic()

    def moments_needed(self) -> tuple[float, ...]:
        """Return 1: its tails are exponential."""
        return (1.0,)
