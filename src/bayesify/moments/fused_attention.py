"""Attention by moments as one operation on a GPU, whose memory grows with the tokens alone.

Second derivatives, and those of `torch.func` or forward mode, are left to the open form.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from bayesify.moments.bfloat16_kernels import HAS_TRITON, has_bfloat16
from bayesify.moments.moments import Moments
from bayesify.moments.open_attention import attend_openly
from bayesify.moments.own_derivatives import has_no_other_derivatives

FEATURES = (16, 32, 64, 128)
DEVICES, TYPES = ("cuda",), (torch.bfloat16,)


class Tiles(NamedTuple):
    """How many targets and sources a program looks at together, by how many warps of threads."""

    targets: int
    sources: int
    warps: int
    stages: int


# The fastest of some on an H200, with 197 tokens of 64 features (`benchmarks/attention_gpu.py`).
# They take up to 196 KiB of shared memory there, and 154 on an A100.
TILES = {
    "means": Tiles(64, 32, 4, 2),
    "variances": Tiles(64, 32, 4, 2),
    "of_targets": Tiles(128, 64, 8, 2),
    "of_queries": Tiles(128, 32, 8, 2),
    "of_values": Tiles(32, 64, 4, 2),
    "of_keys": Tiles(32, 64, 4, 2),
}
# For GPUs that have less of it.
SMALL_TILES = dict.fromkeys(TILES, Tiles(32, 32, 4, 1))
_MUCH_SHARED_MEMORY = 160_000
_MAKING = 64


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
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    if has_bfloat16(q.device):
        return run_forward(q, qv, k, kv, v, vv, scale)
    results = _attention_shapes(q, qv, k, kv, v, vv, scale)
    for room, found in zip(results, _openly([q, qv, k, kv, v, vv], scale), strict=False):
        room.copy_(found)
    return results


@_attention.register_fake
def _attention_shapes(
    q: Tensor, qv: Tensor, k: Tensor, kv: Tensor, v: Tensor, vv: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    del k, kv, v, vv, scale
    rows = q.new_empty(q.shape[:3], dtype=torch.float32)
    means = [_tokens_like(q) for _ in range(3)]
    return means[0], _tokens_like(q, qv.dtype), means[1], means[2], rows, torch.empty_like(rows)


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
    return [_tokens_like(each) for each in inputs]


def _keep_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.scale = inputs
    mean, _, *rest = output
    ctx.save_for_backward(*tensors, mean, *rest)


def _backward(ctx: Any, of_mean: Tensor, of_variance: Tensor, *_: Any) -> tuple[Any, ...]:
    tensors = list(ctx.saved_tensors)
    given = (of_mean, of_variance)
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        # Gradients that have gradients. Of views: queries may be keys, and values too.
        views = [each.view_as(each) for each in tensors[:6]]
        return *_gradients_openly(views, given, ctx.scale, create_graph=True), None
    if not has_bfloat16(of_mean.device):
        leaves = [each.detach().requires_grad_() for each in tensors[:6]]
        return *_gradients_openly(leaves, given, ctx.scale, create_graph=False), None
    grads = _attention_backward(tensors[:6], tensors[6:], *given, ctx.scale)
    return (*grads, None)


def _gradients_openly(
    tensors: list[Tensor], given: tuple[Tensor, Tensor], scale: float, *, create_graph: bool
) -> list[Tensor | None]:
    wanted = [each for each in tensors if each.requires_grad]
    with torch.enable_grad():
        results = _openly(tensors, scale)
    found = iter(torch.autograd.grad(results, wanted, given, create_graph=create_graph))
    return [next(found) if each.requires_grad else None for each in tensors]


def _openly(tensors: list[Tensor], scale: float) -> tuple[Tensor, Tensor]:
    parts = (Moments(*tensors[index : index + 2]) for index in (0, 2, 4))
    return attend_openly(*parts, mask=None, dropout=0.0, scale=scale).pair()


_attention.register_autograd(_backward, setup_context=_keep_for_backward)


def run_forward(
    q: Tensor, qv: Tensor, k: Tensor, kv: Tensor, v: Tensor, vv: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return mean, variance, c, sum_j w_ij (v_j - o_i), log2 of the softmax's total, and the sum.

    See `attention_kernels` for these.
    """
    from bayesify.moments import attention_kernels as kernels

    head = _Head(q, qv, k, kv, v, vv, scale)
    out, centre, pull = (_tokens_like(q) for _ in range(3))
    offset, out_v = _tokens_like(q, torch.float32), _tokens_like(q, qv.dtype)
    lse, share = head.rows(), head.rows()
    keys, k_square, values, v_square, v_rest = head.sources_made()
    q, qv, _, kv, _, vv = head.tensors
    results = (out, centre, offset, lse, share)
    head.run(kernels.means, "targets", q, qv, kv, keys, values, head.v_mean, *results)
    made = (keys, k_square, values, v_square, v_rest, centre, offset, lse, share)
    head.run(kernels.variances, "targets", q, qv, kv, vv, *made, out_v, pull)
    return out, out_v, centre, pull, lse, share


