"""Pooling: averages exactly, maxima by folding the maximum of two normal values.

A window is folded in descending order of its means. The maximum of two is exact; folding treats
each partial maximum as normal, which leaves an error of the variance of some per cent in a 2x2
window. The first-order form takes the variance of the entry with the largest mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bayesify.moments.moments import Moments, precise, rule
from bayesify.moments.rectified import maximum_moments, ordered
from bayesify.moments.rule_table import current_rules

Sizes = int | Sequence[int]


def per_side(sizes: Sizes, num_sides: int) -> list[int]:
    """Return one size for each side of a window."""
    sizes = [sizes] if isinstance(sizes, int) else list(sizes)
    return sizes * num_sides if len(sizes) == 1 else sizes


def fold_maximum(
    means: Tensor, variances: Tensor, is_valid: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return mean and variance of the maximum over the last dimension.

    Args:
        means: The means.
        variances: The variances, of the same shape.
        is_valid: Which entries take part, of a shape that broadcasts; at least one of each row.
    """
    keys = means if is_valid is None else means.masked_fill(~is_valid, -torch.inf)
    order = keys.detach().argsort(dim=-1, descending=True)
    means, variances = means.gather(-1, order), variances.gather(-1, order)
    taken = None if is_valid is None else is_valid.expand(keys.shape).gather(-1, order)
    mean, variance = means[..., 0], variances[..., 0]
    for place in range(1, means.shape[-1]):
        new = maximum_moments((mean, variance), (means[..., place], variances[..., place]))
        if taken is None:
            mean, variance = new
        else:
            mean = torch.where(taken[..., place], new[0], mean)
            variance = torch.where(taken[..., place], new[1], variance)
    return mean, variance


# Comparisons that sort so many entries, the largest first.
_NETWORKS = {
    1: (),
    2: ((0, 1),),
    3: ((0, 1), (1, 2), (0, 1)),
    4: ((0, 1), (2, 3), (0, 2), (1, 3), (1, 2)),
}
Pair = tuple[Tensor, Tensor]


def fold_few(entries: list[Pair]) -> Pair:
    """Return mean and variance of the maximum of up to four, as `fold_maximum` does.

    A few comparisons of whole tensors take a tenth of the time of sorting every window.
    """
    for first, second in _NETWORKS[len(entries)]:
        mean, variance, other, spread = ordered(entries[first], entries[second])
        entries[first], entries[second] = (mean, variance), (other, spread)
    most = entries[0]
    for entry in entries[1:]:
        most = maximum_moments(most, entry)
    return most


