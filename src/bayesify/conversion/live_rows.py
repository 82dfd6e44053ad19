"""Layers of which only some output units exist: a smaller dense layer computes those.

A sparse subspace of whole filters keeps or drops all weights of an output unit together. Its
layer is then a dense one with fewer outputs, which every device computes fast; the others are 0,
or their bias.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch._C._functorch import peek_interpreter_stack

from bayesify.conversion.posterior import Posterior

# Below this many weights the smaller layer saves less than it costs to put its outputs in place.
LEAST_WEIGHTS = 5_000
LARGEST_DENSITY = 0.5


@dataclass(frozen=True)
class Rows:
    """Which rows of a matrix exist.

    Attributes:
        index: The positions it was made from.
        version: How often those had been written to by then.
        rows: The rows, or None where some row exists in part.
    """

    index: Tensor
    version: int
    rows: Tensor | None


def live_rows(layer: nn.Module, posterior: Posterior, inputs: Tensor) -> Tensor | None:
    """Return the output units that exist, where a layer is faster by those alone, here and now."""
    index = posterior.index
    if (
        index is None
        or posterior.keeps_gradient
        or posterior.shape.numel() < LEAST_WEIGHTS
        or index.numel() > LARGEST_DENSITY * posterior.shape.numel()
        or not isinstance(layer, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d))
        or getattr(layer, "groups", 1) != 1
        or type(inputs) is not Tensor
        or torch.compiler.is_compiling()
        or peek_interpreter_stack() is not None
    ):
        return None
    return _rows_of(posterior, index)


def _rows_of(posterior: Posterior, index: Tensor) -> Tensor | None:
    known: Rows | None = posterior._rows
    if known is not None and known.index is index and known.version == index._version:
        return known.rows
    width = posterior.shape[1:].numel()
    rows = None
    if index.numel() and index.numel() % width == 0:
        firsts = index[::width].long()
        whole = firsts[:, None] + torch.arange(width, device=index.device)
        if bool((firsts % width == 0).all()) and bool((whole.flatten() == index).all()):
            rows = firsts // width
    posterior._rows = Rows(index, index._version, rows)
    return rows


def by_live_rows(
    layer: nn.Module, rows: Tensor, bias: Tensor | None, compute: Callable[[Any], Tensor]
) -> Tensor:
    """Return a layer's output from that of the smaller layer.

    Args:
        layer: The whole layer.
        rows: Its output units that exist.
        bias: Its bias, which all units have.
        compute: Returns the output of the smaller layer, given the bias of its units.
    """
    part = compute(None if bias is None else bias.index_select(0, rows))
    axis, num_units = part.ndim - 1, getattr(layer, "out_features", None)
    if num_units is None:
        convolution = cast(nn.Conv2d, layer)
        axis, num_units = axis - len(convolution.kernel_size), convolution.out_channels
    shape, sizes = list(part.shape), [1] * part.ndim
    shape[axis], sizes[axis] = num_units, -1
    whole = part.new_zeros(shape)
    if bias is not None:
        whole = whole + bias.to(part.dtype).view(sizes)
    return whole.index_copy(axis, rows, part)