def run_backward(
    inputs: list[Tensor], saved: list[Tensor], of_mean: Tensor, of_variance: Tensor, scale: float
) -> list[Tensor]:
    """Return the gradients of means and variances of queries, keys and values."""
    from bayesify.moments import attention_gradients as kernels

    head = _Head(*inputs, scale)
    out, centre, pull, lse, share = saved
    g, r = _alike(of_mean, of_variance)
    grads = [_tokens_like(each) for each in inputs]
    grad_q, grad_qv, grad_k, grad_kv, grad_v, grad_vv = grads
    keys, k_square, values, v_square, _ = head.sources_made()
    q, qv, _, kv, _, vv = head.tensors
    second, shifted, of_out, of_offset, of_centre = (head.made(q) for _ in range(5))
    level, g_level, along, of_share, delta = (head.rows() for _ in range(5))
    head.make(
        kernels.targets_made, "targets",
        q, qv, out, head.v_mean, centre, pull, g, r,
        second, shifted, of_out, of_offset, level, g_level, along,
        head.heads, head.targets, *q.stride()[:3], *qv.stride()[:3], *g.stride()[:3],
        D=head.features, M=_MAKING,
    )  # fmt: skip
    of_sources, of_targets = (keys, k_square, values, v_square), (second, shifted, of_offset)
    strides = r.stride()[:3]
    first = (q, qv, kv, vv, r, *of_sources, *of_targets)
    head.run(
        kernels.of_targets, "targets", *first, centre, lse, share, level, g_level, along,
        of_centre, grad_qv, of_share, delta, strides=strides,
    )  # fmt: skip
    first = (*first, of_out, of_centre, lse, share, level, g_level, of_share, delta)
    head.run(kernels.of_queries, "targets", *first, grad_q, grad_qv, strides=strides)
    head.run(kernels.of_keys, "sources", *first, grad_k, grad_kv, strides=strides)
    head.run(
        kernels.of_values, "sources", q, qv, kv, r, keys, k_square, values, *of_targets, of_out,
        lse, share, level, grad_v, grad_vv, strides=strides,
    )  # fmt: skip
    return grads


class _Head:
    """What all kernels of one attention take."""

    def __init__(self, *given: Any) -> None:
        *tensors, self.scale = given
        self.tensors = _aligned(*tensors)
        q, qv, k, kv, v, _ = self.tensors
        batch, self.heads, self.targets, self.features = q.shape
        self.count, self.sources = batch * self.heads, k.shape[2]
        self.k_mean, self.v_mean = (each.mean(2, dtype=torch.float32) for each in (k, v))
        self.strides = [stride for each in (q, qv, kv) for stride in each.stride()[:3]]
        self.tiles = _tiles_for(q.device)

    def rows(self) -> Tensor:
        """Return room for one number of each target."""
        return self.tensors[0].new_empty(self.tensors[0].shape[:3], dtype=torch.float32)

    def made(self, like: Tensor) -> Tensor:
        """Return room for factors, (batch, heads, tokens, features) in memory too."""
        return self.tensors[0].new_empty(like.shape)

    def make(self, kernel: Any, over: str, *args: Any, **sizes: int) -> None:
        """Run a kernel that makes factors of "targets" or of "sources"."""
        self._launch(kernel, getattr(self, over), _MAKING, *args, **sizes)

    def sources_made(self) -> list[Tensor]:
        """Return factors of products: k, k^2, v, and v^2 in two parts."""
        from bayesify.moments.attention_kernels import sources_made

        _, _, k, _, v, _ = self.tensors
        made = [self.made(k) for _ in range(5)]
        strides = k.stride()[:3]
        self.make(
            sources_made, "sources",
            k, v, self.k_mean, self.v_mean, *made, self.heads, self.sources, *strides,
            D=self.features, N=_MAKING,
        )  # fmt: skip
        return made

    def run(self, kernel: Any, over: str, *tensors: Tensor, strides: tuple[int, ...] = ()) -> None:
        """Run a kernel whose programs have a block of "targets" or of "sources" each."""
        tiles = self.tiles[kernel.fn.__name__]
        # A program of 128 features holds as much as two of 64.
        narrow = 2 if self.features > 64 else 1
        sizes = {"targets": tiles.targets // narrow, "sources": tiles.sources // narrow}
        self._launch(
            kernel, getattr(self, over), sizes[over],
            *tensors, self.scale, self.heads, self.targets, self.sources, *self.strides, *strides,
            D=self.features, M=sizes["targets"], N=sizes["sources"],
            num_warps=tiles.warps, num_stages=tiles.stages,
        )  # fmt: skip

    def _launch(self, kernel: Any, length: int, size: int, *args: Any, **settings: int) -> None:
        """Run a kernel for all blocks of all heads, on the device of the tensors."""
        with torch.cuda.device_of(self.tensors[0]):
            kernel[(-(-length // size) * self.count,)](*args, **settings)


def _alike(*tensors: Tensor) -> list[Tensor]:
    """Return tensors of the same strides, with features side by side."""
    strides = {each.stride() for each in tensors}
    if len(strides) == 1 and tensors[0].stride(-1) == 1:
        return list(tensors)
    return [_as_tokens(each) for each in tensors]


def _aligned(*tensors: Tensor) -> list[Tensor]:
    """Return tensors with features side by side, and keys and values with the same strides."""
    q, qv, k, kv, v, vv = tensors
    (q,), (qv,), (k, v), (kv, vv) = (_alike(*each) for each in ((q,), (qv,), (k, v), (kv, vv)))
    return [q, qv, k, kv, v, vv]


def _as_tokens(tensor: Tensor) -> Tensor:
    """Return (batch, heads, tokens, features), in memory (batch, tokens, heads, features)."""
    return tensor.transpose(1, 2).contiguous().transpose(1, 2)


def _tiles_for(device: torch.device) -> dict[str, Tiles]:
    if device.type != "cuda":
        return TILES
    room = torch.cuda.get_device_properties(device).shared_memory_per_block_optin
    return TILES if room >= _MUCH_SHARED_MEMORY else SMALL_TILES


def _tokens_like(tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    batch, heads, tokens, features = tensor.shape
    empty = tensor.new_empty((batch, tokens, heads, features), dtype=dtype or tensor.dtype)
    return empty.transpose(1, 2)
