"""GELU of a normal value, g(z) = z Phi(z), for half precision, by few operations.

With phi and Phi the density and distribution function of the standard normal law, z of mean m and
variance v, and t = 1 + v, the mean and its derivatives along m are closed,

    E[g] = m Phi(h) + v b,    b = phi(h) / sqrt(t),    h = m / sqrt(t)
    E[g'] = Phi(h) + m b / t                 E[g''] = b (2 - m^2/t^2 - v/t)

and of the variance there is, with z and z' of covariance s,

    Var[g] = v E[g']^2 + int_0^v (v - s) E[g''(z) g''(z')] ds

whose integrand is a polynomial times a density. It comes of the series of v^k E[g^(k)]^2 / k!, all
of whose terms are positive: nothing cancels, however small the variance, and no function is left
that has no closed form. The substitution s = t (1 - y^2) / (1 + y^2) makes the integrand smooth
whatever v is, and four nodes sum it, with one exponential and one root each. For all digits of
float32 it would take ten or more, and far more operations than `gelu` does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bayesify.moments.gaussian_functions import coarse_tail, density
from bayesify.moments.moments import precise_dtype
from bayesify.moments.own_derivatives import of_type, takes_own_derivatives


def _rule(num_nodes: int) -> list[tuple[float, float]]:
    """Return nodes and weights of Gauss and Jacobi for int_0^1 f(x) x dx."""
    # By the matrix of the recursion (Golub and Welsch, 1969).
    n = np.arange(1.0, num_nodes)
    diagonal = np.append(1.0 / 3.0, 1.0 / ((2 * n + 1) * (2 * n + 3)))
    beside = 2 * n * (n + 1) / ((2 * n + 1) * np.sqrt((2 * n + 1) ** 2 - 1))
    matrix = np.diag(diagonal) + np.diag(beside, 1) + np.diag(beside, -1)
    nodes, vectors = np.linalg.eigh(matrix)
    weights = 0.5 * vectors[0] ** 2
    return [(0.5 + 0.5 * float(x), float(w)) for x, w in zip(nodes, weights, strict=True)]


# Of the variance they err by 2e-9 of itself for v = 0.2 and by 4e-5 for v = 1. Of large variances
# they are off where little is left of it: 0.2 % at two standard deviations below 0, 0.5 % at three,
# 1.3 % at four, 5 % at six.
NODES = _rule(4)
# Of variances up to `FEW_UP_TO` two nodes are enough: they err by 1.4e-4 of it down to m = -4, and
# below, where little is left of it, by less than 1e-9 of the largest.
FEW_NODES, FEW_UP_TO = _rule(2), 0.2


def coarse_gelu_moments(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and variance of z Phi(z) in the types of m and v.

    To 2e-4 of the largest and of themselves for v <= 1; see `NODES` for large variances.
    """
    return _CoarseGelu.apply(m, v) if takes_own_derivatives(m, v) else _open_form(m, v)


def _open_form(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    types = m.dtype, v.dtype
    m, v = m.to(precise_dtype(m.dtype)), v.to(precise_dtype(m.dtype))
    part = _parts(m, v)
    mean = part.above * part.below + v * part.bell
    variance = v * part.slope.square() + part.factor * _sum(
        [each.weight * each.polynomial() for each in part.terms]
    )
    return of_type(mean, types[0]), of_type(variance, types[1])


def coarse_gelu_gradients(
    m: Tensor, v: Tensor, of_mean: Tensor, of_variance: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the gradients of m and v, in their types.

    With a the mean and r the variance,

        da/dm = E[g']          da/dv = E[g''] / 2
        dr/dv = E[g']^2 + (d/dm)^2 r / 2

    since a derivative along v is half the second along m, of every expectation.
    """
    types = m.dtype, v.dtype
    m, v = m.to(precise_dtype(m.dtype)), v.to(precise_dtype(m.dtype))
    part = _parts(m, v)
    slope, bend = part.slope, part.bend
    square = part.u.square()
    first, second = zip(*(each.along(square) for each in part.terms), strict=True)
    r_m = 2.0 * (v * slope * bend + part.factor * part.u * _sum(first))
    r_v = slope.square() + v * (bend.square() + slope * part.third)
    r_v = r_v + part.factor * _sum(second)
    along_m = of_mean * slope + of_variance * r_m
    along_v = of_mean * (0.5 * bend) + of_variance * r_v
    # Of the type they came in: compiled code would write them in float32, twice as much.
    return along_m.to(types[0]), along_v.to(types[1])


class _CoarseGelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(m, v)
        return _open_form(m, v)

    @staticmethod
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, of_mean: Tensor, of_variance: Tensor
    ) -> tuple[Tensor, Tensor]:
        m, v = ctx.saved_tensors
        return coarse_gelu_gradients(m, v, of_mean, of_variance)


class _Term(NamedTuple):
    """What one node gives, c N e with e = exp(-beta m^2) and N a polynomial in m^2.

    N = a^2 + 2 b^2 + 4 b x, with a of degree 1 in m^2 and x in proportion to it.
    """

    weight: Tensor
    """c e"""
    beta: Tensor
    step: Tensor
    """The derivative of -2 a, and of 2 x, along m^2"""
    a: Tensor
    b: Tensor
    x: Tensor

    def polynomial(self) -> Tensor:
        """Return N."""
        return self.a.square() + self.b * (2.0 * self.b + 4.0 * self.x)

    def slope(self) -> Tensor:
        """Return the derivative of N along m^2."""
        return self.step * (2.0 * self.b - self.a)

    def along(self, square: Tensor) -> tuple[Tensor, Tensor]:
        """Return its derivative along m, over 2 m, and half its second one, given m^2."""
        slope = self.slope()
        inner = slope - self.beta * self.polynomial()
        outer = 0.5 * self.step.square() - self.beta * (slope + inner)
        return self.weight * inner, self.weight * (inner + 2.0 * square * outer)


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


def _parts(m: Tensor, v: Tensor) -> _Parts:
    per_root = (1.0 + v).rsqrt()
    per_total = per_root.square()
    furthest = 40.0 * (1.0 + v) * per_root
    above = torch.maximum(m, -furthest)
    u = torch.minimum(above, furthest)
    h = u * per_root
    bell = density(h)
    # 0 belongs to the left; `abs` would give it a slope of 0.
    tail = coarse_tail(torch.where(h > 0, h, -h), bell)
    below = torch.where(h > 0, 1.0 - tail, tail)
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
            for node, weight in NODES
        ],
    )


def _term(node_weight: float, y: Tensor, last: Tensor, u: Tensor, per_two: Tensor) -> _Term:
    """Return what the node y gives; per_two is 1 / (2 t).

    There E[g''(z) g''(z')] is a density times E[(2 - z^2) (2 - z'^2)] under another normal law, of
    mean beta m, variance 1 - q^2 g and covariance q b: q^2 (a^2 + 2 b^2 + 4 b x).
    """
    square = y.square()
    q = 1.0 + square
    inverse = 1.0 / (q * square)
    g = 0.5 * per_two * q * inverse
    x = (per_two * u).square()
    beta = per_two * q
    return _Term(
        weight=node_weight * (last + y) * torch.exp(-beta * u.square()),
        beta=beta,
        step=2.0 * per_two * beta,
        a=square * inverse + q * (g - x),
        b=(2.0 - q) * g,
        x=q * x,
    )


def _sum(terms: Sequence[Tensor]) -> Tensor:
    total = terms[0]
    for each in terms[1:]:
        total = total + each
    return total
