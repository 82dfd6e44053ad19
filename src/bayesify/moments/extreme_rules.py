"""The largest and the smallest of some entries, and of two tensors.

By the same folding as in pooling: exact for two. The smallest is the largest of the negatives.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from bayesify.moments.moments import Moments, as_moments, precise, rule
from bayesify.moments.pooling_rules import Sizes, maximum_over_last
from bayesify.moments.reduction_rules import axes_of


class Extreme(NamedTuple):
    """What `torch.max(x, dim)` returns: moments, and where the mean is extreme.

    No one entry is the largest for certain; the index is that of the largest mean.
    """

    values: Moments
    indices: Tensor


@rule(torch.amax, Tensor.amax)
def amax(x: Moments, dim: Sizes = (), keepdim: bool = False) -> Moments:
    """Return the moments of the largest entry along some dimensions; none given, along all."""
    dims = axes_of(dim, x.ndim)
    mean = x.expected.amax(dims, keepdim)
    if x.variance_or_none is None:
        return Moments(mean)
    if x.ndim == 0:
        return x
    others = [axis for axis in range(x.ndim) if axis not in dims]
    m, v = (part.permute(*others, *dims).flatten(len(others)) for part in precise(x))
    first, second = maximum_over_last(m, v)
    return Moments(first.to(x.dtype).view(mean.shape), second.view(mean.shape))


@rule(torch.maximum, Tensor.maximum)
def maximum(left: Any, right: Any) -> Moments:
    """Return the moments of the larger of two, entry by entry."""
    dtype = left.dtype if isinstance(left, Moments) else right.dtype
    left, right = (as_moments(each if _is_real(each) else each.to(dtype)) for each in (left, right))
    if left.is_certain and right.is_certain:
        return Moments(torch.maximum(left.expected, right.expected))
    pairs = zip(precise(left), precise(right), strict=True)
    both = [torch.stack(torch.broadcast_tensors(*pair), -1) for pair in pairs]
    mean, variance = maximum_over_last(both[0], both[1])
    return Moments(mean.to(torch.promote_types(left.dtype, right.dtype)), variance)


def _is_real(value: Any) -> bool:
    return isinstance(value, Moments) or value.is_floating_point()


@rule(torch.amin, Tensor.amin)
def amin(x: Moments, dim: Sizes = (), keepdim: bool = False) -> Moments:
    """Return the moments of the smallest entry along some dimensions; none given, along all."""
    return _negative(amax(_negative(x), dim, keepdim))


@rule(torch.minimum, Tensor.minimum)
def minimum(left: Any, right: Any) -> Moments:
    """Return the moments of the smaller of two, entry by entry."""
    return _negative(maximum(_negative(as_moments(left)), _negative(as_moments(right))))


@rule(torch.max, Tensor.max)
def _max(x: Any, dim: Any = None, keepdim: bool = False) -> Moments | Extreme:
    if isinstance(dim, (Tensor, Moments)):
        return maximum(x, dim)
    if dim is None:
        return amax(x)
    return Extreme(amax(x, dim, keepdim), x.expected.argmax(dim, keepdim))


@rule(torch.min, Tensor.min)
def _min(x: Any, dim: Any = None, keepdim: bool = False) -> Moments | Extreme:
    if isinstance(dim, (Tensor, Moments)):
        return minimum(x, dim)
    if dim is None:
        return amin(x)
    return Extreme(amin(x, dim, keepdim), x.expected.argmin(dim, keepdim))


def _negative(x: Moments) -> Moments:
    return Moments(-x.expected, x.variance_or_none)
