"""One of two numbers, entry by entry.

Compiled code chooses for nothing, and so does a GPU. A CPU that runs one operation at a time takes
a branch for each entry in `torch.where`: where signs come in no order, twenty times as long as for
a product. `torch.lerp` by a weight of 0 or 1 gives the same bits, and the same gradients, without
branches, of numbers whose difference is finite.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Its square is infinite in float32, and its double is not.
_FURTHEST = 1e30


def within_reach(x: Tensor) -> Tensor:
    """Return numbers that `chosen` can take: on a CPU those further from 0 than 1e30 are that."""
    if torch.compiler.is_compiling() or not x.is_cpu:
        return x
    return x.clamp(-_FURTHEST, _FURTHEST)


def where_positive(x: Tensor) -> Tensor:
    """Return where x > 0, for `chosen`: as truth values, or as 1 and 0."""
    if torch.compiler.is_compiling() or not x.is_cpu:
        return x > 0
    return x.detach().sign().clamp_min(0.0)


def chosen(condition: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Return the first where `where_positive` says so, and the second elsewhere."""
    if condition.dtype == torch.bool:
        return torch.where(condition, first, second)
    return torch.lerp(second, first, condition)


def or_zero(condition: Tensor, value: Tensor) -> Tensor:
    """Return the value where `where_positive` says so, and 0 elsewhere."""
    if condition.dtype == torch.bool:
        return torch.where(condition, value, 0.0)
    return value * condition
