"""A mixture of a wide and a narrow Normal prior, which lets most weights be small and some large.

Reference: Blundell, Cornebise, Kavukcuoglu, Wierstra (2015), "Weight uncertainty in neural
networks".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bayesify.distributions.family import Prior, priors
from bayesify.distributions.normal import NormalPrior


@priors.register("scale_mixture")
@dataclass(frozen=True)
class ScaleMixturePrior(Prior):
    """share · N(0, wide_std²) + (1 − share) · N(0, narrow_std²) on every entry."""

    name: ClassVar[str] = "scale_mixture"
    positive: ClassVar[tuple[str, ...]] = ("wide_std", "narrow_std", "share")

    wide_std: float = 1.0
    narrow_std: float = 0.0025
    share: float = 0.5

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density of the mixture."""
        wide = NormalPrior(std=self.wide_std).log_prob(value) + math.log(self.share)
        narrow = NormalPrior(std=self.narrow_std).log_prob(value) + math.log1p(-self.share)
        return torch.logaddexp(wide, narrow)

    def moments_needed(self) -> tuple[float, ...]:
        """Return 2: its tails are Normal."""
        return (2.0,)

    def problem(self) -> str | None:
        """Say when the share is no share."""
        problem = super().problem()
        if problem is None and not 0 < self.share < 1:
            return f"the prior's share must lie in (0, 1), got {self.share}"
        return problem
