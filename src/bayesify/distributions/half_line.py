"""Families of a weight's size, on the side of 0 where its mean lies.

What they share: which averages a prior may ask for, and how a number is kept on its side.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from bayesify.distributions.family import Family, Parameters, Support
from bayesify.distributions.precision import at_least_float32
from bayesify.distributions.statistic import Linear, Log, LogSquare, Power, Statistic


class HalfLine(Family):
    """Independent entries of one sign each. A subclass knows the moments of |w| and of log |w|."""

    support: ClassVar[Support] = "half line"

    @abstractmethod
    def mean_of_power(self, parameters: Parameters, power: float) -> Tensor:
        """Return E|w|^power."""

    @abstractmethod
    def moments_of_log(self, parameters: Parameters) -> tuple[Tensor, Tensor | float]:
        """Return the mean and the variance of log |w|."""

    def mean(self, parameters: Parameters) -> Tensor:
        """Return the mean."""
        return parameters["mean"]

    def expected(self, statistic: Statistic, parameters: Parameters) -> Tensor | None:
        """Return the average of w, of any power of |w|, of log |w|, or of their squares."""
        mean = at_least_float32(parameters["mean"])
        if isinstance(statistic, Linear):
            return mean
        if isinstance(statistic, Log):
            return self.moments_of_log(parameters)[0]
        if isinstance(statistic, LogSquare):
            location, variance = self.moments_of_log(parameters)
            return (location - statistic.centre).square() + variance
        if not isinstance(statistic, Power):
            return None
        if statistic.centre == 0:
            return self.mean_of_power(parameters, statistic.exponent)
        if statistic.exponent == 2:
            return (mean - statistic.centre).square() + self.variance(parameters)
        return None


def at_least(value: Tensor) -> Tensor:
    """Return a value whose size is at least the smallest number, so that it keeps its side of 0."""
    least = torch.finfo(value.dtype).tiny
    return torch.where(value < 0, value.clamp_max(-least), value.clamp_min(least))


def on_a_side(tensor: Tensor, std: Tensor) -> Tensor:
    """Return a tensor with its exact zeros moved to +std."""
    return torch.where(tensor == 0, std.to(tensor.dtype), tensor)


def shared_size(mean: Tensor, std: Tensor) -> Tensor:
    """Return |mean|, its root mean square over the entries that share a std."""
    size = at_least_float32(mean).abs()
    counts = (1,) * (mean.ndim - std.ndim) + tuple(std.shape)
    shared = [axis for axis, count in enumerate(counts) if count != mean.shape[axis]]
    return size.square().mean(shared, keepdim=True).sqrt() if shared else size


def log_size(mean: Tensor) -> Tensor:
    """Return log |mean|, finite at 0."""
    return mean.abs().clamp_min(torch.finfo(mean.dtype).tiny).log()
