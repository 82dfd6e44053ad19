"""A normal value cut off at 0, and the larger of two: moments, and their derivatives.

The larger of two is the second plus what the first has above it, so one set of parts serves both.
Every entry of a training step by moments passes here. Derivatives are therefore given in closed
form: backward takes one error function and one exponential, as forward does, where those of
the formulas term by term would take several.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from bayesify.moments.choices import chosen, or_zero, where_positive, within_reach
from bayesify.moments.gaussian_functions import (
    LEAST_VARIANCE,
    coarse_tail,
    coarse_tail_mean,
    cumulative,
    density,
)
from bayesify.moments.moments import precise_dtype
from bayesify.moments.own_derivatives import (
    has_no_other_derivatives,
    of_type,
    takes_own_derivatives,
)

# Over the least standard deviation there is, still a number of float32.
_FURTHEST = 1e30


def rectified_moments(
    m: Tensor, v: Tensor, slope: float | Tensor = 0.0, *, is_coarse: bool = False
) -> tuple[Tensor, Tensor]:
    """Return mean and variance of a leaky ReLU of a normal value; slope 0 is ReLU.

    Exactly, or where that is enough, as it is of values in half precision, the mean to 1e-4 of
    itself and the variance to 1e-3, to 6e-3 in the far lower tail.
    """
    is_relu = isinstance(slope, float) and slope == 0.0
    if is_relu and takes_own_derivatives(m, v):
        return _Rectified.apply(m, v, is_coarse)
    return _rectified(m, v, slope, is_coarse=is_coarse, is_derived=True)


def _rectified(
    m: Tensor, v: Tensor, slope: float | Tensor, *, is_coarse: bool, is_derived: bool
) -> tuple[Tensor, Tensor]:
    types = m.dtype, v.dtype
    m, v = m.to(precise_dtype(m.dtype)), v.to(precise_dtype(m.dtype))
    part = _parts(m, v, is_coarse=is_coarse, is_derived=is_derived)
    ratio = (part.share - (part.x + part.g) * part.g).clamp_min(0.0)
    # `v / s` and not s: what is certain has no excess.
    above, excess = torch.relu(m), v * part.per_s * part.g
    if isinstance(slope, float) and slope == 0.0:
        return of_type(above + excess, types[0]), of_type(v * ratio, types[1])
    rest = 1.0 - slope
    ratio = slope**2 + 2.0 * slope * rest * part.share + rest**2 * ratio
    mean = above + slope * m.clamp_max(0.0) + rest * excess
    return of_type(mean, types[0]), of_type(v * ratio.clamp_min(0.0), types[1])


class _Rectified(torch.autograd.Function):
    """The ReLU's moments and their derivatives.

    With t = m / s, a the mean and r the variance,

        da/dm = Phi(t)             da/dv = phi(t) / (2 s)
        dr/dm = 2 a Phi(-t)        dr/dv = Phi(t) - phi(t) a / s
    """

    @staticmethod
    def forward(ctx: Any, m: Tensor, v: Tensor, is_coarse: bool) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(m, v)
        ctx.is_coarse = is_coarse
        return _rectified(m, v, 0.0, is_coarse=is_coarse, is_derived=not _is_compiled())

    @staticmethod
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, of_mean: Tensor, of_variance: Tensor
    ) -> tuple[Tensor, Tensor, None]:
        m, v = ctx.saved_tensors
        types = m.dtype, v.dtype
        m, v = m.to(precise_dtype(m.dtype)), v.to(precise_dtype(m.dtype))
        part = _parts(
            m, v, is_coarse=ctx.is_coarse, is_derived=torch.is_grad_enabled() or not _is_compiled()
        )
        scaled = or_zero(part.is_right, part.x) + part.g
        along_m = of_mean * part.share + of_variance * (2.0 * v * part.per_s * scaled * part.rest)
        slope = part.share - scaled * part.bell
        along_v = of_mean * (0.5 * part.bell * part.per_s) + of_variance * slope
        # Of the type they came in: compiled code would write them in float32, twice as much.
        return along_m.to(types[0]), along_v.to(types[1]), None


def maximum_moments(
    first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """Return mean and variance of the larger of two independent normal values, exactly.

    Reference: Clark (1961), eq. 2 and 3.
    """
    m1, v1, m2, v2 = torch.broadcast_tensors(*first, *second)
    if takes_own_derivatives(m1, v1, m2, v2) or _is_plain(m1):
        return _Maximum.apply(m1, v1, m2, v2)
    return _maximum(m1, v1, m2, v2, is_derived=True, is_open=True)


def _maximum(
    m1: Tensor, v1: Tensor, m2: Tensor, v2: Tensor, *, is_derived: bool, is_open: bool = False
) -> tuple[Tensor, Tensor]:
    total = v1 + v2
    part = _parts(_difference(m1, m2), total, is_derived=is_derived)
    # total / s is s, and 0 where both are certain.
    # Not `chosen`: a mask may have made one of them -inf. Where derivatives are taken of this, no
    # `maximum` either: of equal means it has others.
    if is_open or part.is_right.dtype == torch.bool:
        larger = torch.where(part.is_right.bool(), m1, m2)
    else:
        larger = torch.maximum(m1, m2)
    mean = larger + total * part.per_s * part.g
    # The last factors first: far apart x is huge and g is 0.
    variance = v1 * part.share + v2 * part.rest - total * ((part.x + part.g) * part.g)
    return mean, variance.clamp_min(0.0)


class _Maximum(torch.autograd.Function):
    """The moments of the larger of two, a its mean and r its variance, and their derivatives.

    With s^2 = v1 + v2, t = (m1 - m2) / s and c = (m1 v2 + m2 v1) / s^2, where the two are equal,

        da/dm1 = Phi(t)                                 da/dv1 = phi(t) / (2 s)
        dr/dm1 = 2 (m1 - a) Phi(t) + 2 v1 phi(t) / s    dr/dv1 = Phi(t) + phi(t) (c - a) / s

    and those of the second with -t.
    """

    @staticmethod
    def forward(ctx: Any, m1: Tensor, v1: Tensor, m2: Tensor, v2: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(m1, v1, m2, v2)
        return _maximum(m1, v1, m2, v2, is_derived=not _is_compiled())

    @staticmethod
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, of_mean: Tensor, of_variance: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        m1, v1, m2, v2 = ctx.saved_tensors
        total = v1 + v2
        part = _parts(
            _difference(m1, m2), total, is_derived=torch.is_grad_enabled() or not _is_compiled()
        )
        # (m1 - a) / s and (m2 - a) / s; whichever mean is larger, only g is missing to it.
        both = part.x + part.g
        down1 = -chosen(part.is_right, part.g, both)
        down2 = -chosen(part.is_right, both, part.g)
        bell, per_variance = part.bell * part.per_s, part.per_s.square()
        share1, share2 = v1 * per_variance, v2 * per_variance
        to_mean = total * part.per_s
        along_m1 = of_mean * part.share + of_variance * (
            2.0 * (to_mean * down1 * part.share + v1 * bell)
        )
        along_m2 = of_mean * part.rest + of_variance * (
            2.0 * (to_mean * down2 * part.rest + v2 * bell)
        )
        at_equal = part.bell * (share2 * down1 + share1 * down2)
        along_both = of_mean * (0.5 * bell) + of_variance * at_equal
        along_v1 = along_both + of_variance * part.share
        return along_m1, along_v1, along_m2, along_both + of_variance * part.rest


def ordered(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    """Return mean and variance of the normal value with the larger mean, then of the other.

    Means that are equal stay in their places.
    """
    m1, v1, m2, v2 = torch.broadcast_tensors(*first, *second)
    if _is_plain(m1) and m1.dtype == v1.dtype == m2.dtype == v2.dtype:
        return _Ordered.apply(m1, v1, m2, v2)  # pyright: ignore[reportReturnType]
    stays = (m1 >= m2).detach()
    pairs = (m1, m2), (v1, v2), (m2, m1), (v2, v1)
    return tuple(torch.where(stays, one, other) for one, other in pairs)


class _Ordered(torch.autograd.Function):
    """Two pairs in descending order of their means, without a branch for each entry."""

    @staticmethod
    def forward(
        ctx: Any, m1: Tensor, v1: Tensor, m2: Tensor, v2: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        moves = where_positive(m2 - m1)
        ctx.save_for_backward(moves)
        variances = chosen(moves, v2, v1), chosen(moves, v1, v2)
        # Not `chosen`: a mask may have made one of them -inf.
        return torch.maximum(m1, m2), variances[0], torch.minimum(m1, m2), variances[1]

    @staticmethod
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, of_larger: Tensor, of_its: Tensor, of_smaller: Tensor, of_other: Tensor
    ) -> tuple[Tensor, ...]:
        (moves,) = ctx.saved_tensors
        pairs = (of_smaller, of_larger), (of_other, of_its)
        to_first = [chosen(moves, down, up) for down, up in pairs]
        to_second = [chosen(moves, up, down) for down, up in pairs]
        return to_first[0], to_first[1], to_second[0], to_second[1]


def _is_plain(x: Tensor) -> bool:
    """Whether a CPU does one operation at a time, with the derivatives of a Function or none."""
    return x.is_cpu and has_no_other_derivatives() and not torch.compiler.is_compiling()


def _difference(first: Tensor, second: Tensor) -> Tensor:
    """Return a finite difference: of two entries that a mask has made -inf too."""
    return first.clamp(-_FURTHEST, _FURTHEST) - second.clamp(-_FURTHEST, _FURTHEST)


class _Parts(NamedTuple):
    per_s: Tensor
    """1 / s, which takes no division and no root of its own."""
    is_right: Tensor
    """Where t > 0, for `chosen`."""
    x: Tensor
    """|t|"""
    bell: Tensor
    """phi(t)"""
    share: Tensor
    """Phi(t)"""
    rest: Tensor
    """Phi(-t)"""
    g: Tensor
    """E[max(z - |t|, 0)]"""


def _is_compiled() -> bool:
    """Whether this is compiled, with the derivatives given here and no others.

    Exported code, which has derivatives where dynamo had no part in it, is derived term by term.
    `is_exporting` does not tell: compiled by torch 2.11 it is true of all code.
    """
    return torch.compiler.is_dynamo_compiling()


def _parts(m: Tensor, v: Tensor, *, is_coarse: bool = False, is_derived: bool) -> _Parts:
    per_s = v.clamp_min(LEAST_VARIANCE).rsqrt()
    t = within_reach(m * per_s)
    # t = 0 belongs to the left in all that follows: so derivatives there are those of one side,
    # which are those of the whole. `abs` would give a slope of 0. Where none is taken it is better:
    # the compiler writes t out wherever x is read, and then once and not three times.
    is_right = where_positive(t)
    x = chosen(is_right, t, -t) if is_derived else t.abs()
    bell = density(x)
    if is_coarse:
        # Two polynomials take a GPU less time than the error function.
        tail, g = coarse_tail(x, bell), coarse_tail_mean(x, bell)
    else:
        tail = cumulative(-x)
        g = (bell - x * tail).clamp_min(0.0)
    # One tail gives both sides, each with all its digits.
    other = 1.0 - tail
    share, rest = chosen(is_right, other, tail), chosen(is_right, tail, other)
    return _Parts(per_s, is_right, x, bell, share, rest, g)
