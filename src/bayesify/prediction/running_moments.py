"""Mean and variance of samples that arrive in chunks, in memory that does not grow with them."""

from __future__ import annotations

import torch
from torch import Tensor


class RunningMoments:
    """Mean and variance over axis 0 of everything seen so far.

    Chunks are merged by their means and centred sums of squares, so a large common offset costs
    no precision.

    Reference: Chan, Golub and LeVeque (1983).
    """

    def __init__(self) -> None:
        self.count = 0
        self._mean = self._squares = torch.empty(0)

    def update(self, values: Tensor) -> None:
        """Add a chunk of values (s, ...)."""
        added = len(values)
        if added == 0:
            return
        mean = values.mean(0)
        squares = (values - mean).square().sum(0)
        if self.count:
            if mean.shape != self._mean.shape:
                raise ValueError(
                    "every update must hold the same examples: expected shape "
                    f"(s, {', '.join(map(str, self._mean.shape))}), got {tuple(values.shape)}"
                )
            step = mean - self._mean
            share = added / (self.count + added)
            mean = self._mean + step * share
            squares = self._squares + squares + step.square() * (self.count * share)
        self._mean, self._squares, self.count = mean, squares, self.count + added

    def result(self) -> tuple[Tensor, Tensor]:
        """Return the mean and the variance with 1/(T-1), which is NaN for one sample."""
        if not self.count:
            raise ValueError("there are no samples: call update before result")
        if self.count == 1:
            return self._mean, torch.full_like(self._mean, torch.nan)
        return self._mean, self._squares / (self.count - 1)
