"""The sums of attention by pooled rules as one operation on a GPU, which writes no scores down.

Second derivatives, and those of `torch.func` or forward mode, are left to torch's own operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bayesify.moments.bfloat16_kernels import has_bfloat16
from bayesify.moments.fused_attention import (
    SMALL_TILES,
    Tiles,
    alike,
    blocks,
    has_much_shared_memory,
    tokens_like,
)
from bayesify.moments.own_derivatives import gradients_openly
from bayesify.moments.pooled_sums import attended_and_total

# The fastest of some on an H200, with 197 tokens of 64 features (`benchmarks/attention_gpu.py`).
TILES = {
    "forward": Tiles(64, 32, 4, 1),
    "of_targets": Tiles(64, 32, 4, 3),
    "of_sources": Tiles(32, 64, 4, 3),
}


def fused_sums(
    q: Tensor, k: Tensor, v: Tensor, numbers: Sequence[Tensor], scale: float
) -> tuple[Tensor, Tensor]:
    """Return attended values and totals; `pooled_sums.attended_and_total` has the arguments.

    The numbers are float32.
    """
    mean, total, *_ = _sums(q, k, v, [each.contiguous() for each in numbers], scale)
    return mean, total


@torch.library.custom_op("bayesify::pooled_attention", mutates_args=())
def _sums(
    q: Tensor, k: Tensor, v: Tensor, numbers: list[Tensor], scale: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    if has_bfloat16(q.device):
        return run_forward(q, k, v, numbers, scale)
    results = _shapes(q, k, v, numbers, scale)
    for room, found in zip(results, attended_and_total(q, k, v, numbers, scale), strict=False):
        room.copy_(found)
    return results


@_sums.register_fake
def _shapes(
    q: Tensor, k: Tensor, v: Tensor, numbers: list[Tensor], scale: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    del k, v, scale
    out, o_rest, pull = (tokens_like(q) for _ in range(3))
    total, lse, rest = (torch.empty_like(numbers[0]) for _ in range(3))
    return out, total, o_rest, pull, lse, rest


@torch.library.custom_op("bayesify::pooled_attention_backward", mutates_args=())
def _sums_backward(
    inputs: list[Tensor], saved: list[Tensor], of_mean: Tensor, of_total: Tensor, scale: float
) -> list[Tensor]:
    return run_backward(inputs, saved, of_mean, of_total, scale)


@_sums_backward.register_fake
def _gradient_shapes(
    inputs: list[Tensor], saved: list[Tensor], of_mean: Tensor, of_total: Tensor, scale: float
) -> list[Tensor]:
    del saved, of_mean, of_total, scale
    return [*(tokens_like(each) for each in inputs[:3]), *map(torch.empty_like, inputs[3:])]


def _keep_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    q, k, v, numbers, ctx.scale = inputs
    ctx.save_for_backward(q, k, v, *numbers, *output)


def _backward(ctx: Any, of_mean: Tensor, of_total: Tensor, *_: Any) -> tuple[Any, ...]:
    inputs, saved = list(ctx.saved_tensors[:8]), list(ctx.saved_tensors[8:])
    is_again = torch.is_grad_enabled() and not torch.compiler.is_compiling()
    if is_again or not has_bfloat16(of_mean.device):
        call = partial(_openly, scale=ctx.scale)
        grads = gradients_openly(call, inputs, (of_mean, of_total), create_graph=is_again)
    else:
        grads = _sums_backward(inputs, saved, of_mean, of_total.contiguous(), ctx.scale)
    return *grads[:3], grads[3:], None


def _openly(tensors: list[Tensor], scale: float) -> tuple[Tensor, Tensor]:
    q, k, v, *numbers = tensors
    return attended_and_total(q, k, v, numbers, scale)


_sums.register_autograd(_backward, setup_context=_keep_for_backward)


def run_forward(
    q: Tensor, k: Tensor, v: Tensor, numbers: list[Tensor], scale: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return attended values and totals, and for gradients what `pooled_attention_kernels` says."""
    from bayesify.moments import pooled_attention_kernels as kernels

    out, total, o_rest, pull, lse, rest = results = _shapes(q, k, v, numbers, scale)
    (q,), (k, v) = alike(q), alike(k, v)
    sizes = (scale, q.shape[1], q.shape[2], k.shape[2], *q.stride()[:3], *k.stride()[:3])
    made = (out, o_rest, pull, total, lse, rest)
    _launch(kernels.forward, q, q.shape[2], "M", q, k, v, *numbers, *made, *sizes)
    return results


def run_backward(
    inputs: list[Tensor], saved: list[Tensor], of_mean: Tensor, of_total: Tensor, scale: float
) -> list[Tensor]:
    """Return the gradients of everything that the operation was given but the scale."""
    from bayesify.moments import pooled_attention_kernels as kernels

    grads = _gradient_shapes(inputs, saved, of_mean, of_total, scale)
    q, k, v, *numbers = inputs
    out, total, o_rest, pull, lse, rest = saved
    (q,), (k, v), (of_mean,) = alike(q), alike(k, v), alike(of_mean)
    g_out, waiting = tokens_like(q), torch.empty_like(total)
    sizes = (scale, q.shape[1], q.shape[2], k.shape[2], *q.stride()[:3], *k.stride()[:3])
    _launch(
        kernels.of_targets, q, q.shape[2], "M",
        q, k, v, *numbers, out, o_rest, pull, total, lse, rest, of_mean, of_total,
        g_out, waiting, grads[0], *grads[3:5], *sizes, *of_mean.stride()[:3],
    )  # fmt: skip
    _launch(
        kernels.of_sources, q, k.shape[2], "N",
        q, k, v, *numbers, out, lse, g_out, waiting, of_total, *grads[1:3], *grads[5:], *sizes,
    )  # fmt: skip
    return grads


def _launch(kernel: Any, q: Tensor, tokens: int, along: str, *args: Any) -> None:
    """Run a kernel whose programs have a block of tokens each, targets (M) or sources (N)."""
    small = SMALL_TILES["means"]
    tiles = TILES[kernel.fn.__name__] if has_much_shared_memory(q.device) else small
    # A program of 128 features holds as much as two of 64.
    narrow = 2 if q.shape[3] > 64 else 1
    settings = {"M": tiles.targets // narrow, "N": tiles.sources // narrow}
    programs = q.shape[0] * q.shape[1] * blocks(tokens, settings[along])
    with torch.cuda.device_of(q):
        kernel[(programs,)](
            *args, **settings, D=q.shape[3], num_warps=tiles.warps, num_stages=tiles.stages
        )
