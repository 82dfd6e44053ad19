"""Layer norm of moments, whose derivatives are known: one pass over memory back, as one forward.

With D entries in a row, r^2 = var(m) + (1 - 1/D) mean(v) + eps and h = (m - mean(m)) / r, a row has

    mean      h_i
    variance  r^-2 Q_i,   Q_i = v_i [1 - 2 (1 + h_i^2) / D] + [S0 + 2 h_i S1 + h_i^2 S2] / D

with S0, S1, S2 the means of v, h v and h^2 v: the full first-order variance, with the statistic
replaced by its expectation. Left to autograd, its gradient takes three rounds of sums over a row,
each of which waits for the one before.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from bayesify.moments.moments import Moments, precise, precise_dtype
from bayesify.moments.own_derivatives import of_type, takes_own_derivatives


def standardise(x: Moments, eps: float) -> Moments:
    """Return x minus its mean over the last dimension, over its standard deviation there."""
    m, v = precise(x)
    h, variance = _standard(m, v, _rows(m, v, eps))
    return Moments(h, variance)


def layer_norm(
    m: Tensor, v: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Moments | None:
    """Return the norm over the last dimension, times a weight plus a bias, of the types of m and v.

    None where autograd is to find derivatives, if any.
    """
    if not takes_own_derivatives(m, v, weight, bias):
        return None
    return Moments(*_LayerNorm.apply(m, v, weight, bias, eps))


class _Rows(NamedTuple):
    """Of every row, with a last dimension of 1."""

    centre: Tensor
    per_root: Tensor
    """1 / r"""
    s0: Tensor
    s1: Tensor
    s2: Tensor


def _rows(m: Tensor, v: Tensor, eps: float) -> _Rows:
    centre, s0 = m.mean(-1, keepdim=True), v.mean(-1, keepdim=True)
    c = m - centre
    power = c.square().mean(-1, keepdim=True) + (1.0 - 1.0 / m.shape[-1]) * s0 + eps
    per_root = power.rsqrt()
    h = c * per_root
    s1, s2 = (h * v).mean(-1, keepdim=True), (h.square() * v).mean(-1, keepdim=True)
    return _Rows(centre, per_root, s0, s1, s2)


def _standard(m: Tensor, v: Tensor, row: _Rows) -> tuple[Tensor, Tensor]:
    """Return h and its variance."""
    per_entry = 1.0 / m.shape[-1]
    h = (m - row.centre) * row.per_root
    own = v * (1.0 - 2.0 * per_entry * (1.0 + h.square()))
    shared = per_entry * (row.s0 + h * (2.0 * row.s1 + h * row.s2))
    # A sum of squares, multiplied out: rounding may leave it below 0.
    return h, ((own + shared) * row.per_root.square()).clamp_min(0.0)


class _LayerNorm(torch.autograd.Function):
    """y = w h + b and u = w^2 V, with V the variance of h, and derivatives.

    With q = (w / r)^2 g_u and sums over a row A_k = sum q h^k, B_k = sum q v h^k and
    C_k = sum w g_y h^k, what reaches h, other than by r, is

        H = w g_y + 2 q (S1 + h S2 - 2 v h) / D + 2 v (A1 + h A2) / D^2
        sum H = C0 + 2 (S1 A0 + S2 A1 - 2 B1 + S0 A1 + S1 A2) / D
        sum H h = C1 + 2 (S1 A1 + S2 A2 - 2 B2 + S1 A1 + S2 A2) / D
        sum q Q = B0 - 2 (B0 + B2) / D + (S0 A0 + 2 S1 A1 + S2 A2) / D

    and, with T = sum H h / 2 + sum q Q, the gradients are

        m:  [H - sum H / D - 2 T h / D] / r
        v:  q [1 - 2 (1 + h^2) / D] + (A0 + 2 h A1 + h^2 A2) / D^2 - T (1 - 1/D) / (r^2 D)
    """

    @staticmethod
    def forward(
        ctx: Any, m: Tensor, v: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> tuple[Tensor, Tensor]:
        wide, spread = m.to(precise_dtype(m.dtype)), v.to(precise_dtype(m.dtype))
        row = _rows(wide, spread, eps)
        ctx.save_for_backward(m, v, weight, *row)
        ctx.has_bias, ctx.eps = bias is not None, eps
        mean, variance = _standard(wide, spread, row)
        if weight is not None:
            mean, variance = mean * weight, variance * weight.square()
        mean = mean if bias is None else mean + bias
        return of_type(mean, m.dtype), of_type(variance, v.dtype)

    @staticmethod
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, of_mean: Tensor, of_variance: Tensor
    ) -> tuple[Tensor | None, ...]:
        m, v, weight, *saved = ctx.saved_tensors
        types = m.dtype, v.dtype
        m, v = m.to(precise_dtype(m.dtype)), v.to(precise_dtype(m.dtype))
        # A second derivative goes through the statistics.
        is_again = torch.is_grad_enabled() and not torch.compiler.is_compiling()
        row = _rows(m, v, ctx.eps) if is_again else _Rows(*saved)
        h, variance = _standard(m, v, row)
        of_mean, of_variance = of_mean.to(m.dtype), of_variance.to(m.dtype)
        along_weight = None
        along_bias = _over_rows(of_mean) if ctx.has_bias else None
        g, q = of_mean, of_variance * row.per_root.square()
        if weight is not None:
            along_weight = _over_rows(of_mean * h + 2.0 * weight * of_variance * variance)
            g, q = g * weight, q * weight.square()
        along_m, along_v = _row_gradients(g, q, h, v, row)
        return along_m.to(types[0]), along_v.to(types[1]), along_weight, along_bias, None


def _over_rows(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1]).sum(0)


def _row_gradients(g: Tensor, q: Tensor, h: Tensor, v: Tensor, row: _Rows) -> tuple[Tensor, Tensor]:
    def total(x: Tensor) -> Tensor:
        return x.sum(-1, keepdim=True)

    per_entry = 1.0 / h.shape[-1]
    _, per_root, s0, s1, s2 = row
    qh, qv = q * h, q * v
    a0, a1, a2 = total(q), total(qh), total(qh * h)
    b0, b1, b2 = total(qv), total(qv * h), total(qv * h * h)
    c0, c1 = total(g), total(g * h)
    inner = g + 2.0 * per_entry * (q * (s1 + h * (s2 - 2.0 * v)) + (per_entry * v) * (a1 + h * a2))
    sum_h = c0 + 2.0 * per_entry * (s1 * (a0 + a2) + a1 * (s0 + s2) - 2.0 * b1)
    sum_hh = c1 + 4.0 * per_entry * (s1 * a1 + s2 * a2 - b2)
    sum_q = b0 + per_entry * (s0 * a0 + 2.0 * s1 * a1 + s2 * a2 - 2.0 * (b0 + b2))
    both = 0.5 * sum_hh + sum_q
    along_m = per_root * (inner - per_entry * (sum_h + 2.0 * both * h))
    along_v = q * (1.0 - 2.0 * per_entry * (1.0 + h * h))
    along_v = along_v + per_entry**2 * (a0 + h * (2.0 * a1 + h * a2))
    return along_m, along_v - (1.0 - per_entry) * per_entry * per_root.square() * both
