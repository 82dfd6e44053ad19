"""GELU of a normal value, z Phi(z): its moments in closed form, and their derivatives.

With phi and Phi the density and distribution function of the standard normal law, expectations
of z^k Phi^a phi^b are all that mean, variance and derivatives consist of. A density times a normal
density is a normal density again, and E[z f(z)] = m E[f] + v E[f'] (Stein's lemma) takes the
powers down one at a time.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bayesify.moments.choices import chosen, or_zero, where_positive, within_reach
from bayesify.moments.gaussian_functions import cumulative, density, owen_t
from bayesify.moments.moments import precise_dtype
from bayesify.moments.own_derivatives import of_type, takes_own_derivatives

# Below these variances the difference of two moments loses more digits than its series leaves out.
_SERIES_BELOW = {torch.float32: 4e-3, torch.float64: 1e-5}


def gelu_moments(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and variance of z Phi(z), in the types of m and v.

    Below a variance of 4e-3 (1e-5 in float64) the variance is that of a series, to within 6e-8.
    Half precision is better served by `coarse_gelu`.
    """
    return _Gelu.apply(m, v) if takes_own_derivatives(m, v) else _open_form(m, v)


def _open_form(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    types = m.dtype, v.dtype
    m, v = m.to(precise_dtype(m.dtype)), v.to(precise_dtype(m.dtype))
    part = _parts(m, v)
    mean = part.mean + torch.relu(m)
    variance = part.second() - part.mean.square()
    # Cov(gelu(-z), z) = -v E[gelu'(-z)], by Stein's lemma.
    variance = variance + or_zero(part.is_right, v * (1.0 - 2.0 * part.slope))
    f1, f2, f3, _ = part.derivatives()
    small = v * (f1 * f1 + v * (0.5 * f2 * f2 + f1 * f3))
    # Not `chosen`: the series overflows where it is not meant.
    variance = torch.where(v < _SERIES_BELOW[v.dtype], small, variance).clamp_min(0.0)
    return of_type(mean, types[0]), of_type(variance, types[1])


class _Gelu(torch.autograd.Function):
    """The moments, a the mean and r the variance, and their derivatives.

    With g for the GELU, all of which a normal value is put in,

        da/dm = E[g']                  da/dv = E[g''] / 2
        dr/dm = 2 Cov(g, g')           dr/dv = E[g'^2] + Cov(g, g'')

    On the right of 0, g(z) = g(-z) + z gives them from those on the left, where nothing is large.
    """

    @staticmethod
    def forward(ctx: Any, m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(m, v)
        return _open_form(m, v)

    @staticmethod
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, of_mean: Tensor, of_variance: Tensor
    ) -> tuple[Tensor, Tensor]:
        m, v = ctx.saved_tensors
        types = m.dtype, v.dtype
        m, v = m.to(precise_dtype(m.dtype)), v.to(precise_dtype(m.dtype))
        part = _parts(m, v)
        left_m, left_v = part.variance_slopes()
        r_m = chosen(part.is_right, 2.0 * v * part.bend - left_m, left_m)
        over = 1.0 - 2.0 * part.slope - v * part.third
        r_v = left_v + or_zero(part.is_right, over)
        f1, f2, f3, f4 = part.derivatives()
        # The other derivative of the variance has no small difference of large terms.
        small = v * (2.0 * f1 * f2 + v * (2.0 * f2 * f3 + f1 * f4))
        # Not by `<`, as above: compiled code would keep the answers instead of asking again.
        r_m = torch.where(v >= _SERIES_BELOW[v.dtype], r_m, small)
        a_m = chosen(part.is_right, 1.0 - part.slope, part.slope)
        along_m = of_mean * a_m + of_variance * r_m
        along_v = of_mean * (0.5 * part.bend) + of_variance * r_v
        # Of the type they came in: compiled code would write them in float32, twice as much.
        return along_m.to(types[0]), along_v.to(types[1])


class _Parts(NamedTuple):
    """Expectations at u = -|m|."""

    is_right: Tensor
    u: Tensor
    v: Tensor
    both: Tensor
    """E[Phi^2]"""
    edge: Tensor
    """E[Phi phi]"""
    corner: Tensor
    """E[phi^2]"""
    joint: Tensor
    """E[z Phi phi]"""
    mean: Tensor
    """E[g]"""
    slope: Tensor
    """E[g']"""
    bend: Tensor
    """E[g'']"""
    third: Tensor
    """E[g''']"""

    def second(self) -> Tensor:
        """Return E[g^2]."""
        u, v = self.u, self.v
        return (u * u + v) * self.both + 2.0 * (u * (v * self.edge) + v * self.joint)

    def variance_slopes(self) -> tuple[Tensor, Tensor]:
        """Return 2 Cov(g, g') and E[g'^2] + Cov(g, g'')."""
        u, v, joint = self.u, self.v, self.joint
        centre, width = u / (1.0 + v), v / (1.0 + v)
        per_two = 1.0 / (1.0 + 2.0 * v)
        # E[z phi^2], E[z^2 phi^2]; E[z^2 Phi phi], E[z^3 Phi phi].
        corner_1 = self.corner * (u * per_two)
        corner_2 = self.corner * ((u * per_two).square() + v * per_two)
        joint_2 = centre * joint + width * (self.edge + corner_1)
        joint_3 = centre * joint_2 + width * (2.0 * joint + corner_2)
        with_slope = u * self.both + 2.0 * v * self.edge + joint_2
        along_m = 2.0 * (with_slope - self.mean * self.slope)
        slopes = self.both + 2.0 * joint + corner_2
        return along_m, slopes + 2.0 * joint - joint_3 - self.mean * self.bend

    def derivatives(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the first four derivatives of the GELU at the mean."""
        x = chosen(self.is_right, -self.u, self.u)
        bell, square = density(x), x * x
        bend, third = 2.0 - square, x * (square - 4.0)
        fourth = square * (7.0 - square) - 4.0
        return cumulative(x) + x * bell, bell * bend, bell * third, bell * fourth


def _parts(m: Tensor, v: Tensor) -> _Parts:
    total = 1.0 + v
    r1, r2 = total.sqrt(), (1.0 + 2.0 * v).sqrt()
    # All terms are 0 far out, where powers of m would overflow. 0 belongs to the left: so
    # derivatives there are those of one side, which are those of the whole.
    is_right, m = where_positive(m), within_reach(m)
    u = torch.maximum(chosen(is_right, -m, m), -40.0 * r1)
    h = u / r1
    below, bell = cumulative(h), density(h) / r1
    both = below - 2.0 * owen_t(h, 1.0 / r2)
    edge = bell * cumulative(h / r2)
    corner = torch.exp(-(u / r2).square()) / (2.0 * math.pi * r2)
    centre, width = u / total, v / total
    square = centre.square()
    return _Parts(
        is_right=is_right,
        u=u,
        v=v,
        both=both,
        edge=edge,
        corner=corner,
        joint=centre * edge + width * corner,
        mean=u * below + v * bell,
        slope=below + centre * bell,
        bend=bell * (2.0 - square - width),
        third=bell * centre * (square + 3.0 * width - 4.0),
    )
