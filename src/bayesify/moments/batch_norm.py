"""Batch norm: exact with fixed statistics; in training by the expected statistics of the batch.

The expected variance of a channel counts the uncertainty of its entries, P = var(m) + mean(v). Two
passes over memory forward and two back are all it takes, as the plain norm does; left to autograd
the statistics alone would take several more.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bayesify.moments.moments import (
    Moments,
    as_moments,
    mean_of,
    precise_dtype,
    rule,
    variance_of,
)
from bayesify.moments.own_derivatives import of_type, takes_own_derivatives

Statistics = tuple[Tensor, Tensor, Tensor | None]
"""Of some entries: the mean of m, the biased variance of m, and the mean of v."""


@rule(F.batch_norm)
def batch_norm(
    input: Any,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Moments:
    """Return moments over the standard deviation of their channel."""
    if is_plain(input, weight, bias):
        options = (mean_of(weight), mean_of(bias), training, momentum, eps)
        return Moments(F.batch_norm(mean_of(input), running_mean, running_var, *options))
    x = as_moments(input)
    m, v = x.expected.to(precise_dtype(x.dtype)), x.variance_or_none
    is_own = training and v is not None and is_plain(weight, bias)
    is_own = is_own and takes_own_derivatives(m, v, mean_of(weight), mean_of(bias))
    if training:
        over = (0, *range(2, x.ndim))
        count = x.shape[0] * math.prod(x.shape[2:])
        check_count("batch norm in training", count)
        found = statistics(x.detach() if is_own else x, over)
        if running_mean is not None and running_var is not None:
            track_(running_mean, running_var, found, count, momentum)
        centre, spread, uncertainty = found
        power = spread if uncertainty is None else spread + uncertainty
    else:
        assert running_mean is not None
        assert running_var is not None
        centre, power = running_mean, running_var
    inverse = (power.to(m.dtype) + eps).rsqrt()
    if is_own:
        scaling = mean_of(weight), mean_of(bias)
        return Moments(*_Normalised.apply(x.expected, v, *scaling, centre, inverse, eps))
    scale = on_channel(inverse, x)
    normal = (m - on_channel(centre.to(m.dtype), x)) * scale
    normal = Moments(normal, None if v is None else v * scale.square())
    return affine(normal, on_channel(weight, x), on_channel(bias, x), x.dtype)


class _Normalised(torch.autograd.Function):
    """y = a (m - c) + b and u = a^2 v, with a = w r and r = (P + eps)^(-1/2), and derivatives.

    With x = r (m - c), n entries in a channel, and the sums over a channel

        S1 = sum g_y    S2 = sum g_y x    S3 = sum g_u v    T = w S2 + 2 a^2 S3

    the gradients are

        m:  a (g_y - S1 / n) - r T x / n     w:  S2 + 2 w r^2 S3
        v:  a^2 g_u - r^2 T / (2 n)          b:  S1
    """

    @staticmethod
    def forward(
        ctx: Any,
        m: Tensor,
        v: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        centre: Tensor,
        inverse: Tensor,
        eps: float,
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(m, v, weight, centre, inverse)
        ctx.has_bias, ctx.eps = bias is not None, eps
        slope = on_channel(inverse if weight is None else inverse * weight, m)
        mean = (m - on_channel(centre, m)) * slope
        mean = mean if bias is None else mean + on_channel(bias, m)
        return of_type(mean, m.dtype), of_type(v * slope.square(), v.dtype)

    @staticmethod
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, of_mean: Tensor, of_variance: Tensor
    ) -> tuple[Tensor | None, ...]:
        m, v, weight, centre, inverse = ctx.saved_tensors
        over = (0, *range(2, m.ndim))
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            # A second derivative goes through the statistics, which forward found without a graph.
            centre, spread, uncertainty = statistics(Moments(m, v), over)
            assert uncertainty is not None
            inverse = (spread + uncertainty + ctx.eps).rsqrt()
        per_entry = inverse.numel() / m.numel()
        x = (m - on_channel(centre, m)) * on_channel(inverse, m)
        sum_1 = of_mean.sum(over, dtype=inverse.dtype)
        sum_2 = (of_mean * x).sum(over)
        sum_3 = (of_variance * v.to(inverse.dtype)).sum(over)
        factor = inverse.new_ones(()) if weight is None else weight
        slope = inverse * factor
        total = factor * sum_2 + 2.0 * slope.square() * sum_3
        along_m = on_channel(slope, m) * (of_mean - on_channel(sum_1 * per_entry, m))
        along_m = along_m - x * on_channel(inverse * total * per_entry, m)
        along_v = on_channel(slope.square(), m) * of_variance
        along_v = along_v - on_channel(0.5 * per_entry * inverse.square() * total, m)
        along_weight = None
        if weight is not None:
            along_weight = sum_2 + 2.0 * factor * inverse.square() * sum_3
        # Of the type they came in: compiled code would write them in float32, twice as much.
        along_m, along_v = along_m.to(m.dtype), along_v.to(v.dtype)
        along_bias = sum_1 if ctx.has_bias else None
        return along_m, along_v, along_weight, along_bias, None, None, None


def check_count(what: str, count: int) -> None:
    """Raise a ValueError where there is no variance to be found."""
    if count < 2:
        raise ValueError(f"{what} needs more than one value per channel, got {count}")


def statistics(x: Moments, over: tuple[int, ...]) -> Statistics:
    """Return the statistics of entries over some dimensions, in float32 at least."""
    spread, centre = torch.var_mean(x.expected.to(precise_dtype(x.dtype)), over, correction=0)
    v = x.variance_or_none
    return centre, spread, None if v is None else v.to(spread.dtype).mean(over)


@torch.no_grad()
def track_(
    running_mean: Tensor, running_var: Tensor, found: Statistics, count: int, momentum: float
) -> None:
    """Move running statistics, which hold the unbiased variance, towards those of `count` entries.

    Where there are several of each channel, as of the images of a batch, towards their average.
    """
    centre, spread, uncertainty = found
    power = spread * (count / (count - 1))
    if uncertainty is not None:
        power = power + uncertainty
    rows = running_mean.numel()
    running_mean.lerp_(centre.view(-1, rows).mean(0).to(running_mean.dtype), momentum)
    running_var.lerp_(power.view(-1, rows).mean(0).to(running_var.dtype), momentum)


def affine(x: Moments, weight: Any, bias: Any, dtype: torch.dtype) -> Moments:
    """Return weight * x + bias, either of which may be uncertain, with a mean of this type."""
    result: Any = x
    if weight is not None:
        result = torch.mul(result, weight)
    if bias is not None:
        result = torch.add(result, bias)
    return Moments(result.expected.to(dtype), result.variance_or_none)


def is_plain(*values: Any) -> bool:
    """Whether all of these are certain."""
    return all(variance_of(value) is None for value in values)


def on_channel(values: Any, x: Any) -> Any:
    """Return one value per channel in a shape that broadcasts with x, of shape (B, C, ...)."""
    return values if values is None or values.ndim == 0 else values.view(-1, *[1] * (x.ndim - 2))
