"""Softmax and its logarithm to first order, without the cancellation of a confident class.

With p = softmax(m) the Jacobian of the softmax is diag(p) - p p^T, that of its logarithm
I - 1 p^T; the variance is the squared Jacobian times v, in a number of operations linear in the
number of classes. Once the largest p is near 1, 1 - p has no digits left in float32: the largest
class k is treated apart, by q = sum of the others. The mean is that of the plain function.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from bayesify.moments.moments import Moments, precise_dtype, rule

_STACK_LEVEL = 3


@rule(F.softmax)
def _softmax(
    x: Moments,
    dim: int | None = None,
    _stacklevel: int = _STACK_LEVEL,
    dtype: torch.dtype | None = None,
) -> Moments:
    del _stacklevel
    return softmax(x, _default_dim(x) if dim is None else dim, dtype)


@rule(torch.softmax, torch.Tensor.softmax)
def softmax(x: Moments, dim: int, dtype: torch.dtype | None = None) -> Moments:
    """Return the moments of the softmax along a dimension."""
    mean = torch.softmax(x.expected, dim, dtype)
    v = x.variance_or_none
    if v is None:
        return Moments(mean)
    p, is_largest, others, rest = _parts(x, v, dim)
    largest_share = torch.where(is_largest, p, 0.0)
    spread = rest + (largest_share.square() * v).sum(dim, keepdim=True)
    usual = p.square() * ((1.0 - 2.0 * p).clamp_min(0.0) * v + spread)
    confident = p.square() * (others.square() * v + rest)
    return Moments(mean, torch.where(is_largest, confident, usual))


@rule(F.log_softmax)
def _log_softmax(
    x: Moments,
    dim: int | None = None,
    _stacklevel: int = _STACK_LEVEL,
    dtype: torch.dtype | None = None,
) -> Moments:
    del _stacklevel
    return log_softmax(x, _default_dim(x) if dim is None else dim, dtype)


@rule(torch.log_softmax, torch.Tensor.log_softmax)
def log_softmax(x: Moments, dim: int, dtype: torch.dtype | None = None) -> Moments:
    """Return the moments of the logarithm of the softmax along a dimension."""
    mean = torch.log_softmax(x.expected, dim, dtype)
    v = x.variance_or_none
    if v is None:
        return Moments(mean)
    p, is_largest, others, rest = _parts(x, v, dim)
    spread = rest + (torch.where(is_largest, p, 0.0).square() * v).sum(dim, keepdim=True)
    usual = (1.0 - 2.0 * p).clamp_min(0.0) * v + spread
    return Moments(mean, torch.where(is_largest, others.square() * v + rest, usual))


def _parts(x: Moments, v: Tensor, dim: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return p, where it is largest, and over the other classes the sums of p and of p^2 v."""
    p = torch.softmax(x.expected.to(precise_dtype(x.dtype)), dim)
    places = torch.arange(p.shape[dim], device=p.device).view(
        [-1 if axis == dim % p.ndim else 1 for axis in range(p.ndim)]
    )
    is_largest = places == p.argmax(dim, keepdim=True)
    other = torch.where(is_largest, 0.0, p)
    rest = (other.square() * v).sum(dim, keepdim=True)
    return p, is_largest, other.sum(dim, keepdim=True), rest


def _default_dim(x: Moments) -> int:
    # As torch does where no dimension is given.
    return 0 if x.ndim in (0, 1, 3) else 1
