"""The Dirichlet prior: rows of positive numbers that sum to 1."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from bayesify.distributions.family import Prior, Support, priors


@priors.register("dirichlet")
@dataclass(frozen=True)
class DirichletPrior(Prior):
    """Rows along the last axis on the simplex. It needs a posterior whose rows sum to 1."""

    name: ClassVar[str] = "dirichlet"
    support: ClassVar[Support] = "simplex"
    is_elementwise: ClassVar[bool] = False
    positive: ClassVar[tuple[str, ...]] = ("concentration",)

    concentration: float = 1.0

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density of every row."""
        count = value.shape[-1]
        constant = math.lgamma(count * self.concentration) - count * math.lgamma(self.concentration)
        return constant + (self.concentration - 1.0) * value.log().sum(-1)
