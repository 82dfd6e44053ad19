"""Attention by pooled rules: the features of a head share one variance.

Scores do not change where queries and keys of a head are turned together, and no sum over its
features does either. With these alone, D features, s the scale, p the weights, o = p v, k' the
mean of the keys that a target sees, and vq, vk and vv the variances of queries, keys and values,
each the mean over features,

    t_ij = s^2 [(|q_i|^2 + D vq_i) vk_j + vq_i |k_j - k'|^2]           variance of a score
    u_ij = p_ij^2 [1 + (1 - p_ij) t_ij]                                E[p_ij^2]
    variance_i = sum_j u_ij vv_j + 1/D sum_j p_ij^2 t_ij |v_j - o_i|^2

Of the exact rule (`open_attention`) u has what keys add where the weights of a target are equal
and so are the keys' variances, and all where one source has all of the weight. Each is a sum over
sources of numbers of a source: in the kernels there is one product beside the scores and the mean,
of p^2 t and the values, where exact rules take ten more.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bayesify.moments.fused_attention import can_fuse
from bayesify.moments.fused_pooled_attention import fused_sums
from bayesify.moments.moments import Moments, precise_dtype
from bayesify.moments.open_attention import attention_shares
from bayesify.moments.pooled_sums import total_spread
from bayesify.moments.products import full_precision


def attend_pooled(
    query: Moments,
    key: Moments,
    value: Moments,
    mask: Tensor | None,
    dropout: float,
    scale: float,
) -> Moments:
    """Return attended values by pooled rules, one variance for all features of a head."""
    features = value.shape[-1]
    with full_precision(query.expected):
        by_key, by_query = _of_targets(query, scale)
        key_spread, value_spread = _feature_mean(key), _feature_mean(value) * features
        if mask is None and dropout == 0.0 and can_fuse(query, key, value):
            distance = _squared_distance(key, _mean_key(key))
            numbers = (by_key, by_query, key_spread, distance, value_spread)
            means = (query.expected, key.expected, value.expected)
            mean, total = fused_sums(*means, numbers, scale)
            return Moments(mean, (total / features).unsqueeze(-1))
    shares, seen = attention_shares(query, key, mask, scale)
    mean = torch.matmul(shares.to(value.dtype), value.expected)
    with full_precision(query.expected):
        distance = _distances(key, seen)
        scores = by_key[..., None] * key_spread[..., None, :] + by_query[..., None] * distance
        parts = (shares, value.expected.to(shares.dtype), scores, value_spread)
        total = total_spread(*parts, dropout / (1.0 - dropout))
    return Moments(mean, (total / features).unsqueeze(-1))


def _of_targets(query: Moments, scale: float) -> tuple[Tensor, Tensor]:
    """Return the factors of the variance of a score: of its key's, and of its key's distance."""
    q = query.expected.to(precise_dtype(query.dtype))
    by_query = scale**2 * _feature_mean(query)
    by_key = scale**2 * q.square().sum(-1) + query.shape[-1] * by_query
    return by_key, by_query


def _feature_mean(x: Moments) -> Tensor:
    dtype = precise_dtype(x.dtype)
    if x.variance_or_none is None:
        return torch.zeros(x.shape[:-1], dtype=dtype, device=x.device)
    return x.variance.to(dtype).mean(-1)


def _mean_key(key: Moments) -> Tensor:
    return key.expected.to(precise_dtype(key.dtype)).mean(-2, keepdim=True)


def _squared_distance(key: Moments, middle: Tensor) -> Tensor:
    return (key.expected.to(middle.dtype) - middle).square().sum(-1)


def _distances(key: Moments, seen: Tensor | None) -> Tensor:
    """Return |k_j - k'|^2, as (..., targets or 1, sources)."""
    middle = _mean_key(key)
    if seen is None:
        return _squared_distance(key, middle)[..., None, :]
    k = key.expected.to(middle.dtype) - middle
    seen = seen.to(k.dtype)
    middle = (seen @ k) / seen.sum(-1, keepdim=True).clamp_min(1.0)
    around = k.square().sum(-1)[..., None, :] - 2.0 * (middle @ k.mT)
    return (around + middle.square().sum(-1, keepdim=True)).clamp_min(0.0)
