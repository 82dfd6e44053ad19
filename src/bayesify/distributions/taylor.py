"""log w as a polynomial around 1, and where that holds.

With it a log density that contains log w becomes a polynomial, which many draws can be averaged
over with the graph of one (see `reparameterised`). It holds for 0 < w < 2 alone, and no signed
weight stays there: the library's own estimators never use it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class TaylorLog:
    """Σₖ (−1)^(k+1) (w − 1)^k / k for k from 1 to `order`."""

    order: int

    def __post_init__(self) -> None:
        if not isinstance(self.order, int) or isinstance(self.order, bool) or self.order < 1:
            raise ValueError(f"order must be a whole number >= 1, got {self.order!r}")

    @property
    def coefficients(self) -> tuple[float, ...]:
        """The coefficients of (w − 1), (w − 1)², ..."""
        return tuple((-1.0) ** (k + 1) / k for k in range(1, self.order + 1))

    def __call__(self, value: Tensor) -> Tensor:
        """Return the polynomial, which is no logarithm outside (0, 2)."""
        step, total = value - 1.0, torch.zeros_like(value)
        for coefficient in reversed(self.coefficients):
            total = (total + coefficient) * step
        return total

    def error_bound(self, value: Tensor) -> Tensor:
        """Return a bound on |polynomial − log w|, infinite outside 0 < w < 2.

        The first term left out, and for w < 1, where all terms have one sign, the geometric
        series that follows it.
        """
        step = (value - 1.0).abs()
        first = step ** (self.order + 1) / (self.order + 1)
        bound = torch.where(value >= 1.0, first, first / (1.0 - step))
        return torch.where(step < 1.0, bound, math.inf)
