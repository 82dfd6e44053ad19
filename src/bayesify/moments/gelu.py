"""GELU of a normal value, g(z) = z Phi(z): its mean and variance, and their derivatives.

With phi and Phi the density and distribution function of the standard normal law, z of mean m and
variance v, and t = 1 + v, the mean and its derivatives along m are closed,

    E[g] = m Phi(h) + v b,    b = phi(h) / sqrt(t),    h = m / sqrt(t)
    E[g'] = Phi(h) + m b / t                 E[g''] = b (2 - m^2/t^2 - v/t)

and of the variance there is, with z and z' of covariance s,

    Var[g] = v E[g']^2 + int_0^v (v - s) E[g''(z) g''(z')] ds

whose integrand is a polynomial times a density. It comes of the series of v^k E[g^(k)]^2 / k!, all
of whose terms are positive: nothing cancels, however small the variance, and no function is left
that has no closed form. The substitution s = t (1 - y^2) / (1 + y^2) makes the integrand smooth
whatever v is; a few nodes sum it.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bayesify.moments.gaussian_functions import coarse_tail, cumulative, density
from bayesify.moments.moments import precise_dtype
from bayesify.moments.own_derivatives import of_type, takes_own_derivatives


def _rule(num_nodes: int, power: int) -> list[tuple[float, float]]:
    """Return nodes x^power and weights of Gauss and Jacobi for int_0^1 f(u) u du, u = x^power."""
    # Of weight x^k, k = 2 power - 1, by the matrix of its recursion (Golub and Welsch, 1969).
    k, n = 2 * power - 1, np.arange(1.0, num_nodes)
    diagonal = np.append(k / (k + 2), k * k / ((2 * n + k) * (2 * n + k + 2)))
    beside = 2 * n * (n + k) / ((2 * n + k) * np.sqrt((2 * n + k) ** 2 - 1))
    nodes, vectors = np.linalg.eigh(
        np.diag(diagonal) + np.diag(beside, 1) + np.diag(beside, -1), UPLO="U"
    )
    weights = vectors[0] ** 2 * power / (k + 1)
    return [(float(x) ** power, float(w)) for x, w in zip(0.5 + 0.5 * nodes, weights, strict=True)]


# Squares of nodes lie closer together at 0, where the integrand changes fastest if v is large: of
# the variance ten err by 3e-7 at most, fourteen by 2e-8 (by 6e-10 up to v = 100). Of four nodes the
# error is 2e-9 for v = 0.2, 4e-5 for v = 1, and 1 % at the lower end of large variances, for where
# half precision is all there is.
FINE = {torch.float32: _rule(10, 2), torch.float64: _rule(14, 2)}
COARSE = _rule(4, 1)


def gelu_moments(m: Tensor, v: Tensor, *, is_coarse: bool = False) -> tuple[Tensor, Tensor]:
    """Return mean and variance of z Phi(z), in the types of m and v.

    To all digits, or, where that is enough, as it is of values in half precision, to three or more.
    """
    own = takes_own_derivatives(m, v)
    return _Gelu.apply(m, v, is_coarse) if own else _open_form(m, v, is_coarse=is_coarse)


def _open_form(m: Tensor, v: Tensor, *, is_coarse: bool) -> tuple[Tensor, Tensor]:
    types = m.dtype, v.dtype
    m, v = m.to(precise_dtype(m.dtype)), v.to(precise_dtype(m.dtype))
    part = _parts(m, v, is_coarse=is_coarse)
    mean = part.above * part.below + v * part.bell
    variance = v * part.slope.square() + part.factor * _sum([each.value for each in part.terms])
    return of_type(mean, types[0]), of_type(variance, types[1])


class _Gelu(torch.autograd.Function):
    """The moments, a the mean and r the variance, and their derivatives.

        da/dm = E[g']          da/dv = E[g''] / 2
        dr/dv = E[g']^2 + (d/dm)^2 r / 2

    since a derivative along v is half the second along m, of every expectation.
    """

    @staticmethod
    def forward(ctx: Any, m: Tensor, v: Tensor, is_coarse: bool) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(m, v)
        ctx.is_coarse = is_coarse
        return _open_form(m, v, is_coarse=is_coarse)

    @staticmethod
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, of_mean: Tensor, of_variance: Tensor
    ) -> tuple[Tensor, Tensor, None]:
        m, v = ctx.saved_tensors
        types = m.dtype, v.dtype
        m, v = m.to(precise_dtype(m.dtype)), v.to(precise_dtype(m.dtype))
        part = _parts(m, v, is_coarse=ctx.is_coarse)
        slope, bend = part.slope, part.bend
        r_m = 2.0 * v * slope * bend + part.factor * (
            2.0 * part.u * _sum([each.along_m for each in part.terms])
        )
        r_v = slope.square() + v * (bend.square() + slope * part.third)
        r_v = r_v + part.factor * _sum([each.along_v(part.u.square()) for each in part.terms])
        along_m = of_mean * slope + of_variance * r_m
        along_v = of_mean * (0.5 * bend) + of_variance * r_v
        # Of the type they came in: compiled code would write them in float32, twice as much.
        return along_m.to(types[0]), along_v.to(types[1]), None


class _Term(NamedTuple):
    """What one node gives, c N e with e = exp(-beta m^2) and N a polynomial in m^2."""

    weight: Tensor
    """c e"""
    beta: Tensor
    polynomial: Tensor
    """N"""
    slope: Tensor
    """The derivative of N along m^2"""
    step: Tensor
    """The root of twice its second"""

    @property
    def value(self) -> Tensor:
        """Return c N e."""
        return self.weight * self.polynomial

    @property
    def along_m(self) -> Tensor:
        """Return its derivative along m, over 2 m."""
        return self.weight * self._inner

    def along_v(self, square: Tensor) -> Tensor:
        """Return half its second derivative along m, given m^2."""
        inner = self._inner
        outer = 0.5 * self.step.square() - self.beta * (self.slope + inner)
        return self.weight * (inner + 2.0 * square * outer)

    @property
    def _inner(self) -> Tensor:
        return self.slope - self.beta * self.polynomial


class _Parts(NamedTuple):
    above: Tensor
    """m, no further below 0 than matters"""
    u: Tensor
    """m, no further from 0 than matters: all terms are 0 there, where its powers would overflow"""
    below: Tensor
    """Phi(h)"""
    bell: Tensor
    """b"""
    slope: Tensor
    """E[g']"""
    bend: Tensor
    """E[g'']"""
    third: Tensor
    """E[g''']"""
    factor: Tensor
    """Of the integral."""
    terms: list[_Term]


def _parts(m: Tensor, v: Tensor, *, is_coarse: bool) -> _Parts:
    per_root = (1.0 + v).rsqrt()
    per_total = per_root.square()
    furthest = 40.0 * (1.0 + v) * per_root
    above = torch.maximum(m, -furthest)
    u = torch.minimum(above, furthest)
    h = u * per_root
    bell = density(h)
    if is_coarse:
        # 0 belongs to the left; `abs` would give it a slope of 0.
        tail = coarse_tail(torch.where(h > 0, h, -h), bell)
        below = torch.where(h > 0, 1.0 - tail, tail)
    else:
        below = cumulative(h)
    bell = bell * per_root
    centre, width = u * per_total, v * per_total
    square = centre.square()
    last = (1.0 + 2.0 * v).rsqrt()
    root = 2.0 * v * last / (1.0 + last)
    return _Parts(
        above=above,
        u=u,
        below=below,
        bell=bell,
        slope=below + centre * bell,
        bend=bell * (2.0 - square - width),
        third=bell * centre * (square + 3.0 * width - 4.0),
        factor=root.square() * (1.0 / math.pi),
        # From 1, where s = 0, to `last`, where s = v, less by root * last.
        terms=[
            _term(weight, last + node * (root * last), last, u, 0.5 * per_total)
            for node, weight in (COARSE if is_coarse else FINE[v.dtype])
        ],
    )


def _term(node_weight: float, y: Tensor, last: Tensor, u: Tensor, per_two: Tensor) -> _Term:
    """Return what the node y gives; per_two is 1 / (2 t).

    There E[g''(z) g''(z')] is a density times E[(2 - z^2) (2 - z'^2)] under another normal law, of
    mean beta m, variance 1 - q^2 g and covariance q b: q^2 (a^2 + 2 b^2 + 4 q b (m / 2 t)^2).
    """
    square = y.square()
    q = 1.0 + square
    inverse = 1.0 / (q * square)
    g = 0.5 * per_two * q * inverse
    x = (per_two * u).square()
    a, b = square * inverse + q * (g - x), (2.0 - q) * g
    beta = per_two * q
    step = 2.0 * per_two * beta
    return _Term(
        weight=node_weight * (last + y) * torch.exp(-beta * u.square()),
        beta=beta,
        polynomial=a.square() + b * (2.0 * b + 4.0 * (q * x)),
        slope=step * (2.0 * b - a),
        step=step,
    )


def _sum(terms: list[Tensor]) -> Tensor:
    total = terms[0]
    for each in terms[1:]:
        total = total + each
    return total
