"""Attention: scores, softmax and weighted values.

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

The first-order form of the paper takes the weights as independent, which for sources that are
alike is several times too wide. On a GPU, in bfloat16 and without mask or dropout, all of this is
one operation (`fused_attention`). The layers' fused C++ paths step aside when `__torch_function__`
is in play.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bayesify.moments.dropout_rules import drop
from bayesify.moments.fused_attention import can_fuse, fused_attention
from bayesify.moments.linear_rules import affine, matmul
from bayesify.moments.moments import Moments, as_moments, precise_dtype, rule
from bayesify.moments.products import (
    full_precision,
    product_dtype,
    product_precision,
    second_moment,
)
from bayesify.moments.rule_table import current_rules
from bayesify.moments.softmax_rules import softmax


def attend(
    query: Any, key: Any, value: Any, mask: Tensor | None, dropout: float, scale: float
) -> Moments:
    """Return attended values.

    Args:
        query: Queries of shape (..., targets, features).
        key: Keys of shape (..., sources, features).
        value: Values of shape (..., sources, value features).
        mask: What is added to the scores, -inf where a source is hidden.
        dropout: Rate at which attention weights are dropped.
        scale: Factor of the scores.
    """
    query, key, value = as_moments(query), as_moments(key), as_moments(value)
    has_sure_scores = query.is_certain and key.is_certain
    if has_sure_scores or dropout == 1.0 or current_rules() == "taylor":
        return matmul(attention_weights(query, key, mask, dropout, scale), value)
    if mask is None and dropout == 0.0 and can_fuse(query, key, value):
        return fused_attention(query, key, value, scale)
    return attend_openly(query, key, value, mask, dropout, scale)


def attend_openly(
    query: Moments,
    key: Moments,
    value: Moments,
    mask: Tensor | None,
    dropout: float,
    scale: float,
) -> Moments:
    """Return attended values by exact rules, in torch's own operations."""
    scores = torch.matmul(query.expected, key.expected.mT) * scale
    hidden = None
    if mask is not None:
        scores = scores + mask
        # A target that sees nothing gets 0, as in torch, and not the nothing of a softmax of none.
        hidden = scores.isneginf().all(-1, keepdim=True)
        scores = scores.masked_fill(hidden, 0.0)
    p = torch.softmax(scores.to(precise_dtype(scores.dtype)), -1)
    p = p if hidden is None else p.masked_fill(hidden, 0.0)
    mean = torch.matmul(p.to(scores.dtype), value.expected)
    with full_precision(mean):
        by_key, by_query = _score_variances(query, key, p, scale, mean)
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


def attention_weights(
    query: Any, key: Any, mask: Tensor | None, dropout: float, scale: float
) -> Moments:
    """Return the share of each source, each score taken as independent of the others."""
    scores = torch.mul(matmul(query, key.transpose(-2, -1)), scale)
    if mask is not None:
        scores = torch.add(scores, mask)
    return drop(softmax(as_moments(scores), -1), dropout)


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


@rule(F.scaled_dot_product_attention)
def _scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Moments:
    query, key, value = as_moments(query), as_moments(key), as_moments(value)
    if query.is_certain and key.is_certain and value.is_certain and dropout_p == 0.0:
        plain = (attn_mask, dropout_p, is_causal)
        tensors = (query.expected, key.expected, value.expected)
        return Moments(
            F.scaled_dot_product_attention(*tensors, *plain, scale=scale, enable_gqa=enable_gqa)
        )
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
        value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
    if is_causal:
        size = (query.shape[-2], key.shape[-2])
        attn_mask = torch.ones(size, dtype=torch.bool, device=query.device).tril()
    mask = None if attn_mask is None else _added_mask(attn_mask, query.dtype)
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    return attend(query, key, value, mask, dropout_p, factor)


