"""The Rayleigh family and prior of a weight's size: the length of a Normal vector in the plane."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bayesify.distributions.family import Prior, Support, families, priors
from bayesify.distributions.scaling import Scaling
from bayesify.distributions.special import EULER
from bayesify.distributions.statistic import Log, Power, Terms

_SCALE = math.sqrt(2 / math.pi)  # of the noise of mean 1


@families.register("rayleigh")
@dataclass(frozen=True)
class Rayleigh(Scaling):
    """Independent Rayleigh sizes; the standard deviation is 0.52 of the mean."""

    name: ClassVar[str] = "rayleigh"
    has_exponential_moments: ClassVar[bool] = True

    def standard_noise(self, like: Tensor) -> Tensor:
        """Draw the root of an exponential number."""
        drawn = torch.empty_like(like).exponential_().clamp_min_(torch.finfo(like.dtype).tiny)
        return (2 * drawn).sqrt_() * _SCALE

    def noise_log_prob(self, noise: Tensor) -> Tensor:
        """Return log noise − 2 log s − noise² / (2 s²)."""
        return noise.log() - 2 * math.log(_SCALE) - noise.square() / (2 * _SCALE**2)

    def noise_entropy(self) -> float:
        """Return 1 + log(s / √2) + γ/2."""
        return 1.0 + math.log(_SCALE * math.sqrt(0.5)) + EULER / 2

    def noise_moment(self, power: float) -> float:
        """Return (s √2)^power Γ(1 + power / 2)."""
        return (_SCALE * math.sqrt(2)) ** power * math.gamma(1.0 + power / 2)

    def noise_log_moments(self) -> tuple[float, float]:
        """Return log(s √2) − γ/2 and π²/24."""
        return math.log(_SCALE * math.sqrt(2)) - EULER / 2, math.pi**2 / 24

    def has_moment(self, power: float) -> bool:
        """Whether the power lies above −2: the density falls to 0 at 0."""
        return power > -2


@priors.register("rayleigh")
@dataclass(frozen=True)
class RayleighPrior(Prior):
    """Rayleigh sizes of this scale."""

    name: ClassVar[str] = "rayleigh"
    support: ClassVar[Support] = "half line"
    positive: ClassVar[tuple[str, ...]] = ("scale",)

    scale: float = 1.0

    def terms(self) -> tuple[float, Terms]:
        """Return log |w| − 2 log s − w² / (2 s²)."""
        return -2 * math.log(self.scale), ((1.0, Log()), (-0.5 / self.scale**2, Power(2.0)))
