"""Which entries of a tensor come and go together: single ones, blocks, whole filters, two of four.

A tensor is read as a matrix of its first axis (output units) by all others. Blocks let hardware
skip what is not there; two of every four neighbours in a row is what sparse tensor cores take.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import torch
from torch import Tensor

_BLOCK = re.compile(r"(\d+)x(\d+)")
FREE, FILTER, TWO_OF_FOUR = "free", "filter", "2:4"


@dataclass(frozen=True)
class Pattern:
    """A way to group entries.

    Args:
        name: "free", "filter", "2:4", or the rows and columns of a block, such as "4x1".
    """

    name: str

    def __post_init__(self) -> None:
        is_block = _BLOCK.fullmatch(self.name) and 0 not in self._sides()
        if self.name not in (FREE, FILTER, TWO_OF_FOUR) and not is_block:
            raise ValueError(
                "pattern must be 'free', 'filter', '2:4' or a block such as '4x1' or '8x8', got "
                f"{self.name!r}"
            )

    def _sides(self) -> tuple[int, int]:
        rows, columns = self.name.split("x")
        return int(rows), int(columns)

    def block_of(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """Return the rows and columns of a block in a tensor of this shape.

        A side that does not divide the tensor's becomes its largest divisor that is smaller.
        """
        rows, columns = _matrix(shape)
        if self.name == FREE:
            return 1, 1
        if self.name == FILTER:
            return 1, columns
        if self.name == TWO_OF_FOUR:
            return 1, 4
        wanted = self._sides()
        return _divisor(rows, wanted[0]), _divisor(columns, wanted[1])

    def group_of_entry(self, shape: tuple[int, ...]) -> Tensor:
        """Return the number of the group that each entry belongs to, flat."""
        rows, columns = _matrix(shape)
        height, width = self.block_of(shape)
        across = -(-columns // width)
        row, column = torch.arange(rows) // height, torch.arange(columns) // width
        return (row[:, None] * across + column[None, :]).flatten()

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Whether a tensor can take the pattern: "2:4" needs rows of a multiple of four."""
        return self.name != TWO_OF_FOUR or (len(shape) > 1 and _matrix(shape)[1] % 4 == 0)


def _matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    return (shape[0], math.prod(shape[1:])) if len(shape) > 1 else (1, math.prod(shape))


def _divisor(size: int, most: int) -> int:
    return next((side for side in range(min(most, size), 0, -1) if size % side == 0), 1)


def of_groups(values: Tensor, groups: Tensor) -> Tensor:
    """Return the sum of values over each group."""
    sums = values.new_zeros(int(groups.max()) + 1 if groups.numel() else 0)
    return sums.index_add(0, groups, values)