def _added_mask(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a mask to add: a boolean one says which sources are seen."""
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, -torch.inf)


@rule(torch._nested_tensor_from_mask_left_aligned)  # pyright: ignore[reportPrivateImportUsage]
def _is_left_aligned(x: Moments, mask: Tensor) -> bool:
    """Answer no, which keeps an encoder from making nested tensors."""
    del x, mask
    return False


@rule(F.multi_head_attention_forward)
def _multi_head_attention(  # noqa: PLR0913 (torch's own signature)
    query: Any,
    key: Any,
    value: Any,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Any,
    in_proj_bias: Any,
    bias_k: Any,
    bias_v: Any,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Any,
    out_proj_bias: Any,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Any = None,
    k_proj_weight: Any = None,
    v_proj_weight: Any = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Moments, Moments | None]:
    """Take (tokens, batch, features) or (tokens, features), as torch does."""
    # The hint changes no result: torch asks for the mask beside it.
    del is_causal, embed_dim_to_check
    if static_k is not None or static_v is not None:
        raise ValueError("static_k and static_v must be None for moments")
    is_batched = query.ndim == 3
    if not is_batched:
        query, key, value = (item.unsqueeze(1) for item in (query, key, value))
        key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
    if use_separate_proj_weight:
        matrices = (q_proj_weight, k_proj_weight, v_proj_weight)
    else:
        matrices = in_proj_weight.chunk(3)
    biases = (None, None, None) if in_proj_bias is None else in_proj_bias.chunk(3)
    projected = [
        affine(F.linear, *parts)
        for parts in zip((query, key, value), matrices, biases, strict=True)
    ]
    queries, keys, values = (_heads(item, num_heads) for item in projected)
    if bias_k is not None:
        keys, values = (
            _append(keys, _heads(bias_k, num_heads)),
            _append(values, _heads(bias_v, num_heads)),
        )
    if add_zero_attn:
        keys, values = _append(keys, None), _append(values, None)
    num_added = (bias_k is not None) + add_zero_attn
    mask = _merged_mask(attn_mask, key_padding_mask, queries, num_added)
    rate = dropout_p if training else 0.0
    scale = queries.shape[-1] ** -0.5
    seen = attend(queries, keys, values, mask, rate, scale)
    tokens = seen.permute(2, 0, 1, 3).flatten(2)
    output = affine(F.linear, tokens, out_proj_weight, out_proj_bias)
    weights = attention_weights(queries, keys, mask, rate, scale) if need_weights else None
    if weights is not None and average_attn_weights:
        weights = weights.mean(1)
    if not is_batched:
        output = output.squeeze(1)
        weights = None if weights is None else weights.squeeze(0)
    return output, weights


def _heads(tokens: Any, num_heads: int) -> Any:
    """Return (tokens, batch, features) as (batch, heads, tokens, features of a head)."""
    return tokens.unflatten(-1, (num_heads, -1)).permute(1, 2, 0, 3)


def _append(tokens: Moments, extra: Any) -> Any:
    """Return tokens with one more at their end, of zeros where none is given."""
    shape = (*tokens.shape[:2], 1, tokens.shape[-1])
    if extra is None:
        extra = torch.zeros(shape, dtype=tokens.dtype, device=tokens.device)
    parts: Any = [tokens, extra.expand(shape)]
    return torch.cat(parts, dim=2)


def _merged_mask(
    attn_mask: Tensor | None, padding: Tensor | None, queries: Moments, num_added: int
) -> Tensor | None:
    """Return what both masks, true or -inf where a source is hidden, add to the scores."""
    batch, num_heads = queries.shape[:2]
    merged = None
    if attn_mask is not None:
        if attn_mask.ndim == 3:
            attn_mask = attn_mask.unflatten(0, (batch, num_heads))
        merged = _hiding(attn_mask, queries.dtype)
    if padding is not None:
        hiding = _hiding(padding, queries.dtype)[:, None, None, :]
        merged = hiding if merged is None else merged + hiding
    return merged if merged is None else F.pad(merged, (0, num_added))


def _hiding(mask: Tensor, dtype: torch.dtype) -> Tensor:
    return _added_mask(~mask if mask.dtype == torch.bool else mask, dtype)
