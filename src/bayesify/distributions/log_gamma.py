"""The log-gamma family and prior: the logarithm of a gamma number, skewed to the left."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bayesify.distributions.family import Parameters, families, is_finite_number, priors
from bayesify.distributions.location_scale import LocationScale, LocationScalePrior
from bayesify.distributions.precision import at_least_float32
from bayesify.distributions.scale import softplus
from bayesify.distributions.special import digamma, standard_gamma, trigamma
from bayesify.distributions.statistic import Exponent, Linear, Statistic, Terms


@families.register("log_gamma")
@dataclass(frozen=True)
class LogGamma(LocationScale):
    """Independent, shifted and scaled logarithm of a gamma number, with std = softplus(rho).

    Args:
        shape: Shape of the gamma number: the larger, the nearer to a Normal.
    """

    name: ClassVar[str] = "log_gamma"
    has_exponential_moments: ClassVar[bool] = True

    shape: float = 1.0

    def __post_init__(self) -> None:
        if not (is_finite_number(self.shape) and self.shape > 0):
            raise ValueError(f"shape must be positive and finite, got {self.shape!r}")

    def standard_noise(self, like: Tensor) -> Tensor:
        """Draw (log gamma − its mean) / its standard deviation."""
        log = standard_gamma(torch.full_like(like, self.shape)).log()
        return (log - digamma(self.shape)) / self._log_std()

    def noise_log_prob(self, noise: Tensor) -> Tensor:
        """Return k x − exp(x) − log Γ(k) + log(dx / dnoise), x the logarithm itself."""
        log = noise * self._log_std() + digamma(self.shape)
        return self.shape * log - log.exp() - math.lgamma(self.shape) + math.log(self._log_std())

    def noise_entropy(self) -> float:
        """Return log Γ(k) − k ψ(k) + k − log(dx / dnoise)."""
        shape = self.shape
        return math.lgamma(shape) - shape * digamma(shape) + shape - math.log(self._log_std())

    def expected(self, statistic: Statistic, parameters: Parameters) -> Tensor | None:
        """Return the average of exp(r (w − c)) too, for r > 0."""
        if not (isinstance(statistic, Exponent) and statistic.rate > 0):
            return super().expected(statistic, parameters)
        mean, rho = at_least_float32(parameters["mean"]), at_least_float32(parameters["rho"])
        power = softplus(rho) * (statistic.rate / self._log_std())
        offset = statistic.rate * (mean - statistic.centre) - power * digamma(self.shape)
        return torch.exp(offset + torch.lgamma(self.shape + power) - math.lgamma(self.shape))

    def _log_std(self) -> float:
        return math.sqrt(trigamma(self.shape))


@priors.register("log_gamma")
@dataclass(frozen=True)
class LogGammaPrior(LocationScalePrior):
    """Log-gamma with this mean, standard deviation and shape on every entry."""

    name: ClassVar[str] = "log_gamma"
    positive: ClassVar[tuple[str, ...]] = ("std", "shape")

    shape: float = 1.0

    def of_noise(self) -> LogGamma:
        """Return the family of this shape."""
        return LogGamma(self.shape)

    def terms(self) -> tuple[float, Terms]:
        """Return k x − exp(x) − log Γ(k) + log(dx / dw), with x linear in w."""
        rate = math.sqrt(trigamma(self.shape)) / self.std
        at_mean = digamma(self.shape)
        constant = self.shape * (at_mean - rate * self.mean) - math.lgamma(self.shape)
        bend = Exponent(rate, self.mean - at_mean / rate)
        return constant + math.log(rate), ((self.shape * rate, Linear()), (-1.0, bend))
