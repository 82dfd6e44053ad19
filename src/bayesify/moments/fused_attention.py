"""Attention by moments as one operation on a GPU, whose memory grows with the tokens alone.

Gradients take half a gigabyte more, and beyond 4,600 sources 115 kB for each.

Second derivatives, and those of `torch.func` or forward mode, are left to the open form.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bayesify.moments.bfloat16_kernels import HAS_TRITON, has_bfloat16
from bayesify.moments.moments import Moments
from bayesify.moments.open_attention import attend_openly
from bayesify.moments.own_derivatives import gradients_openly, has_no_other_derivatives

FEATURES = (16, 32, 64, 128)
DEVICES, TYPES = ("cuda",), (torch.bfloat16,)


class Tiles(NamedTuple):
    """How many targets and sources a program looks at together, by how many warps of threads."""

    targets: int
    sources: int
    warps: int
    stages: int


# The fastest of some on an H200, with 197 tokens of 64 features (`benchmarks/attention_gpu.py`).
# They take up to 113 KiB of shared memory there. On other GPUs they have not been tried.
TILES = {
    "means": Tiles(64, 32, 4, 2),
    "variances": Tiles(64, 32, 4, 2),
    "of_targets": Tiles(64, 32, 4, 2),
    "of_queries": Tiles(64, 64, 4, 2),
    "of_sources": Tiles(32, 64, 4, 2),
}
# For GPUs that have less of it.
SMALL_TILES = dict.fromkeys(TILES, Tiles(32, 32, 4, 1))
_MUCH_SHARED_MEMORY = 120_000
# Of kernels that make factors: targets of a program, and the most entries that one looks at.
_MAKING, _MOST_AT_ONCE = 32, 256 * 64
# Matrices of targets by sources that are written down for the gradients, and room for them.
NUM_MATRICES, MATRIX_BYTES, LEAST_ROWS = 7, 2**29, 8192


def can_fuse(query: Moments, key: Moments, value: Moments) -> bool:
    """Whether there are kernels for these: bfloat16 on a GPU, all of them with a variance."""
    parts = (query, key, value)
    return (
        HAS_TRITON
        and query.device.type in DEVICES
        and query.device == key.device == value.device
        and all(each.dtype in TYPES and not each.is_certain for each in parts)
        and query.ndim == key.ndim == 4
        and key.shape == value.shape
        and (*query.shape[:2], query.shape[3]) == (*key.shape[:2], key.shape[3])
        and query.shape[3] in FEATURES
        and min(query.shape.numel(), key.shape.numel()) > 0
        and has_no_other_derivatives()
    )


def fused_attention(query: Moments, key: Moments, value: Moments, scale: float) -> Moments:
    """Return attended values, given (batch, heads, tokens, features)."""
    tensors = [part for each in (query, key, value) for part in each.pair()]
    mean, variance, *_ = _attention(*tensors, scale)
    return Moments(mean, variance)


@torch.library.custom_op("bayesify::attention_moments", mutates_args=())
def _attention(
    q: Tensor, qv: Tensor, k: Tensor, kv: Tensor, v: Tensor, vv: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    if has_bfloat16(q.device):
        return run_forward(q, qv, k, kv, v, vv, scale)
    results = _attention_shapes(q, qv, k, kv, v, vv, scale)
    for room, found in zip(results, _openly([q, qv, k, kv, v, vv], scale), strict=False):
        room.copy_(found)
    return results


@_attention.register_fake
def _attention_shapes(
    q: Tensor, qv: Tensor, k: Tensor, kv: Tensor, v: Tensor, vv: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    del k, kv, v, vv, scale
    out, o_rest, centre, pull = (tokens_like(q) for _ in range(4))
    lse, share = (q.new_empty(q.shape[:3], dtype=torch.float32) for _ in range(2))
    peak = torch.empty_like(lse, dtype=torch.int32)
    return out, tokens_like(q, qv.dtype), o_rest, centre, pull, lse, share, peak


@torch.library.custom_op("bayesify::attention_moments_backward", mutates_args=())
def _attention_backward(
    inputs: list[Tensor], saved: list[Tensor], of_mean: Tensor, of_variance: Tensor, scale: float
) -> list[Tensor]:
    return run_backward(inputs, saved, of_mean, of_variance, scale)


@_attention_backward.register_fake
def _gradient_shapes(
    inputs: list[Tensor], saved: list[Tensor], of_mean: Tensor, of_variance: Tensor, scale: float
) -> list[Tensor]:
    del saved, of_mean, of_variance, scale
    return [tokens_like(each) for each in inputs]


def _keep_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.scale = inputs
    mean, _, *rest = output
    ctx.save_for_backward(*tensors, mean, *rest)


def _backward(ctx: Any, of_mean: Tensor, of_variance: Tensor, *_: Any) -> tuple[Any, ...]:
    tensors = list(ctx.saved_tensors)
    given = (of_mean, of_variance)
    is_again = torch.is_grad_enabled() and not torch.compiler.is_compiling()
    if is_again or not has_bfloat16(of_mean.device):
        call = partial(_openly, scale=ctx.scale)
        return *gradients_openly(call, tensors[:6], given, create_graph=is_again), None
    grads = _attention_backward(tensors[:6], tensors[6:], *given, ctx.scale)
    return (*grads, None)


def _openly(tensors: list[Tensor], scale: float) -> tuple[Tensor, Tensor]:
    parts = (Moments(*tensors[index : index + 2]) for index in (0, 2, 4))
    return attend_openly(*parts, mask=None, dropout=0.0, scale=scale).pair()


_attention.register_autograd(_backward, setup_context=_keep_for_backward)


def run_forward(
    q: Tensor, qv: Tensor, k: Tensor, kv: Tensor, v: Tensor, vv: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return mean and variance, and for gradients what `attention_kernels` names.

    That is the rest of o, c, sum_j w_ij (v_j - o_i), log2 of the softmax's total, the sum in u,
    and peaks.
    """
    from bayesify.moments import attention_kernels as kernels

    results = _attention_shapes(q, qv, k, kv, v, vv, scale)
    out, out_v, o_rest, centre, pull, lse, share, peak = results
    run = _Run(q, qv, k, kv, v, vv)
    v_mean, keys, k_square, values, v_square, v_rest = run.sources_made(with_rest=True)
    q, qv, _, kv, _, vv = run.tensors
    sizes = (scale, run.heads, run.targets, run.sources, *run.strides)
    made = (out, o_rest, centre, lse, share, peak)
    run.over_targets(kernels.means, run.whole, q, qv, kv, keys, values, v_mean, *made, *sizes)
    made = (keys, k_square, values, v_square, v_rest, v_mean, *made)
    run.over_targets(kernels.variances, run.whole, q, qv, kv, vv, *made, out_v, pull, *sizes)
    return results


