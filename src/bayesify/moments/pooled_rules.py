"""Rules by which a layer sees the variances of its inputs as one sum.

The squares of a weight matrix are positive, and much like the matrix of rank one that has their
sums of rows and of columns,

    W_oi^2  ~  r_o c_i,    r_o = sum_i W_oi^2,    c_i = sum_o W_oi^2 / sum W^2

by which the product v W^2 becomes one number of each place, sum_i c_i v_i, times one of each unit.
Of a linear layer, over all units together, it is exact, whatever the variances, and for each unit
where its inputs are equally uncertain. What a unit is off by otherwise averages out over inputs,
and the more so the more they are; narrow layers are by exact rules. No product is left beside that
of the means, and no variance that has to lie in memory: compiled code makes them where they are
read. Variances of weights, where each has its own, are pooled in the same way, with second moments
in the place of variances; those of units, s, are exact.

A kernel of a convolution is taken as the product of three, of units, of channels and of taps: at
the border of an image, where a unit sees some taps alone, it has the share of these in all units.
`pooled_attention` is the rule of attention. The GELU of half precision is a short series
(`gelu_series`), which compiled code can take into the kernels of the sums; all other rules are the
exact ones.

Training finds where a rule is wrong. With the last layer of a classifier pooled too, a network that
was trained by these rules had twice the variance that they gave it.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bayesify.moments.gelu_series import gelu_series_moments
from bayesify.moments.linear_rules import (
    Geometry,
    affine,
    geometry_of,
    is_shared_by_unit,
    seen_by_unit,
)
from bayesify.moments.moments import (
    Moments,
    mean_of,
    precise_dtype,
    rule,
    variance_dtype,
    variance_of,
)
from bayesify.moments.products import full_precision, second_moment, squares, sum_of_outer
from bayesify.moments.rule_table import TABLES
from bayesify.moments.watched_functions import seen

# Layers of fewer inputs or units are taken exactly: their products cost next to nothing, and errors
# of few inputs do not average out. The last layer of a classifier is one.
FEWEST = 64
# Up to so many taps a kernel is a sum of shifted images: libraries have no fast convolution of one
# channel, and compiled code adds them up where they are read.
_FEW_TAPS = 32


@rule(F.linear, form="pooled")
def _linear(input: Any, weight: Any, bias: Any = None) -> Moments:
    v = variance_of(input)
    if v is None or weight.ndim != 2 or min(weight.shape) < FEWEST:
        return affine(F.linear, input, weight, bias)
    mean = F.linear(mean_of(input), mean_of(weight), mean_of(bias))
    factors = [_pooled(v, mean_of(weight).to(precise_dtype(mean.dtype)).square())]
    spread = variance_of(weight)
    if is_shared_by_unit(F.linear, weight):
        seen = (squares(mean_of(input)) + v).sum(-1, keepdim=True)
        factors.append((seen, weight.shared_variance.view(-1)))
    elif spread is not None:
        second = second_moment(input)
        factors.append(_pooled(second, spread.to(second.dtype)))
    places, units = zip(*factors, strict=True)
    dtype = variance_dtype(mean.dtype)
    return Moments(mean, sum_of_outer(places, units, variance_of(bias), dtype))


def _pooled(v: Tensor, matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return the factors of v times the transposed matrix, taken as one of rank one."""
    sums = matrix.sum(0)
    shares = sums / sums.sum().clamp_min(torch.finfo(sums.dtype).tiny)
    return (v * shares).sum(-1, keepdim=True), matrix.sum(1)


def _convolution(operation: Any) -> Any:
    def implementation(
        input: Any, weight: Any, bias: Any = None, *args: Any, **kwargs: Any
    ) -> Moments:
        v = variance_of(input)
        geometry = geometry_of(mean_of(weight).ndim - 2, *args, **kwargs)
        # Padding by a word may differ from one side to the other.
        is_narrow = min(weight.shape[:2]) < FEWEST
        if v is None or is_narrow or isinstance(geometry.padding, str):
            return affine(operation, input, weight, bias, *args, **kwargs)
        mean = operation(mean_of(input), mean_of(weight), mean_of(bias), *args, **kwargs)
        kernel = mean_of(weight).to(precise_dtype(mean.dtype)).square()
        variance = _pooled_over_window(operation, v.to(kernel.dtype), kernel, geometry)
        spread = variance_of(weight)
        if is_shared_by_unit(operation, weight):
            seen, shared = seen_by_unit(operation, input, weight, geometry)
            variance = variance + seen * shared
        elif spread is not None:
            second, spread = second_moment(input), spread.to(kernel.dtype)
            variance = variance + _pooled_over_window(operation, second, spread, geometry)
        added = variance_of(bias)
        if added is not None:
            variance = variance + added.view(-1, *[1] * (mean_of(weight).ndim - 2))
        return Moments(mean, variance)

    return implementation


def _pooled_over_window(operation: Any, v: Tensor, kernel: Tensor, geometry: Geometry) -> Tensor:
    """Return the convolution of v with a positive kernel, taken as one of rank one."""
    num_sides, groups = kernel.ndim - 2, geometry.groups
    sides = tuple(range(3, 3 + num_sides))
    # (groups, units of a group, channels of a group, *taps)
    grouped = kernel.unflatten(0, (groups, -1))
    rows = grouped.sum((2, *sides))
    total = rows.sum(1).clamp_min(torch.finfo(rows.dtype).tiny)
    columns = (grouped.sum((1, *sides)) / total[:, None]).view(-1, *[1] * num_sides)
    taps = grouped.sum((1, 2)) / total.view(-1, *[1] * num_sides)
    channel = -1 - num_sides
    pooled = (v * columns).unflatten(channel, (groups, -1)).sum(channel)
    seen = _through_taps(operation, pooled, taps, geometry)
    units = rows.view(groups, -1, *[1] * num_sides)
    return (seen.unsqueeze(channel) * units).flatten(channel - 1, channel)


def _through_taps(operation: Any, images: Tensor, taps: Tensor, geometry: Geometry) -> Tensor:
    """Return images of one channel for each group, convolved with the taps of their groups."""
    stride, padding, dilation, groups = geometry
    sizes = taps.shape[1:]
    if math.prod(sizes) > _FEW_TAPS:
        with full_precision(images):
            return operation(images, taps.unsqueeze(1), None, stride, padding, dilation, groups)
    sides = [pad for each in reversed(padding) for pad in (int(each), int(each))]
    padded = F.pad(images, sides) if any(sides) else images
    lasts = [
        length - step * (size - 1)
        for length, step, size in zip(padded.shape[-len(sizes) :], dilation, sizes, strict=True)
    ]
    total = None
    for tap in itertools.product(*(range(size) for size in sizes)):
        window = tuple(
            slice(at * step, at * step + last, every)
            for at, step, last, every in zip(tap, dilation, lasts, stride, strict=True)
        )
        factor = taps[(slice(None), *tap)].view(groups, *[1] * len(sizes))
        term = padded[(..., *window)] * factor
        total = term if total is None else total + term
    return images if total is None else total


for _operation in (F.conv1d, F.conv2d, F.conv3d):
    rule(_operation, form="pooled")(_convolution(_operation))


@rule(F.gelu, form="pooled")
def _gelu(x: Moments, approximate: str = "none") -> Moments:
    is_half = x.dtype in (torch.bfloat16, torch.float16)
    if x.is_certain or approximate != "none" or not is_half:
        return TABLES["exact"][F.gelu](x, approximate)
    return seen(x, lambda x: Moments(*gelu_series_moments(*x.pair())))
