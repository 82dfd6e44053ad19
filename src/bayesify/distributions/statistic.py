"""Functions of one weight whose averages are all that a log density needs.

A prior's log density is a constant plus a weighted sum of these; a family knows the exact average
of some of them, and which ones it can average over many draws with a graph that does not grow.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Statistic(ABC):
    """A function of every entry of a tensor."""

    @abstractmethod
    def __call__(self, value: Tensor) -> Tensor:
        """Return the function of every entry."""


@dataclass(frozen=True)
class Linear(Statistic):
    """w itself, sign and all."""

    def __call__(self, value: Tensor) -> Tensor:
        """Return w."""
        return value


@dataclass(frozen=True)
class Power(Statistic):
    """|w − centre|^exponent."""

    exponent: float
    centre: float = 0.0

    @property
    def is_polynomial(self) -> bool:
        """Whether it is a polynomial in w: an even whole exponent."""
        return self.exponent > 0 and self.exponent % 2 == 0

    def __call__(self, value: Tensor) -> Tensor:
        """Return |w − centre|^exponent."""
        distance = value - self.centre if self.centre else value
        return distance.square() if self.exponent == 2 else distance.abs() ** self.exponent


@dataclass(frozen=True)
class Log(Statistic):
    """log |w|."""

    def __call__(self, value: Tensor) -> Tensor:
        """Return log |w|, of the smallest number there is where w = 0."""
        return value.abs().clamp_min(torch.finfo(value.dtype).tiny).log()


@dataclass(frozen=True)
class LogSquare(Statistic):
    """(log |w| − centre)²."""

    centre: float = 0.0

    def __call__(self, value: Tensor) -> Tensor:
        """Return (log |w| − centre)²."""
        return (Log()(value) - self.centre).square()


@dataclass(frozen=True)
class Exponent(Statistic):
    """exp(rate · (w − centre))."""

    rate: float = 1.0
    centre: float = 0.0

    def __call__(self, value: Tensor) -> Tensor:
        """Return exp(rate · (w − centre))."""
        return torch.exp(self.rate * (value - self.centre))


Terms = tuple[tuple[float, Statistic], ...]
"""Coefficients and the statistics they weigh."""
