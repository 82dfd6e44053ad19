"""The largest and the smallest of some entries, and of two tensors.

By the same folding as in pooling: exact for two. The smallest is the largest of the negatives.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from bayesify.moments.moments import Moments, as_moments, precise_dtype, rule
from bayesify.moments.pooling_rules import Sizes, maximum_over_last


class Extreme(NamedTuple):
    """What `torch.max(x, dim)` returns: moments, and where the mean is extreme.

    No one entry is the largest for certain; the index is that of the largest mean.
    """

    values: Moments
    indices: Tensor


@rule(torch.amax, Tensor.amax)
def amax(x: Moments, dim: Sizes = (), keepdim: bool = False) -> Moments:
    """Return the moments of the largest entry along some dimensions; none given, along all."""
    dims = [dim] if isinstance(dim, int) else list(dim)
    dims = [axis % x.ndim for axis in dims] or list(range(x.ndim))
    mean = x.expected.amax(dims, keepdim)
    if x.variance_or_none is None:
        return Moments(mean)
    others = [axis for axis in range(x.ndim) if axis not in dims]
    m, v = (part.permute(*others, *dims).flatten(len(others)) for part in x.pair())
    first, second = maximum_over_last(m.to(v.dtype), v)
    return Moments(first.to(x.dtype).view(mean.shape), second.view(mean.shape))


@rule(torch.maximum, Tensor.maximum)
def maximum(left: Any, right: Any) -> Moments:
    """Return the moments of the larger of two, entry by entry."""
    left, right = as_moments(left), as_moments(right)
    if left.is_certain and right.is_certain:
        return Moments(torch.maximum(left.expected, right.expected))
    pair = torch.stack(torch.broadcast_tensors(left.expected, right.expected), -1)
    variances = torch.stack(torch.broadcast_tensors(left.variance, right.variance), -1)
    dtype = precise_dtype(pair.dtype)
    mean, variance = maximum_over_last(pair.to(dtype), variances.to(dtype))
    return Moments(mean.to(pair.dtype), variance)


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
