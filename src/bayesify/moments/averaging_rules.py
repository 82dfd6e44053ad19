"""Fixed linear operations on images: average pooling and interpolation.

For a fixed linear operation L the mean is L m and the variance (L o L) v, L with its entries
squared. Exact for uncorrelated entries.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bayesify.moments.moments import Moments, rule
from bayesify.moments.pooling_rules import output_sizes, per_side
from bayesify.moments.products import full_precision

_NEAREST = ("nearest", "nearest-exact")


def _register_average_pool(num_sides: int, function: Any) -> None:
    def implementation(
        input: Moments,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Moments:
        shape = (kernel_size, stride if stride else kernel_size, padding)
        options = (ceil_mode, count_include_pad)
        extra = (divisor_override,) if num_sides > 1 else ()
        mean = function(input.expected, *shape, *options, *extra)
        v = input.variance_or_none
        if v is None:
            return Moments(mean)
        pooled = function(v, *shape, *options, *extra)
        divisor = divisor_override or _divisors(
            pooled, v.shape[-num_sides:], shape, count_include_pad
        )
        return Moments(mean, pooled / divisor)

    rule(function)(implementation)


def _divisors(
    pooled: Tensor, sides: Sequence[int], shape: Sequence[Any], count_include_pad: bool
) -> Tensor | float:
    """Return what torch divides each window's sum by; it differs at the border."""
    num_sides = len(sides)
    kernels, strides, paddings = (per_side(sizes, num_sides) for sizes in shape)
    lengths = zip(pooled.shape[-num_sides:], sides, kernels, strides, paddings, strict=True)
    rows = [_window_sizes(*each, count_include_pad) for each in lengths]
    if all(len(set(row)) == 1 for row in rows):
        return float(math.prod(row[0] for row in rows))
    return _outer_product(rows, pooled)


def _window_sizes(
    count: int, side: int, kernel: int, stride: int, padding: int, count_include_pad: bool
) -> list[int]:
    """Return the lengths of the windows along one side, of which the last can hang over."""
    starts = [index * stride - padding for index in range(count)]
    ends = [min(start + kernel, side + padding) for start in starts]
    if count_include_pad:
        return [end - start for start, end in zip(starts, ends, strict=True)]
    return [min(end, side) - max(start, 0) for start, end in zip(starts, ends, strict=True)]


def _outer_product(rows: Sequence[Sequence[int]], like: Tensor) -> Tensor:
    product = torch.ones([], dtype=like.dtype, device=like.device)
    for row in rows:
        product = product.unsqueeze(-1) * torch.tensor(row, dtype=like.dtype, device=like.device)
    return product


_register_average_pool(1, F.avg_pool1d)
_register_average_pool(2, F.avg_pool2d)
_register_average_pool(3, F.avg_pool3d)


def _register_adaptive_average_pool(num_sides: int, function: Any) -> None:
    def implementation(input: Moments, output_size: Any) -> Moments:
        mean = function(input.expected, output_size)
        v = input.variance_or_none
        if v is None:
            return Moments(mean)
        sides = list(input.shape[-num_sides:])
        counts = _counts(sides, output_sizes(output_size, sides), v)
        return Moments(mean, function(v, output_size) / counts)

    rule(function)(implementation)


def _counts(sides: list[int], sizes: list[int], like: Tensor) -> Tensor:
    """Return how many entries each window of adaptive pooling has."""
    rows = [
        [-(-(i + 1) * side // size) - i * side // size for i in range(size)]
        for side, size in zip(sides, sizes, strict=True)
    ]
    return _outer_product(rows, like)


_register_adaptive_average_pool(1, F.adaptive_avg_pool1d)
_register_adaptive_average_pool(2, F.adaptive_avg_pool2d)
_register_adaptive_average_pool(3, F.adaptive_avg_pool3d)


@rule(F.interpolate, F.upsample)
def _interpolate(
    input: Moments,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Moments:
    options = {
        "mode": mode,
        "align_corners": align_corners,
        "recompute_scale_factor": recompute_scale_factor,
        "antialias": antialias,
    }
    mean = F.interpolate(input.expected, size, scale_factor, **options)
    v = input.variance_or_none
    if v is None:
        return Moments(mean)
    if mode in _NEAREST:
        return Moments(mean, F.interpolate(v, size, scale_factor, **options))
    # Interpolation acts on one side at a time: its matrix is read off by interpolating unit rows.
    num_sides = v.ndim - 2
    with full_precision(v):
        for side in range(num_sides):
            matrix = _side_matrix(v, side, size, scale_factor, options)
            v = torch.movedim(torch.movedim(v, side + 2, -1) @ matrix.square(), -1, side + 2)
    return Moments(mean, v)


def _side_matrix(
    v: Tensor, side: int, size: Any, scale_factor: Any, options: dict[str, Any]
) -> Tensor:
    """Return the matrix, of shape (before, after), by which one side is interpolated."""
    num_sides = v.ndim - 2
    length = v.shape[side + 2]
    units = torch.eye(length, dtype=v.dtype, device=v.device)
    units = units.view(1, length, *(length if axis == side else 1 for axis in range(num_sides)))
    # The other sides keep their size, of 2: antialiasing misreads an image that is 1 wide.
    units = units.expand(1, length, *(length if axis == side else 2 for axis in range(num_sides)))
    sizes = factors = None
    if size is not None:
        sizes = [
            per_side(size, num_sides)[side] if axis == side else 2 for axis in range(num_sides)
        ]
    else:
        given = [scale_factor] if isinstance(scale_factor, (int, float)) else list(scale_factor)
        factor = float((given * num_sides if len(given) == 1 else given)[side])
        factors = [factor if axis == side else 1.0 for axis in range(num_sides)]
    rows = F.interpolate(units.contiguous(), sizes, factors, **options)[0]
    return rows.movedim(side + 1, 1).reshape(length, rows.shape[side + 1], -1)[..., 0]
