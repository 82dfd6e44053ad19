"""Variance, standard deviation, norms and log-sum-exp of the entries along some dimensions.

The empirical variance is a quadratic form of its entries, of which mean and variance are exact for
normal ones: with c the deviation of a mean from the mean of all D means,

    E = sum (c_i^2 + (1 - 1/D) v_i) / (D - correction)
    Var = [sum (4 c_i^2 v_i + 2 (1 - 2/D) v_i^2) + 2 (sum v_i)^2 / D^2] / (D - correction)^2.

Roots of it, and log-sum-exp, are to first order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bayesify.moments.activation_rules import square
from bayesify.moments.moments import Moments, precise, precise_dtype, rule

Dims = int | Sequence[int] | None


def variance_along(x: Moments, dim: Dims, correction: float, keepdim: bool) -> Moments:
    """Return the moments of the empirical variance of entries, in float32 at least."""
    m, v = precise(x)
    dims = axes_of(dim, x.ndim)
    if x.variance_or_none is None:
        return Moments(torch.var(m, dims, correction=correction, keepdim=keepdim))
    number = math.prod(x.shape[axis] for axis in dims if x.ndim)
    share = 1.0 / max(number, 1)
    per = 1.0 / (number - correction) if number > correction else math.nan
    deviation = (m - m.mean(dims, keepdim=True)).square()
    mean = (deviation + (1.0 - share) * v).sum(dims, keepdim) * per
    spread = (4.0 * deviation * v + 2.0 * (1.0 - 2.0 * share) * v.square()).sum(dims, keepdim)
    spread = spread + 2.0 * (v.sum(dims, keepdim) * share).square()
    return Moments(mean, spread.clamp_min(0.0) * per**2)


def axes_of(dim: Dims, num_axes: int) -> tuple[int, ...]:
    """Return axes counted from the first: those given, or all. A lone number has one."""
    given = (dim,) if isinstance(dim, int) else tuple(dim or range(num_axes))
    most = max(num_axes, 1)
    if wrong := [axis for axis in given if not -most <= axis < most]:
        raise IndexError(f"dim must be in {-most} to {most - 1}, got {wrong[0]}")
    return tuple(axis % most for axis in given)


def _arguments(
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> tuple[Dims, float, bool]:
    """Return (dim, correction, keepdim) of any of torch's forms."""
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    if correction is None:
        correction = 1.0 if unbiased is None or unbiased else 0.0
    return dim, correction, keepdim


@rule(torch.var, Tensor.var)
def _var(x: Moments, *args: Any, **kwargs: Any) -> Moments:
    return variance_along(x, *_arguments(*args, **kwargs)).to(x.dtype)


@rule(torch.std, Tensor.std)
def _std(x: Moments, *args: Any, **kwargs: Any) -> Moments:
    # The root first: a variance may be beyond half precision where its root is not.
    return variance_along(x, *_arguments(*args, **kwargs)).sqrt().to(x.dtype)


@rule(torch.var_mean)
def _var_mean(x: Moments, *args: Any, **kwargs: Any) -> tuple[Moments, Moments]:
    return _var(x, *args, **kwargs), _mean(x, *args, **kwargs)


@rule(torch.std_mean)
def _std_mean(x: Moments, *args: Any, **kwargs: Any) -> tuple[Moments, Moments]:
    return _std(x, *args, **kwargs), _mean(x, *args, **kwargs)


def _mean(x: Moments, *args: Any, **kwargs: Any) -> Any:
    dim, _, keepdim = _arguments(*args, **kwargs)
    return x.mean(axes_of(dim, x.ndim), keepdim)


@rule(torch.linalg.vector_norm)
def vector_norm(
    x: Moments, ord: float = 2, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    """Return the moments of the norm of order 1 or 2 along some dimensions."""
    dtype = x.dtype if dtype is None else dtype
    # Half precision has no room for squares.
    x, dims = x.to(precise_dtype(dtype)), axes_of(dim, x.ndim)
    if ord == 1:
        return x.abs().sum(dims, keepdim).to(dtype)
    if ord == 2:
        return square(x).sum(dims, keepdim).sqrt().to(dtype)
    raise ValueError(f"norms of moments have the order 1 or 2, got {ord!r}")


@rule(torch.norm, Tensor.norm)
def _norm(
    x: Moments,
    p: Any = "fro",
    dim: Dims = None,
    keepdim: bool = False,
    out: None = None,
    dtype: Any = None,
) -> Any:
    if out is not None:
        raise ValueError("out must be None for moments: there are two tensors to write")
    return vector_norm(x, 2 if p in ("fro", None) else p, dim, keepdim, dtype=dtype)


@rule(torch.logsumexp, Tensor.logsumexp, torch.special.logsumexp)
def _logsumexp(x: Moments, dim: Dims, keepdim: bool = False) -> Moments:
    """Take the mean to second order, as softmax shares p say: log sum + sum p (1 - p) v / 2."""
    dims = axes_of(dim, x.ndim)
    mean = torch.logsumexp(x.expected, dims, keepdim)
    if x.variance_or_none is None:
        return Moments(mean)
    m, v = precise(x)
    # Where all are -inf none has a share.
    shares = (m - torch.logsumexp(m, dims, True).clamp_min(torch.finfo(m.dtype).min)).exp()
    bend = 0.5 * (shares * (1.0 - shares) * v).sum(dims, keepdim)
    return Moments(mean + bend.to(mean.dtype), (shares.square() * v).sum(dims, keepdim))
