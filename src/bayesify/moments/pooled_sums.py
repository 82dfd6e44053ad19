"""The sums over sources of attention by pooled rules, in torch's own operations."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bayesify.moments.moments import precise_dtype


def total_spread(
    p: Tensor, values: Tensor, scores: Tensor, value_spread: Tensor, noise: float = 0.0
) -> Tensor:
    """Return sum_j u_ij vv_j + sum_j p_ij^2 t_ij |v_j - o_i|^2, with D vv, of each target.

    Args:
        p: Weights of (..., targets, sources).
        values: Of (..., sources, features).
        scores: Their variances, t.
        value_spread: D vv.
        noise: What dropout of weights adds to their squares, as a share of them.
    """
    # A shift of all values changes nothing here, and what follows cancels less without it.
    middle = values.mean(-2, keepdim=True)
    centred = values - middle
    attended = p @ centred
    sizes = centred.square().sum(-1)
    around = sizes[..., None, :] - 2.0 * (attended @ centred.mT)
    around = (around + attended.square().sum(-1, keepdim=True)).clamp_min(0.0)
    second = p.square() * (1.0 + (1.0 - p) * scores)
    value_spread = value_spread[..., None, :]
    total = second * value_spread + p.square() * scores * around
    if noise:
        whole = value_spread + values.square().sum(-1)[..., None, :]
        total = total + noise * second * whole
    return total.sum(-1)


def attended_and_total(
    q: Tensor, k: Tensor, v: Tensor, numbers: Sequence[Tensor], scale: float
) -> tuple[Tensor, Tensor]:
    """Return attended values and `total_spread`.

    Args:
        q: Queries, of (batch, heads, targets, features).
        k: Keys, of (batch, heads, sources, features).
        v: Values, of the shape of keys.
        numbers: x and y of targets, a, b and c of sources: a score has the variance
            x_i a_j + y_i b_j, a value c_j over all of its features.
        scale: Factor of the scores.
    """
    x, y, a, b, c = numbers
    scores = torch.matmul(q, k.mT) * scale
    p = torch.softmax(scores.to(precise_dtype(scores.dtype)), -1)
    spread = x[..., None] * a[..., None, :] + y[..., None] * b[..., None, :]
    return torch.matmul(p.to(v.dtype), v), total_spread(p, v.to(p.dtype), spread, c)
