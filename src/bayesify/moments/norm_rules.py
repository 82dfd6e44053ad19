"""Normalisation: layer, group, instance and root-mean-square norm; `batch_norm` has a file.

They divide by a statistic of the uncertain input itself: their variance is the full first-order
one, with the statistic replaced by its expectation, which counts the variance too. The
first-order form for layers is the published one, gamma^2 v / (var(m) + eps).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bayesify.moments.batch_norm import (
    affine,
    batch_norm,
    check_count,
    is_plain,
    on_channel,
    statistics,
    track_,
)
from bayesify.moments.layer_norm import layer_norm, standardise
from bayesify.moments.moments import Moments, as_moments, mean_of, precise, rule
from bayesify.moments.rule_table import current_rules


def standardised(x: Moments, eps: float) -> Moments:
    """Return x minus its mean over the last dimension, over its standard deviation there."""
    if current_rules() != "taylor":
        return standardise(x, eps)
    m, v = precise(x)
    centred = m - m.mean(-1, keepdim=True)
    power = centred.square().mean(-1, keepdim=True) + eps
    return Moments(centred * power.rsqrt(), v / power)


def scale_by_root_mean_square(x: Moments, eps: float) -> Moments:
    """Return x over the root of its mean square over the last dimension.

    With r^2 = mean(m^2 + v) + eps and h = m / r the variance is
    r^-2 { v_i (1 - 2 h_i^2 / D) + h_i^2 D^-2 sum(h^2 v) }.
    """
    m, v = precise(x)
    size = m.shape[-1]
    power = m.square().mean(-1, keepdim=True)
    if current_rules() == "taylor":
        power = power + eps
        return Moments(m * power.rsqrt(), v / power)
    power = power + v.mean(-1, keepdim=True) + eps
    h = m * power.rsqrt()
    shared = h.square() * (h.square() * v).mean(-1, keepdim=True) / size
    own = v * (1.0 - 2.0 * h.square() / size)
    return Moments(h, ((own + shared) / power).clamp_min(0.0))


def _check_shape(x: Moments, normalized_shape: Sequence[int]) -> None:
    ends = tuple(x.shape[max(x.ndim - len(normalized_shape), 0) :])
    if ends != tuple(normalized_shape):
        raise ValueError(
            f"normalized_shape must be how the input's shape ends, got {tuple(normalized_shape)} "
            f"for an input of shape {tuple(x.shape)}"
        )


@rule(F.layer_norm)
def _layer_norm(
    input: Any,
    normalized_shape: Sequence[int],
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
) -> Moments:
    if is_plain(input, weight, bias):
        options = (mean_of(weight), mean_of(bias), eps)
        return Moments(F.layer_norm(mean_of(input), normalized_shape, *options))
    x = as_moments(input)
    _check_shape(x, normalized_shape)
    flat = x.flatten(x.ndim - len(normalized_shape))
    v = flat.variance_or_none
    if len(normalized_shape) == 1 and v is not None and is_plain(weight, bias):
        given = (mean_of(weight), mean_of(bias))
        result = layer_norm(flat.expected, v, *given, eps) if current_rules() != "taylor" else None
        if result is not None:
            return result
    return affine(standardised(flat, eps).view(x.shape), weight, bias, x.dtype)


@rule(F.rms_norm, torch.rms_norm)
def _rms_norm(
    input: Any, normalized_shape: Sequence[int], weight: Any = None, eps: float | None = None
) -> Moments:
    if is_plain(input, weight):
        return Moments(F.rms_norm(mean_of(input), normalized_shape, mean_of(weight), eps))
    x = as_moments(input)
    _check_shape(x, normalized_shape)
    flat = x.flatten(x.ndim - len(normalized_shape))
    least = torch.finfo(x.dtype).eps if eps is None else eps
    return affine(scale_by_root_mean_square(flat, least).view(x.shape), weight, None, x.dtype)


@rule(F.normalize)
def _normalize(
    input: Moments, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: None = None
) -> Moments:
    del out
    if p != 2.0 or not isinstance(dim, int):
        raise ValueError(f"p must be 2 and dim one dimension for moments, got p={p}, dim={dim}")
    if input.is_certain:
        return Moments(F.normalize(input.expected, p, dim, eps))
    last = input.movedim(dim, -1)
    unit = scale_by_root_mean_square(last, eps**2).movedim(-1, dim)
    size = torch.full((), input.shape[dim] ** -0.5, dtype=unit.dtype, device=unit.device)
    return affine(unit, size, None, input.dtype)


@rule(F.group_norm)
def _group_norm(
    input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Moments:
    if is_plain(input, weight, bias):
        plain = (num_groups, mean_of(weight), mean_of(bias), eps)
        return Moments(F.group_norm(mean_of(input), *plain))
    x = as_moments(input)
    grouped = x.reshape(x.shape[0], num_groups, -1)
    normal = standardised(grouped, eps).view(x.shape)
    return affine(normal, on_channel(weight, x), on_channel(bias, x), x.dtype)


@rule(F.instance_norm)
def _instance_norm(
    input: Any,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Any = None,
    bias: Any = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Moments:
    if is_plain(input, weight, bias):
        options = (mean_of(weight), mean_of(bias), use_input_stats, momentum, eps)
        return Moments(F.instance_norm(mean_of(input), running_mean, running_var, *options))
    x = as_moments(input)
    if not use_input_stats:
        return batch_norm(x, running_mean, running_var, weight, bias, False, momentum, eps)
    if running_mean is not None and running_var is not None:
        # Statistics of every image, averaged over images.
        over = tuple(range(2, x.ndim))
        check_count("instance norm with running statistics", x.shape[2:].numel())
        track_(running_mean, running_var, statistics(x, over), x.shape[2:].numel(), momentum)
    normal = standardised(x.flatten(2), eps).view(x.shape)
    return affine(normal, on_channel(weight, x), on_channel(bias, x), x.dtype)
