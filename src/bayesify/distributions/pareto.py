"""The Pareto prior: sizes above a minimum, with tails that fall as a power."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bayesify.distributions.family import Prior, Support, priors
from bayesify.distributions.statistic import Log, Terms


@priors.register("pareto")
@dataclass(frozen=True)
class ParetoPrior(Prior):
    """Sizes of at least `minimum`. It needs a posterior that never lies below it."""

    name: ClassVar[str] = "pareto"
    support: ClassVar[Support] = "above a minimum"
    positive: ClassVar[tuple[str, ...]] = ("minimum", "shape")

    minimum: float = 1.0
    shape: float = 1.0

    def terms(self) -> tuple[float, Terms]:
        """Return log a + a log m − (a + 1) log |w|, which holds above the minimum."""
        constant = math.log(self.shape) + self.shape * math.log(self.minimum)
        return constant, ((-(self.shape + 1.0), Log()),)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density; −inf below the minimum."""
        return torch.where(value.abs() >= self.minimum, super().log_prob(value), -math.inf)
