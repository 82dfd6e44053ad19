"""Linear layers with few live weights on a CPU: products that touch the live weights only.

On one thread a compressed product (CSR) beats the dense one from a tenth of the weights down, and
more so the fewer there are; so do its two backward products, by the transposed layout and by a
product sampled at the live positions, once a matrix is large enough for the calls not to count
(`benchmarks/sparse_subspace.py`).
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import peek_interpreter_stack
from torch.autograd.function import once_differentiable

from bayesify.conversion.posterior import Posterior

LARGEST_DENSITY = 0.1
# Below this many weights the calls themselves take the time: of a forward pass, of a training step.
LEAST_WEIGHTS, LEAST_TRAINED = 50_000, 500_000


@dataclass(frozen=True)
class Layout:
    """Where the live weights of a matrix are, by rows and by columns.

    Attributes:
        index: The positions it was made from.
        version: How often those had been written to by then: a checkpoint is read into them.
        shape: Rows and columns of the matrix.
        rows: Row pointers and columns of the compressed matrix.
        columns: The same of its transpose.
        order: Where the transpose takes each of its values from.
    """

    index: Tensor
    version: int
    shape: tuple[int, int]
    rows: tuple[Tensor, Tensor]
    columns: tuple[Tensor, Tensor]
    order: Tensor


def can_be_compressed(posterior: Posterior, inputs: Tensor) -> bool:
    """Whether a linear layer of this weight is faster by its live weights alone, here and now."""
    index = posterior.index
    return (
        index is not None
        and len(posterior.shape) == 2
        and (posterior.random_index is None or posterior.num_random == 0)
        and not posterior.keeps_gradient
        and posterior.shape.numel() >= (LEAST_TRAINED if torch.is_grad_enabled() else LEAST_WEIGHTS)
        and index.numel() <= LARGEST_DENSITY * posterior.shape.numel()
        and type(inputs) is Tensor
        and inputs.is_cpu
        and inputs.dtype in (torch.float32, torch.float64)
        and inputs.dtype == next(posterior.parameters()).dtype
        and inputs.numel() > 0
        and not torch.compiler.is_compiling()
        and not torch.is_autocast_enabled("cpu")
        and peek_interpreter_stack() is None
        and layout_of(posterior) is not None
    )


def compressed_linear(posterior: Posterior, values: Tensor, inputs: Tensor) -> Tensor:
    """Return inputs · weightᵀ, the weight's live entries having these values."""
    flat = inputs.reshape(-1, inputs.shape[-1])
    layout = layout_of(posterior)
    assert layout is not None
    output = _CompressedLinear.apply(values, flat, layout)
    return output.view(*inputs.shape[:-1], posterior.shape[0])


def layout_of(posterior: Posterior) -> Layout | None:
    """Return the layout of a posterior's live weights, made anew when they have moved.

    None where they are not stored in ascending order, which rows need.
    """
    known = posterior._layout
    index = posterior.index
    assert index is not None
    if known is not None and known.index is index and known.version == index._version:
        return known
    if not bool((index.diff() > 0).all()):
        return None
    num_rows, num_columns = posterior.shape
    row, column = index // num_columns, index % num_columns
    order = (column.long() * num_rows + row).argsort().to(torch.int32)
    made = Layout(
        index,
        index._version,
        (num_rows, num_columns),
        (_pointers(row, num_rows), column),
        (_pointers(column[order], num_columns), row[order]),
        order,
    )
    posterior._layout = made
    return made


def _pointers(sorted_rows: Tensor, count: int) -> Tensor:
    bounds = torch.arange(count + 1, dtype=sorted_rows.dtype)
    return torch.searchsorted(sorted_rows, bounds, out_int32=True)


def _matrix(pointers: tuple[Tensor, Tensor], values: Tensor, shape: tuple[int, int]) -> Tensor:
    with warnings.catch_warnings():
        for known in ("Sparse CSR tensor support is in beta", "Sparse invariant checks are"):
            warnings.filterwarnings("ignore", message=known)
        return torch.sparse_csr_tensor(*pointers, values, shape, check_invariants=False)


class _CompressedLinear(torch.autograd.Function):
    """Forward by rows; backward by columns for the inputs, at the live positions for the weight."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, inputs: Tensor, layout: Layout) -> Tensor:
        ctx.save_for_backward(values, inputs)
        ctx.layout = layout
        return (_matrix(layout.rows, values, layout.shape) @ inputs.T.contiguous()).T.contiguous()

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, gradient: Tensor
    ) -> tuple[Tensor | None, Tensor | None, None]:
        values, inputs = ctx.saved_tensors
        layout: Layout = ctx.layout
        of_values = of_inputs = None
        by_units = gradient.T.contiguous()
        if ctx.needs_input_grad[0]:
            empty = _matrix(layout.rows, torch.zeros_like(values), layout.shape)
            sampled = torch.sparse.sampled_addmm(empty, by_units, inputs.contiguous(), beta=0.0)
            of_values = sampled.values()
        if ctx.needs_input_grad[1]:
            num_rows, num_columns = layout.shape
            turned = _matrix(layout.columns, values[layout.order], (num_columns, num_rows))
            of_inputs = (turned @ by_units).T.contiguous()
        return of_values, of_inputs, None
