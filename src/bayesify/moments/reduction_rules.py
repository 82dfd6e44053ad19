"""Variance, standard deviation, norms and log-sum-exp of the entries along some dimensions.

The empirical variance is a quadratic form of its entries, of which mean and variance are exact for
normal ones: with c the deviation of a mean from the mean of all D means,

    E = sum (c_i^2 + (1 - 1/D) v_i) / (D - correction)
    Var = [sum (4 c_i^2 v_i + 2 (1 - 2/D) v_i^2) + 2 (sum v_i)^2 / D^2] / (D - correction)^2.

Roots of it, and log-sum-exp, are to first order.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from bayesify.moments.activation_rules import square
from bayesify.moments.moments import Moments, precise, rule

Dims = int | tuple[int, ...] | list[int] | None


def variance_along(x: Moments, dim: Dims, correction: float, keepdim: bool) -> Moments:
    """Return the moments of the empirical variance of entries."""
    if x.variance_or_none is None:
        return Moments(torch.var(x.expected, dim, correction=correction, keepdim=keepdim))
    m, v = precise(x)
    dims = _dims(dim, x.ndim)
    number = math.prod(x.shape[axis] for axis in dims)
    deviation = (m - m.mean(dims, keepdim=True)).square()
    per = 1.0 / max(number - correction, 0.0) if number > correction else math.nan
    mean = (deviation + (1.0 - 1.0 / number) * v).sum(dims, keepdim) * per
    spread = (4.0 * deviation * v + 2.0 * (1.0 - 2.0 / number) * v.square()).sum(dims, keepdim)
    spread = spread + 2.0 * (v.sum(dims, keepdim) / number).square()
    return Moments(mean.to(x.dtype), spread.clamp_min(0.0) * per**2)


def _dims(dim: Dims, number: int) -> tuple[int, ...]:
    given = (dim,) if isinstance(dim, int) else tuple(dim or range(number))
    return tuple(axis % number for axis in given)


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
    return variance_along(x, *_arguments(*args, **kwargs))


@rule(torch.std, Tensor.std)
def _std(x: Moments, *args: Any, **kwargs: Any) -> Moments:
    return variance_along(x, *_arguments(*args, **kwargs)).sqrt()


@rule(torch.var_mean)
def _var_mean(x: Moments, *args: Any, **kwargs: Any) -> tuple[Moments, Moments]:
    dim, correction, keepdim = _arguments(*args, **kwargs)
    return variance_along(x, dim, correction, keepdim), _mean(x, dim, keepdim)


@rule(torch.std_mean)
def _std_mean(x: Moments, *args: Any, **kwargs: Any) -> tuple[Moments, Moments]:
    dim, correction, keepdim = _arguments(*args, **kwargs)
    return variance_along(x, dim, correction, keepdim).sqrt(), _mean(x, dim, keepdim)


def _mean(x: Moments, dim: Dims, keepdim: bool) -> Any:
    return x.mean(_dims(dim, x.ndim), keepdim)


@rule(torch.linalg.vector_norm)
def vector_norm(
    x: Moments, ord: float = 2, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    """Return the moments of the norm of order 1 or 2 along some dimensions."""
    if dtype is not None:
        x = x.to(dtype)
    dims = _dims(dim, x.ndim)
    if ord == 1:
        return x.abs().sum(dims, keepdim)
    if ord == 2:
        return square(x).sum(dims, keepdim).sqrt()
    raise ValueError(f"norms of moments have the order 1 or 2, got {ord!r}")


@rule(torch.norm, Tensor.norm)
def _norm(
    x: Moments, p: Any = "fro", dim: Dims = None, keepdim: bool = False, **kwargs: Any
) -> Any:
    return vector_norm(x, 2 if p in ("fro", None) else p, dim, keepdim, **kwargs)


@rule(torch.logsumexp, Tensor.logsumexp, torch.special.logsumexp)
def _logsumexp(x: Moments, dim: Dims, keepdim: bool = False) -> Moments:
    """Take the mean to second order, as softmax shares p say: log sum + sum p (1 - p) v / 2."""
    dims = _dims(dim, x.ndim)
    mean = torch.logsumexp(x.expected, dims, keepdim)
    if x.variance_or_none is None:
        return Moments(mean)
    m, v = precise(x)
    shares = (m - torch.logsumexp(m, dims, True)).exp()
    bend = 0.5 * (shares * (1.0 - shares) * v).sum(dims, keepdim)
    return Moments(mean + bend.to(mean.dtype), (shares.square() * v).sum(dims, keepdim))