def run_backward(
    inputs: list[Tensor], saved: list[Tensor], of_mean: Tensor, of_variance: Tensor, scale: float
) -> list[Tensor]:
    """Return the gradients of means and variances of queries, keys and values."""
    from bayesify.moments import attention_gradients as kernels

    run = _Run(*inputs)
    out, o_rest, centre, pull, lse, share, peak = saved
    g, r = alike(of_mean, of_variance)
    v_mean, keys, k_square, values, v_square, _ = run.sources_made(with_rest=False)
    q, qv, _, kv, _, vv = run.tensors
    second, shifted, of_out, of_offset, of_centre = (run.made(q) for _ in range(5))
    level, g_level, along, of_share, within = (run.rows() for _ in range(5))
    g_peak, gs_peak, ga_peak, pa_peak = (run.rows() for _ in range(4))
    sizes = (scale, run.heads, run.targets, run.sources)
    strides = (*run.strides, *r.stride()[:3])
    run.launch(
        kernels.targets_made, run.count * blocks(run.targets, _MAKING),
        q, qv, kv, vv, keys, k_square, values, out, o_rest, v_mean, centre, pull, lse, share, peak,
        g, r,
        second, shifted, of_out, of_offset, level, g_level, along,
        g_peak, gs_peak, ga_peak, pa_peak, *sizes, *strides, D=run.features, M=_MAKING,
    )  # fmt: skip
    across = 16 * blocks(run.sources, 16)
    parts = _parts(run.count, run.targets, across, q.element_size())
    grads = [tokens_like(each) for each in inputs[:2]]
    # Sums over targets have all of their digits until the last is added.
    dtype = None if parts[0].last == run.targets else torch.float32
    sums = [tokens_like(each, dtype) for each in inputs[2:]]
    room = q.new_empty(NUM_MATRICES, parts[0].heads, parts[0].last, across).unbind()
    for part in parts:
        which = (part.first_head, part.first, part.last, across)
        run.over_targets(
            kernels.of_targets, part,
            q, qv, kv, vv, r, keys, k_square, values, v_square, second, shifted, of_offset, centre,
            lse, share, peak, level, g_level, along, g_peak,
            of_centre, of_share, within, grads[1], *room, *sizes, *strides, *which,
        )  # fmt: skip
        run.over_targets(
            kernels.of_queries, part,
            q, kv, keys, values, of_out, of_centre, lse, peak, of_share, within, gs_peak, ga_peak,
            pa_peak, *grads, *room[4:], *sizes, *run.strides[:3], *run.strides[6:], *which,
        )  # fmt: skip
        run.over_sources(
            kernels.of_sources, part,
            q, qv, r, keys, values, second, shifted, of_offset, of_out, of_centre, *room[:-1],
            *sums, *sizes[1:], *run.strides[:6], *r.stride()[:3], *which,
        )  # fmt: skip
    return [*grads, *(each.to(like.dtype) for each, like in zip(sums, inputs[2:], strict=True))]


