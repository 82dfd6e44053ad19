"""Rules of moments as a deployed graph computes them: the same formulas in fewer operations.

The rules of `moments` serve training: they keep every digit of a lower tail and give finite
gradients everywhere. A graph that only predicts needs neither, and pays for every operation. With
r = m / (s sqrt 2), E = erf(r) and q = exp(-r^2) / sqrt(pi) + r E, a rectified normal value has

    mean      m / 2 + sqrt(v / 2) q
    variance  v / 2 [1 + E - (q - |r|) (q + |r|)]

with one erf for three. They differ from the rules by rounding, some 1e-6 of a variance; an export
compares what it wrote with the rules themselves.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bayesify.exporting.deployed_gelu import gelu_moments
from bayesify.moments.gaussian_functions import LEAST_VARIANCE
from bayesify.moments.moments import Moments, mean_of, rule, variance_of
from bayesify.moments.pooling_rules import per_side
from bayesify.moments.rule_table import TABLES, current_rules, find_rule

_LOG_ROOT_PI = 0.5 * math.log(math.pi)
_CONVOLUTIONS = (F.conv1d, F.conv2d, F.conv3d)
_WIDEST_PRODUCT = 32
# Comparisons that sort four entries, the largest first.
_SORTING = ((0, 1), (2, 3), (0, 2), (1, 3), (1, 2))
Pair = tuple[Tensor, Tensor]


class AffineMoments(Moments):
    """What a linear layer or a convolution gave, and from what: a batch norm is folded into it."""

    def __init__(self, mean: Tensor, variance: Tensor | None, parts: tuple[Any, ...]) -> None:
        super().__init__(mean, variance)
        self.parts: tuple[Any, ...] | None = parts

    def assign(self, other: Moments) -> Moments:
        """Take over what an in-place operation gave, which no layer gave."""
        self.parts = None
        return super().assign(other)


@contextmanager
def deployed_rules() -> Iterator[None]:
    """Open a context in which moments are computed by the rules of this file.

    It holds for the whole process, as the choice of rules does.
    """
    before = dict(TABLES["exact"])
    plain = {function: find_rule(function) for function in (F.batch_norm, F.max_pool2d, F.gelu)}
    try:
        for operation in (F.linear, *_CONVOLUTIONS):
            rule(operation)(_affine_rule(operation))
        rule(F.relu, torch.relu, Tensor.relu)(_relu)
        rule(F.batch_norm)(_batch_norm_rule(plain[F.batch_norm]))
        rule(F.max_pool2d, torch.max_pool2d, F.max_pool2d_with_indices)(
            _max_pool_rule(plain[F.max_pool2d])
        )
        rule(F.gelu)(_gelu_rule(plain[F.gelu]))
        yield
    finally:
        TABLES["exact"].clear()
        TABLES["exact"].update(before)


def rectified_moments(m: Tensor, v: Tensor) -> Pair:
    """Return mean and variance of a rectified normal value."""
    half = 0.5 * v
    root, half_mean = half.clamp_min(LEAST_VARIANCE).sqrt(), 0.5 * m
    r = half_mean / root
    q, error = _folded_mean(r)
    size = r.abs()
    ratio = (error - (q - size) * (q + size) + 1.0).relu()
    return half_mean + root * q, half * ratio


def maximum_moments(first: Pair, second: Pair) -> Pair:
    """Return mean and variance of the larger of two normal values, the first with the larger mean.

    Reference: Clark (1961), eq. 2 and 3.
    """
    (m1, v1), (m2, v2) = first, second
    half = 0.5 * (v1 + v2)
    root, half_step = half.clamp_min(LEAST_VARIANCE).sqrt(), 0.5 * (m1 - m2)
    r = half_step / root
    q, error = _folded_mean(r)
    shared = half * (1.0 - (q - r) * (q + r))
    variance = (shared + error * (v1 - half)).relu()
    return (m1 - half_step) + root * q, variance


def _folded_mean(r: Tensor) -> Pair:
    """Return q, the mean of |z + r sqrt 2| over sqrt 2 for z standard normal, and erf(r)."""
    error = torch.erf(r)
    return r * error + torch.exp(-_LOG_ROOT_PI - r * r), error


def _relu(x: Moments, inplace: bool = False) -> Moments:
    m, v = x.expected, x.variance_or_none
    if v is None:
        result = Moments(torch.relu(m))
    elif current_rules() == "taylor":
        result = Moments(torch.relu(m), (m > 0).to(v.dtype) * v)
    else:
        result = Moments(*rectified_moments(m, v))
    return x.assign(result) if inplace else result


def _gelu_rule(plain: Any) -> Any:
    def implementation(x: Moments, approximate: str = "none") -> Moments:
        v = x.variance_or_none
        if v is None or approximate != "none" or current_rules() == "taylor":
            return plain(x, approximate=approximate)
        return Moments(*gelu_moments(x.expected, v))

    return implementation


def _affine_rule(operation: Any) -> Any:
    def implementation(input: Any, weight: Any, bias: Any = None, *args: Any, **kw: Any) -> Moments:
        return affine(operation, input, weight, bias, args, kw)

    return implementation


def affine(
    operation: Any,
    x: Any,
    weight: Any,
    bias: Any,
    args: Sequence[Any] = (),
    kwargs: dict[str, Any] | None = None,
) -> AffineMoments:
    """Return the moments of operation(x, weight, bias, ...), linear in x and in the weight.

    The variance of a bias is the bias of the first product of variances.
    """
    kwargs = kwargs or {}
    m, w, v, s = mean_of(x), mean_of(weight), variance_of(x), variance_of(weight)
    mean, added = operation(m, w, mean_of(bias), *args, **kwargs), variance_of(bias)
    terms: list[Tensor] = []
    if s is not None:
        second = m * m if v is None else m * m + v
        groups = kwargs.get("groups", args[3] if len(args) > 3 else 1)
        if _is_narrow(weight) and groups == 1:
            # One number for all inputs of a unit: their sum is multiplied, not each of them.
            axis = -1 if operation is F.linear else mean.ndim - w.ndim + 1
            second = second.sum(axis, keepdim=True)
            s = weight.shared_variance.expand(w.shape[0], 1, *w.shape[2:])
        terms.append(operation(second, s, added, *args, **kwargs))
    if v is not None:
        left = None if terms or added is None else added
        if terms and operation is F.linear and v.ndim == 2:
            terms = [torch.addmm(terms[0], v, (w * w).t())]
        else:
            terms.append(operation(v, w * w, left, *args, **kwargs))
    if not terms and added is not None:
        terms.append(_on_units(added, operation, w).expand_as(mean))
    variance = terms[0] + terms[1] if len(terms) > 1 else (terms[0] if terms else None)
    return AffineMoments(mean, variance, (operation, x, weight, bias, args, kwargs))


def _is_narrow(weight: Any) -> bool:
    """Return whether one variance serves all inputs of a unit."""
    shared = weight.shared_variance if isinstance(weight, Moments) else None
    return shared is not None and shared.shape[1] == 1


def _on_units(values: Tensor, operation: Any, weight: Tensor) -> Tensor:
    return values if operation is F.linear else values.view(-1, *[1] * (weight.ndim - 2))


def _batch_norm_rule(plain: Any) -> Any:
    def implementation(
        input: Any,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Any = None,
        bias: Any = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Moments:
        is_certain = variance_of(weight) is None and variance_of(bias) is None
        if training or not is_certain or not _can_fold(input):
            options = (weight, bias, training, momentum, eps)
            return plain(input, running_mean, running_var, *options)
        assert running_mean is not None
        assert running_var is not None
        scale = (running_var + eps).rsqrt()
        scale = scale if weight is None else scale * mean_of(weight)
        shift = -running_mean * scale
        return _scaled_units(input, scale, shift if bias is None else shift + mean_of(bias))

    return implementation


def _can_fold(x: Any) -> bool:
    if not isinstance(x, AffineMoments) or x.parts is None:
        return False
    operation, _, weight, *_ = x.parts
    # The channel of a batch norm is the unit of the layer.
    return x.ndim == 2 if operation is F.linear else x.ndim == mean_of(weight).ndim


def _scaled_units(x: AffineMoments, scale: Tensor, shift: Tensor) -> Moments:
    """Return scale * x + shift, from weights that are multiplied instead of outputs."""
    assert x.parts is not None
    operation, source, weight, bias, args, kwargs = x.parts
    on_weight = scale.view(-1, *[1] * (mean_of(weight).ndim - 1))
    mean, variance = mean_of(weight) * on_weight, variance_of(weight)
    square = on_weight.square()
    if isinstance(weight, Moments) and weight.shared_variance is not None:
        variance = weight.shared_variance
    scaled = Moments(mean, None if variance is None else variance * square)
    shift = shift if bias is None else shift + mean_of(bias) * scale
    added = variance_of(bias)
    moved = shift if added is None else Moments(shift, added * scale.square())
    return affine(operation, source, scaled, moved, args, kwargs)


def _max_pool_rule(plain: Any) -> Any:
    def implementation(
        input: Moments,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Moments:
        sizes = [per_side(each, 2) for each in (kernel_size, stride or kernel_size)]
        is_plain = sizes != [[2, 2], [2, 2]] or per_side(padding, 2) != [0, 0]
        is_plain = is_plain or per_side(dilation, 2) != [1, 1] or return_indices
        sides = input.shape[-2:]
        if is_plain or input.is_certain or (ceil_mode and any(side % 2 for side in sides)):
            options = (stride, padding, dilation, ceil_mode, return_indices)
            return plain(input, kernel_size, *options)
        means, variances = (_corners(part) for part in input.pair())
        return Moments(*_largest_of_four(list(zip(means, variances, strict=True))))

    return implementation


def _corners(x: Tensor) -> Sequence[Tensor]:
    """Return the four entries of every 2 x 2 window.

    ONNX Runtime takes 4 ns to copy an entry with a stride. So narrow rows are put in order by a
    product with a matrix of ones and zeros, 2 W additions of 0 for every entry.
    """
    height, width = (side - side % 2 for side in x.shape[-2:])
    x = x if x.shape[-2:] == (height, width) else x[..., :height, :width]
    if width > _WIDEST_PRODUCT:
        rows = x[..., 0::2, :], x[..., 1::2, :]
        return [row[..., column::2] for row in rows for column in (0, 1)]
    order = torch.arange(2 * width).view(2, width // 2, 2).transpose(1, 2).flatten()
    select = torch.eye(2 * width, dtype=x.dtype)[:, order]
    paired = x.reshape(*x.shape[:-2], height // 2, 2 * width) @ select
    return paired.split(width // 2, -1)


def _largest_of_four(entries: list[Pair]) -> Pair:
    if current_rules() == "taylor":
        most = entries[0]
        for m, v in entries[1:]:
            most = torch.maximum(most[0], m), torch.where(most[0] >= m, most[1], v)
        return most
    for first, second in _SORTING:
        (m1, v1), (m2, v2) = entries[first], entries[second]
        stays = m1 >= m2
        entries[first] = torch.maximum(m1, m2), torch.where(stays, v1, v2)
        entries[second] = torch.minimum(m1, m2), torch.where(stays, v2, v1)
    most = entries[0]
    for entry in entries[1:]:
        most = maximum_moments(most, entry)
    return most
