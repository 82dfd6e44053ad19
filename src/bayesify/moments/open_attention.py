"""Attended values by exact rules, in torch's own operations.

Queries, keys and values are taken as independent of one another, and tokens too, though one
input may have made them all. The attention weights of one query are not: they add to one, so a
change of a score moves the output only by how far that value lies from the mean of all, and a
change of a query moves all of its scores. To first order in the scores, with p the weights,
k' = p k and o = p v the means over sources,

    a_ij = scale^2 sum_e (q_ie^2 + v_q,ie) v_k,je    d_ij = scale^2 sum_e v_q,ie (k_je - k'_ie)^2
    E[p_ij^2] = p_ij^2 [1 + d_ij + (1 - 2 p_ij) a_ij + sum_l p_il^2 a_il]
    variance_id = sum_j E[p_ij^2] v_v,jd + sum_j p_ij^2 (a_ij + d_ij) (v_jd - o_id)^2

One term of the last line is not exact: d_ij, the noise of a query, is taken there as if each
source had its own. Together they would give scale^2 sum_e v_q,ie [sum_j p_ij (k_je - k'_ie)
(v_jd - o_id)]^2, at as many times the cost as a head has features. Of many sources whose keys and
values have nothing to do with one another that comes to the same on the whole, single outputs
apart; where values follow keys it is too narrow, by a factor of three with values equal to keys.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bayesify.moments.moments import Moments, mean_of, precise_dtype
from bayesify.moments.products import (
    full_precision,
    product_dtype,
    product_precision,
    second_moment,
)


def attend_openly(
    query: Moments,
    key: Moments,
    value: Moments,
    mask: Tensor | Moments | None,
    dropout: float,
    scale: float,
) -> Moments:
    """Return attended values by exact rules, in torch's own operations."""
    p, _ = attention_shares(query, key, None if mask is None else mean_of(mask), scale)
    mean = torch.matmul(p.to(value.dtype), value.expected)
    with full_precision(mean):
        by_key, by_query = _score_variances(query, key, p, scale, mean)
        if isinstance(mask, Moments):
            # What is added to a score is its own, as the noise of its key is.
            by_key = by_key + mask.variance.to(p.dtype)
        spread = (p.square() * by_key).sum(-1, keepdim=True)
        second = p.square() * (1.0 + by_query + (1.0 - 2.0 * p) * by_key + spread)
        noise = dropout / (1.0 - dropout) * second if dropout else None
        m = value.expected.to(p.dtype)
        variance = _around_mean(p.square() * (by_key + by_query), p, m)
        if noise is not None:
            variance = variance + noise @ m.square()
    if value.variance_or_none is not None:
        whole = second if noise is None else second + noise
        variance = variance + _sum_of_positives(whole, value.variance, mean)
    return Moments(mean, variance)


def attention_shares(
    query: Moments, key: Moments, mask: Tensor | None, scale: float
) -> tuple[Tensor, Tensor | None]:
    """Return the share of each source, in float32 at least, and which a target sees (None: all)."""
    scores = torch.matmul(query.expected, key.expected.mT) * scale
    if mask is None:
        return torch.softmax(scores.to(precise_dtype(scores.dtype)), -1), None
    scores = scores + mask
    # A target that sees nothing gets 0, as in torch, and not the nothing of a softmax of none.
    hidden = scores.isneginf().all(-1, keepdim=True)
    scores = scores.masked_fill(hidden, 0.0)
    p = torch.softmax(scores.to(precise_dtype(scores.dtype)), -1)
    p = p.masked_fill(hidden, 0.0)
    # By weights, not by -inf: many masks are large numbers instead.
    return p, p > 0


def _sum_of_positives(left: Tensor, right: Tensor, mean: Tensor) -> Tensor:
    """Return a product that can be taken in bfloat16, where the mean is."""
    with product_precision(mean):
        dtype = product_dtype(mean, mean)
        return left.to(dtype) @ right.to(dtype)


def _score_variances(
    query: Moments, key: Moments, p: Tensor, scale: float, mean: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the variance of each score by its key, and by its query.

    Of the latter, only what the query's weighted mean of scores does not share.
    """
    by_key = by_query = torch.zeros((), dtype=p.dtype, device=p.device)
    if key.variance_or_none is not None:
        sums = _sum_of_positives(second_moment(query), key.variance.mT, mean)
        by_key = sums.to(p.dtype) * scale**2
    if query.variance_or_none is not None:
        # A shift of all keys changes nothing here, and the squares cancel less without it.
        k = key.expected.to(p.dtype)
        k = k - k.mean(-2, keepdim=True)
        centre, v = p @ k, query.variance.to(p.dtype)
        around = v @ k.square().mT - 2.0 * (v * centre) @ k.mT
        around = around + (v * centre.square()).sum(-1, keepdim=True)
        by_query = around.clamp_min(0.0) * scale**2
    return by_key, by_query


def _around_mean(weight: Tensor, p: Tensor, values: Tensor) -> Tensor:
    """Return sum_j weight_ij (values_jd - (p values)_id)^2."""
    values = values - values.mean(-2, keepdim=True)
    mean = p @ values
    spread = weight @ values.square() - 2.0 * mean * (weight @ values)
    return (spread + mean.square() * weight.sum(-1, keepdim=True)).clamp_min(0.0)