class _Part(NamedTuple):
    """Heads and targets that are looked at together."""

    first_head: int
    heads: int
    first: int
    last: int


def _parts(heads: int, targets: int, across: int, size: int) -> list[_Part]:
    """Return parts whose matrices have room in `MATRIX_BYTES`, the first the largest.

    Of many sources a part has more: `LEAST_ROWS` rows, for as many programs as a GPU can run.
    """
    rows = max(MATRIX_BYTES // (NUM_MATRICES * across * size), LEAST_ROWS)
    rows = min(rows, max(1, (2**31 - 1) // across))  # kernels count a part's entries in 32 bits
    if rows >= targets:
        many = rows // targets
        return [_Part(head, min(many, heads - head), 0, targets) for head in range(0, heads, many)]
    step = blocks(targets, blocks(targets, rows))
    return [
        _Part(head, 1, first, min(first + step, targets))
        for head in range(heads)
        for first in range(0, targets, step)
    ]


class _Run:
    """What all kernels of one attention take."""

    def __init__(self, *tensors: Tensor) -> None:
        self.tensors = _aligned(*tensors)
        q, qv, k, kv, _, _ = self.tensors
        batch, self.heads, self.targets, self.features = q.shape
        self.count, self.sources = batch * self.heads, k.shape[2]
        self.whole = _Part(0, self.count, 0, self.targets)
        self.strides = [stride for each in (q, qv, kv) for stride in each.stride()[:3]]
        self.tiles = TILES if has_much_shared_memory(q.device) else SMALL_TILES

    def rows(self) -> Tensor:
        """Return room for one number of each target."""
        return self.tensors[0].new_empty(self.tensors[0].shape[:3], dtype=torch.float32)

    def made(self, like: Tensor) -> Tensor:
        """Return room for factors, (batch, heads, tokens, features) in memory too."""
        return self.tensors[0].new_empty(like.shape)

    def sources_made(self, *, with_rest: bool) -> list[Tensor]:
        """Return the mean of values, and factors of products: k, k^2, v, and v^2 in two parts.

        Without the rest of v^2, its second part, there is nothing in that.
        """
        from bayesify.moments.attention_kernels import sources_made

        _, _, k, _, v, _ = self.tensors
        v_mean = v.new_empty((self.count, self.features), dtype=torch.float32)
        made = [v_mean, *(self.made(k) for _ in range(4))]
        made.append(self.made(k) if with_rest else k.new_empty(0))
        # All sources of a head at once, where they are not many.
        rows = min(_power_of_two(self.sources), _MOST_AT_ONCE // self.features)
        self.launch(
            sources_made, self.count, k, v, *made, self.heads, self.sources, *k.stride()[:3],
            REST=with_rest, D=self.features, N=rows, num_warps=8,
        )  # fmt: skip
        return made

    def over_targets(self, kernel: Any, part: _Part, *args: Any) -> None:
        """Run a kernel whose programs have a block of targets each."""
        settings = self._settings(kernel)
        programs = part.heads * blocks(part.last - part.first, settings["M"])
        self.launch(kernel, programs, *args, **settings)

    def over_sources(self, kernel: Any, part: _Part, *args: Any) -> None:
        """Run a kernel whose programs have a block of sources each."""
        settings = self._settings(kernel)
        self.launch(kernel, part.heads * blocks(self.sources, settings["N"]), *args, **settings)

    def launch(self, kernel: Any, programs: int, *args: Any, **settings: int) -> None:
        """Run a kernel on the device of the tensors."""
        with torch.cuda.device_of(self.tensors[0]):
            kernel[(programs,)](*args, **settings)

    def _settings(self, kernel: Any) -> dict[str, int]:
        tiles = self.tiles[kernel.fn.__name__]
        # A program of 128 features holds as much as two of 64.
        narrow = 2 if self.features > 64 else 1
        return {
            "D": self.features,
            "M": tiles.targets // narrow,
            "N": tiles.sources // narrow,
            "num_warps": tiles.warps,
            "num_stages": tiles.stages,
        }


def blocks(length: int, size: int) -> int:
    """Return how many blocks of a size it takes."""
    return -(-length // size)


def _power_of_two(least: int) -> int:
    return 1 << (least - 1).bit_length()


def alike(*tensors: Tensor) -> list[Tensor]:
    """Return tensors of the same strides, with features side by side."""
    strides = {each.stride() for each in tensors}
    if len(strides) == 1 and tensors[0].stride(-1) == 1:
        return list(tensors)
    return [_as_tokens(each) for each in tensors]


def _aligned(*tensors: Tensor) -> list[Tensor]:
    """Return tensors with features side by side, and keys and values with the same strides."""
    q, qv, k, kv, v, vv = tensors
    (q,), (qv,), (k, v), (kv, vv) = (alike(*each) for each in ((q,), (qv,), (k, v), (kv, vv)))
    return [q, qv, k, kv, v, vv]


def _as_tokens(tensor: Tensor) -> Tensor:
    """Return (batch, heads, tokens, features), in memory (batch, tokens, heads, features)."""
    return tensor.transpose(1, 2).contiguous().transpose(1, 2)


def has_much_shared_memory(device: torch.device) -> bool:
    """Whether a program has room for the larger tiles."""
    if device.type != "cuda":
        return True
    room = torch.cuda.get_device_properties(device).shared_memory_per_block_optin
    return room >= _MUCH_SHARED_MEMORY


def tokens_like(tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return room for (batch, heads, tokens, features), tokens before heads in memory."""
    batch, heads, tokens, features = tensor.shape
    empty = tensor.new_empty((batch, tokens, heads, features), dtype=dtype or tensor.dtype)
    return empty.transpose(1, 2)
