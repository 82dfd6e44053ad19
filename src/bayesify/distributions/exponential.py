"""The exponential family and prior of a weight's size."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bayesify.distributions.family import Prior, Support, families, priors
from bayesify.distributions.scaling import Scaling
from bayesify.distributions.special import EULER
from bayesify.distributions.statistic import Power, Terms


@families.register("exponential")
@dataclass(frozen=True)
class Exponential(Scaling):
    """Independent exponential sizes; the standard deviation is the mean."""

    name: ClassVar[str] = "exponential"

    def standard_noise(self, like: Tensor) -> Tensor:
        """Draw an exponential number of mean 1."""
        return torch.empty_like(like).exponential_().clamp_min_(torch.finfo(like.dtype).tiny)

    def noise_log_prob(self, noise: Tensor) -> Tensor:
        """Return −noise."""
        return -noise

    def noise_entropy(self) -> float:
        """Return 1."""
        return 1.0

    def noise_moment(self, power: float) -> float:
        """Return Γ(1 + power)."""
        return math.gamma(1.0 + power)

    def noise_log_moments(self) -> tuple[float, float]:
        """Return −γ and π²/6."""
        return -EULER, math.pi**2 / 6


@priors.register("exponential")
@dataclass(frozen=True)
class ExponentialPrior(Prior):
    """Exponential sizes, density rate · exp(−rate |w|)."""

    name: ClassVar[str] = "exponential"
    support: ClassVar[Support] = "half line"
    positive: ClassVar[tuple[str, ...]] = ("rate",)

    rate: float = 1.0

    def terms(self) -> tuple[float, Terms]:
        """Return log rate − rate · |w|."""
        return math.log(self.rate), ((-self.rate, Power(1.0)),)