def take_largest(
    means: Tensor, variances: Tensor, is_valid: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the largest mean of the last dimension and the variance that belongs to it."""
    keys = means if is_valid is None else means.masked_fill(~is_valid, -torch.inf)
    mean, place = keys.max(-1, keepdim=True)
    return mean.squeeze(-1), variances.gather(-1, place).squeeze(-1)


def maximum_over_last(
    means: Tensor, variances: Tensor, is_valid: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the moments of a maximum under the current choice of rules."""
    chosen = take_largest if current_rules() == "taylor" else fold_maximum
    return chosen(means, variances, is_valid)


def _windows(x: Tensor, geometry: Sequence[tuple[int, int, int]]) -> Tensor:
    """Return windows over the last sides, flattened into one more dimension at the end."""
    num_sides = len(geometry)
    first = x.ndim - num_sides
    for side, (kernel, stride, dilation) in enumerate(geometry):
        x = x.unfold(first + side, dilation * (kernel - 1) + 1, stride)[..., ::dilation]
    return x.flatten(x.ndim - num_sides)


def _places(x: Tensor, geometry: Sequence[tuple[int, int, int]]) -> list[Tensor]:
    """Return, for each place in a window, its entries in all windows: views of the input."""
    first = x.ndim - len(geometry)
    for side, (kernel, stride, dilation) in enumerate(geometry):
        dim = first + side
        if kernel == stride and dilation == 1 and x.shape[dim] % kernel == 0:
            # Windows that tile the side: gradients come back as they are, with nothing to add.
            x = x.unflatten(dim, (-1, kernel)).movedim(dim + 1, -1)
        else:
            x = x.unfold(dim, dilation * (kernel - 1) + 1, stride)[..., ::dilation]
    views = [x]
    for _ in geometry:
        # Taken apart at once: the gradient is one tensor, not one of zeros for each place.
        views = [place for view in views for place in view.unbind(first + len(geometry))]
    return views


def _max_pool(
    x: Moments,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    ceil_mode: bool,
) -> Moments:
    num_sides = len(kernel)
    plain = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[num_sides - 1]
    v = x.variance_or_none
    if v is None:
        return Moments(plain(x.expected, kernel, stride, padding, dilation, ceil_mode))
    sides = x.shape[-num_sides:]
    pads: list[int] = []
    for side, k, s, p, d in zip(sides, kernel, stride, padding, dilation, strict=True):
        span = d * (k - 1) + 1
        steps = (side + 2 * p - span) / s
        count = (math.ceil(steps) if ceil_mode else math.floor(steps)) + 1
        if ceil_mode and (count - 1) * s >= side + p:
            count -= 1  # torch drops a window that starts beyond the padded image
        pads = [p, max(0, (count - 1) * s + span - side - p), *pads]
    geometry = list(zip(kernel, stride, dilation, strict=True))
    is_valid = None
    m, v = precise(x)
    if any(pads):
        inside = torch.ones(sides, dtype=torch.bool, device=m.device)
        is_valid = _windows(F.pad(inside, pads), geometry)
        m, v = F.pad(m, pads), F.pad(v, pads)
    if is_valid is None and math.prod(kernel) in _NETWORKS and current_rules() == "exact":
        pairs = zip(_places(m, geometry), _places(v, geometry), strict=True)
        mean, variance = fold_few(list(pairs))
    else:
        mean, variance = maximum_over_last(_windows(m, geometry), _windows(v, geometry), is_valid)
    return Moments(mean.to(x.dtype), variance)


def _register_max_pool(num_sides: int, *functions: Any) -> None:
    def implementation(
        input: Moments,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Sizes = 0,
        dilation: Sizes = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Moments:
        if return_indices:
            raise ValueError(
                "return_indices must be False for moments: no one entry is the largest"
            )
        kernel = per_side(kernel_size, num_sides)
        return _max_pool(
            input,
            kernel,
            per_side(stride, num_sides) if stride else kernel,
            per_side(padding, num_sides),
            per_side(dilation, num_sides),
            ceil_mode,
        )

    rule(*functions)(implementation)


_register_max_pool(1, F.max_pool1d, torch.max_pool1d, F.max_pool1d_with_indices)
_register_max_pool(2, F.max_pool2d, torch.max_pool2d, F.max_pool2d_with_indices)
_register_max_pool(3, F.max_pool3d, torch.max_pool3d, F.max_pool3d_with_indices)


def _register_adaptive_max_pool(num_sides: int, *functions: Any) -> None:
    def implementation(input: Moments, output_size: Any, return_indices: bool = False) -> Moments:
        if return_indices:
            raise ValueError(
                "return_indices must be False for moments: no one entry is the largest"
            )
        sides = list(input.shape[-num_sides:])
        sizes = output_sizes(output_size, sides)
        if any(side % size for side, size in zip(sides, sizes, strict=True)):
            raise ValueError(
                f"output_size of adaptive max pooling must divide the sides {sides} for moments, "
                f"got {sizes}; pad or crop the input"
            )
        kernel = [side // size for side, size in zip(sides, sizes, strict=True)]
        return _max_pool(input, kernel, kernel, [0] * num_sides, [1] * num_sides, False)

    rule(*functions)(implementation)


def output_sizes(output_size: Any, sides: list[int]) -> list[int]:
    """Return the sizes adaptive pooling gives; None keeps a side."""
    given = [output_size] * len(sides) if not isinstance(output_size, Sequence) else output_size
    given = list(given) * len(sides) if len(given) == 1 else given
    return [side if size is None else size for size, side in zip(given, sides, strict=True)]


_register_adaptive_max_pool(1, F.adaptive_max_pool1d, F.adaptive_max_pool1d_with_indices)
_register_adaptive_max_pool(2, F.adaptive_max_pool2d, F.adaptive_max_pool2d_with_indices)
_register_adaptive_max_pool(3, F.adaptive_max_pool3d, F.adaptive_max_pool3d_with_indices)
