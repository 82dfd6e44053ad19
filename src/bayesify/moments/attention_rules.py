"""Attention: scores, softmax and weighted values.

`open_attention` has the formulas of the exact rules. The first-order form of the paper takes the
attention weights of a query as independent, which for sources that are alike is several times too
wide. On a GPU, in bfloat16 and without mask or dropout, exact rules are one operation
(`fused_attention`). The layers' fused C++ paths step aside when `__torch_function__` is in play.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bayesify.moments.dropout_rules import drop
from bayesify.moments.fused_attention import can_fuse, fused_attention
from bayesify.moments.linear_rules import matmul
from bayesify.moments.moments import Moments, as_moments, rule
from bayesify.moments.open_attention import attend_openly
from bayesify.moments.pooled_attention import attend_pooled
from bayesify.moments.rule_table import current_rules
from bayesify.moments.softmax_rules import softmax


def attend(query: Any, key: Any, value: Any, mask: Any, dropout: float, scale: float) -> Moments:
    """Return attended values.

    Args:
        query: Queries of shape (..., targets, features).
        key: Keys of shape (..., sources, features).
        value: Values of shape (..., sources, value features).
        mask: What is added to the scores, -inf where a source is hidden; it may be uncertain.
        dropout: Rate at which attention weights are dropped.
        scale: Factor of the scores.
    """
    query, key, value = as_moments(query), as_moments(key), as_moments(value)
    if isinstance(mask, Moments) and mask.is_certain:
        mask = mask.expected
    is_sure_mask = not isinstance(mask, Moments)
    has_sure_scores = query.is_certain and key.is_certain and is_sure_mask
    if has_sure_scores or dropout == 1.0 or current_rules() == "taylor":
        return matmul(attention_weights(query, key, mask, dropout, scale), value)
    if current_rules() == "pooled" and is_sure_mask:
        return attend_pooled(query, key, value, mask, dropout, scale)
    if mask is None and dropout == 0.0 and can_fuse(query, key, value):
        return fused_attention(query, key, value, scale)
    return attend_openly(query, key, value, mask, dropout, scale)


def attention_weights(query: Any, key: Any, mask: Any, dropout: float, scale: float) -> Moments:
    """Return the share of each source, each score taken as independent of the others."""
    scores = torch.mul(matmul(query, key.transpose(-2, -1)), scale)
    if mask is None:
        return drop(softmax(as_moments(scores), -1), dropout)
    scores = as_moments(torch.add(scores, mask))
    # A target that sees nothing gets 0, as in torch, and not the nothing of a softmax of none.
    hidden = scores.expected.isneginf().all(-1, keepdim=True)
    weights = softmax(scores.masked_fill(hidden, 0.0), -1)
    return drop(weights.masked_fill(hidden, 0.0), dropout)


@rule(F.scaled_dot_product_attention)
def _scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Moments:
    query, key, value = as_moments(query), as_moments(key), as_moments(value)
    is_certain = query.is_certain and key.is_certain and value.is_certain
    if is_certain and dropout_p == 0.0 and not isinstance(attn_mask, Moments):
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


def _added_mask(mask: Any, dtype: torch.dtype) -> Any:
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
        as_moments(F.linear(*parts))
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
    output: Any = F.linear(tokens, out_proj_weight, out_proj_bias)  # pyright: ignore[reportArgumentType]
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
