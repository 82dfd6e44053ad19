"""Families whose logarithm is a location plus a spread times a noise of a fixed law.

log |w| = location + spread · noise, on the side of 0 where the mean lies. The stored parameters
are the mean, so that a trained tensor is one, and a rho that the spread follows from.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from bayesify.distributions.family import Averaged, Parameters
from bayesify.distributions.half_line import (
    HalfLine,
    at_least,
    log_size,
    on_a_side,
    shared_size,
)
from bayesify.distributions.location_scale import NoisePower
from bayesify.distributions.precision import at_least_float32
from bayesify.distributions.scale import inverse_softplus
from bayesify.distributions.statistic import Log, LogSquare, Statistic

# Beyond this std / |mean| the variance is in a few of a billion draws.
_LARGEST_START = 1e4


class LogLocationScale(HalfLine):
    """Independent sign(mean) · exp(location + spread · noise). A subclass describes the noise."""

    parameter_names: ClassVar[tuple[str, ...]] = ("mean", "rho")

    @abstractmethod
    def spread(self, rho: Tensor) -> Tensor:
        """Return the positive factor of the noise."""

    @abstractmethod
    def log_spread(self, rho: Tensor) -> Tensor:
        """Return its logarithm, finite for every finite rho."""

    @abstractmethod
    def initial_softplus(self, ratio: Tensor) -> Tensor:
        """Return softplus(rho) for a given std / |mean|."""

    @abstractmethod
    def standard_noise(self, like: Tensor) -> Tensor:
        """Draw the noise, shaped like a tensor and of its type."""

    @abstractmethod
    def noise_log_prob(self, noise: Tensor) -> Tensor:
        """Return the log density of the noise."""

    @abstractmethod
    def noise_entropy(self) -> float:
        """Return the entropy of the noise."""

    @abstractmethod
    def noise_mean_and_variance(self) -> tuple[float, float]:
        """Return the mean and the variance of the noise."""

    @abstractmethod
    def log_moment(self, rate: Tensor) -> Tensor:
        """Return log E[exp(rate · noise)]."""

    def initial(self, tensor: Tensor, std: Tensor) -> dict[str, Tensor]:
        """Return mean = tensor and the rho of std; a weight of exactly 0 starts at std."""
        mean = on_a_side(tensor, std)
        ratio = (at_least_float32(std) / shared_size(mean, std)).clamp_max(_LARGEST_START)
        return {"mean": mean, "rho": inverse_softplus(self.initial_softplus(ratio)).to(std.dtype)}

    def deviation(self, parameters: Parameters) -> Tensor:
        """Return mean · (exp(spread · noise) / its average − 1), drawn in float32 or better."""
        mean, spread = self._mean_and_spread(parameters)
        exponent = spread * self.noise(parameters) - self.log_moment(spread)
        return mean * torch.expm1(exponent)

    def draw(self, parameters: Parameters) -> Tensor:
        """Return mean · exp(spread · noise) / its average, never 0."""
        mean, spread = self._mean_and_spread(parameters)
        exponent = spread * self.noise(parameters) - self.log_moment(spread)
        return at_least(mean * torch.exp(exponent))

    def noise(self, parameters: Parameters) -> Tensor:
        """Draw one noise per entry, in float32 or better."""
        return self.standard_noise(at_least_float32(parameters["mean"].detach()))

    def variance(self, parameters: Parameters) -> Tensor:
        """Return mean² · (E[exp(2 · spread · noise)] / E[exp(spread · noise)]² − 1)."""
        mean, spread = self._mean_and_spread(parameters)
        # In float32 the difference of a narrow law is rounding, and may be negative.
        precise = spread.double()
        excess = torch.expm1(self.log_moment(2 * precise) - 2 * self.log_moment(precise))
        return mean.square() * excess.clamp_min(0.0).to(mean.dtype)

    def log_prob(self, parameters: Parameters, value: Tensor) -> Tensor:
        """Return log density(noise) − log spread − log |w|; −inf on the other side of 0."""
        mean, spread = self._mean_and_spread(parameters)
        inside = value / mean > 0
        size = log_size(torch.where(inside, value, torch.ones_like(value)))
        least = torch.finfo(spread.dtype).tiny
        noise = (size - self._location(parameters)) / spread.clamp_min(least)
        density = self.noise_log_prob(noise) - self._log_spread(parameters) - size
        return torch.where(inside, density, -math.inf)

    def entropy(self, parameters: Parameters) -> Tensor:
        """Return Σ entropy of the noise + log spread + E[log |w|]."""
        size, _ = self.moments_of_log(parameters)
        return (size + self._log_spread(parameters) + self.noise_entropy()).sum()

    def mean_of_power(self, parameters: Parameters, power: float) -> Tensor:
        """Return exp(power · location) · E[exp(power · spread · noise)]."""
        _, spread = self._mean_and_spread(parameters)
        return torch.exp(power * self._location(parameters) + self.log_moment(power * spread))

    def moments_of_log(self, parameters: Parameters) -> tuple[Tensor, Tensor]:
        """Return location + spread · mean of the noise, and spread² · its variance."""
        _, spread = self._mean_and_spread(parameters)
        mean, variance = self.noise_mean_and_variance()
        return self._location(parameters) + spread * mean, spread.square() * variance

    def averaged(self, statistic: Statistic | None) -> Averaged | None:
        """Cover the log density, log |w| and its square: polynomials in location and spread."""
        if statistic is None:
            return Averaged((self.noise_log_prob, NoisePower(1)), self._sampled_log_density)
        if isinstance(statistic, Log):
            return Averaged((NoisePower(1),), self._sampled_log)
        if not isinstance(statistic, LogSquare):
            return None

        def assemble(parameters: Parameters, averages: Sequence[Tensor]) -> Tensor:
            _, spread = self._mean_and_spread(parameters)
            location = self._location(parameters) - statistic.centre
            cross = 2 * location * spread * averages[0]
            return location.square() + cross + spread.square() * averages[1]

        return Averaged((NoisePower(1), NoisePower(2)), assemble)

    def _sampled_log(self, parameters: Parameters, averages: Sequence[Tensor]) -> Tensor:
        _, spread = self._mean_and_spread(parameters)
        return self._location(parameters) + spread * averages[0]

    def _sampled_log_density(self, parameters: Parameters, averages: Sequence[Tensor]) -> Tensor:
        _, spread = self._mean_and_spread(parameters)
        size = self._location(parameters) + spread * averages[1]
        return (averages[0] - self._log_spread(parameters) - size).sum()

    def _mean_and_spread(self, parameters: Parameters) -> tuple[Tensor, Tensor]:
        rho = at_least_float32(parameters["rho"])
        return at_least_float32(parameters["mean"]), self.spread(rho)

    def _log_spread(self, parameters: Parameters) -> Tensor:
        return self.log_spread(at_least_float32(parameters["rho"]))

    def _location(self, parameters: Parameters) -> Tensor:
        mean, spread = self._mean_and_spread(parameters)
        return log_size(mean) - self.log_moment(spread)
