"""Families of the form mean · noise, with a positive noise of a fixed law and mean 1.

The sign of the mean is the sign of the weight: such a posterior lives on the side of 0 where the
trained weight lies, and describes its size. One number per weight is all it has: the spread follows
from the mean.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from bayesify.distributions.family import Averaged, Parameters
from bayesify.distributions.half_line import HalfLine, at_least, log_size, on_a_side
from bayesify.distributions.location_scale import NoisePower
from bayesify.distributions.precision import at_least_float32
from bayesify.distributions.statistic import Linear, Log, LogSquare, Power, Statistic


def log_of_noise(noise: Tensor) -> Tensor:
    """Return log noise."""
    return noise.log()


def squared_log_of_noise(noise: Tensor) -> Tensor:
    """Return (log noise)²."""
    return noise.log().square()


class Scaling(HalfLine):
    """Independent mean · noise. A subclass describes the noise."""

    parameter_names: ClassVar[tuple[str, ...]] = ("mean",)

    @abstractmethod
    def standard_noise(self, like: Tensor) -> Tensor:
        """Draw positive noise of mean 1, shaped like a tensor and of its type."""

    @abstractmethod
    def noise_log_prob(self, noise: Tensor) -> Tensor:
        """Return the log density of the noise."""

    @abstractmethod
    def noise_entropy(self) -> float:
        """Return the entropy of the noise."""

    @abstractmethod
    def noise_moment(self, power: float) -> float:
        """Return E[noise^power]."""

    @abstractmethod
    def noise_log_moments(self) -> tuple[float, float]:
        """Return the mean and the variance of log noise."""

    def initial(self, tensor: Tensor, std: Tensor) -> dict[str, Tensor]:
        """Return mean = tensor; a weight of exactly 0, which has no side, starts at std."""
        return {"mean": on_a_side(tensor, std)}

    def deviation(self, parameters: Parameters) -> Tensor:
        """Return mean · (noise − 1), drawn in float32 or better."""
        return at_least_float32(parameters["mean"]) * (self.noise(parameters) - 1.0)

    def draw(self, parameters: Parameters) -> Tensor:
        """Return mean · noise, never 0."""
        return at_least(at_least_float32(parameters["mean"]) * self.noise(parameters))

    def noise(self, parameters: Parameters) -> Tensor:
        """Draw one noise per entry, in float32 or better."""
        return self.standard_noise(at_least_float32(parameters["mean"].detach()))

    def variance(self, parameters: Parameters) -> Tensor:
        """Return mean² · variance of the noise."""
        return at_least_float32(parameters["mean"]).square() * (self.noise_moment(2.0) - 1.0)

    def log_prob(self, parameters: Parameters, value: Tensor) -> Tensor:
        """Return log density(w / mean) − log |mean|; −inf on the other side of 0."""
        mean = at_least_float32(parameters["mean"])
        noise = value / mean
        inside = noise > 0
        density = self.noise_log_prob(torch.where(inside, noise, torch.ones_like(noise)))
        return torch.where(inside, density - log_size(mean), -math.inf)

    def entropy(self, parameters: Parameters) -> Tensor:
        """Return Σ log |mean| + entropy of the noise."""
        mean = at_least_float32(parameters["mean"])
        return log_size(mean).sum() + mean.numel() * self.noise_entropy()

    def mean_of_power(self, parameters: Parameters, power: float) -> Tensor:
        """Return |mean|^power · E[noise^power]."""
        return at_least_float32(parameters["mean"]).abs() ** power * self.noise_moment(power)

    def moments_of_log(self, parameters: Parameters) -> tuple[Tensor, float]:
        """Return log |mean| plus that of the noise, and its variance."""
        location, variance = self.noise_log_moments()
        return log_size(at_least_float32(parameters["mean"])) + location, variance

    def averaged(self, statistic: Statistic | None) -> Averaged | None:
        """Cover the log density and every statistic with a known average."""
        if statistic is None:
            return Averaged((self.noise_log_prob,), _sampled_log_density)
        if isinstance(statistic, Linear):
            return Averaged((NoisePower(1.0),), lambda p, a: _mean(p) * a[0])
        if isinstance(statistic, Log):
            return Averaged((log_of_noise,), lambda p, a: log_size(_mean(p)) + a[0])
        if isinstance(statistic, LogSquare):
            return _averaged_log_square(statistic.centre)
        if not isinstance(statistic, Power):
            return None
        if statistic.centre == 0:
            power = statistic.exponent
            return Averaged((NoisePower(power),), lambda p, a: _mean(p).abs() ** power * a[0])
        if statistic.exponent == 2:
            return _averaged_square(statistic.centre)
        return None


def _mean(parameters: Parameters) -> Tensor:
    return at_least_float32(parameters["mean"])


def _sampled_log_density(parameters: Parameters, averages: Sequence[Tensor]) -> Tensor:
    return averages[0].sum() - log_size(_mean(parameters)).sum()


def _averaged_square(centre: float) -> Averaged:
    def assemble(parameters: Parameters, averages: Sequence[Tensor]) -> Tensor:
        mean = _mean(parameters)
        return mean.square() * averages[1] - 2 * centre * mean * averages[0] + centre**2

    return Averaged((NoisePower(1.0), NoisePower(2.0)), assemble)


def _averaged_log_square(centre: float) -> Averaged:
    def assemble(parameters: Parameters, averages: Sequence[Tensor]) -> Tensor:
        location = log_size(_mean(parameters)) - centre
        return location.square() + 2 * location * averages[0] + averages[1]

    return Averaged((log_of_noise, squared_log_of_noise), assemble)
