"""Attention by moments as one operation on a GPU, whose memory grows with the tokens alone."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bayesify.moments.moments import Moments

FEATURES = (16, 32, 64, 128)


class Tiles(NamedTuple):
    """How many targets and sources a program looks at together, by how many warps of threads."""

    targets: int
    sources: int
    warps: int
    stages: int


# The fastest of some on an H200, with 197 tokens of 64 features (`benchmarks/attention_gpu.py`).
TILES = {
    "means": Tiles(64, 32, 4, 2),
    "variances": Tiles(64, 32, 4, 2),
    "of_targets": Tiles(32, 64, 4, 2),
    "of_queries": Tiles(64, 64, 4, 2),
}
_MOST_BYTES = 2**30
"""Of matrices of targets by sources that lie in memory together while gradients are found."""


def can_fuse(query: Moments, key: Moments, value: Moments) -> bool:
    """Whether there are kernels for these: bfloat16 on a GPU, all of them with a variance."""
    parts = (query, key, value)
    return (
        all(each.device.type == "cuda" for each in parts)
        and all(each.dtype == torch.bfloat16 and not each.is_certain for each in parts)
        and all(each.ndim == 4 and each.shape[:2] == query.shape[:2] for each in parts)
        and query.shape[-1] == key.shape[-1] == value.shape[-1]
        and query.shape[-1] in FEATURES
        and min(query.shape.numel(), key.shape.numel()) > 0
        and _has_triton()
    )


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


def fused_attention(query: Moments, key: Moments, value: Moments, scale: float) -> Moments:
    """Return attended values, given (batch, heads, tokens, features)."""
    tensors = [part for each in (query, key, value) for part in each.pair()]
    mean, variance, *_ = _attention(*tensors, scale)
    return Moments(mean, variance)


@torch.library.custom_op("bayesify::attention_moments", mutates_args=())
def _attention(
    q: Tensor, qv: Tensor, k: Tensor, kv: Tensor, v: Tensor, vv: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    return run_forward(q, qv, k, kv, v, vv, scale)


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
    of_queries = [_tokens_like(each) for each in inputs[:2]]
    return [*of_queries, *(_contiguous_like(each) for each in inputs[2:])]


def _keep_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.scale = inputs
    mean, _, *rest = output
    ctx.save_for_backward(*tensors, mean, *rest)


def _backward(ctx: Any, of_mean: Tensor, of_variance: Tensor, *_: Any) -> tuple[Any, ...]:
    tensors = list(ctx.saved_tensors)
    grads = _attention_backward(tensors[:6], tensors[6:], of_mean, of_variance, ctx.scale)
    return (*grads, None)


_attention.register_autograd(_backward, setup_context=_keep_for_backward)


def run_forward(
    q: Tensor, qv: Tensor, k: Tensor, kv: Tensor, v: Tensor, vv: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return mean, variance, c, sum_j w_ij (v_j - o_i), log2 of the softmax's total, and the sum.

    See `attention_kernels` for these.
    """
    from bayesify.moments import attention_kernels as kernels

    head = _Heads(q, qv, k, kv, v, vv)
    out, centre, pull = (_tokens_like(q) for _ in range(3))
    offset, out_v = _tokens_like(q, torch.float32), _tokens_like(q, qv.dtype)
    lse, share = head.rows(), head.rows()
    v_mean, keys, k_square, values, v_square, v_rest = head.sources_made()
    q, qv, _, kv, _, vv = head.tensors
    sizes = (scale, head.heads, head.targets, head.sources, *_strides(q, qv, kv))
    given = (q, qv, kv, keys, values, v_mean, out, centre, offset, lse, share)
    head.run(kernels.means, head.count, *given, *sizes)
    given = (q, qv, kv, vv, keys, k_square, values, v_square, v_rest, centre, offset, lse, share)
    head.run(kernels.variances, head.count, *given, out_v, pull, *sizes)
    return out, out_v, centre, pull, lse, share


def run_backward(
    inputs: list[Tensor], saved: list[Tensor], of_mean: Tensor, of_variance: Tensor, scale: float
) -> list[Tensor]:
    """Return the gradients of means and variances of queries, keys and values."""
    from bayesify.moments import attention_gradients as kernels

    head = _Heads(*inputs)
    out, centre, pull, lse, share = saved
    g, r = _alike(of_mean, of_variance)
    grad_q, grad_qv = (_tokens_like(each) for each in inputs[:2])
    grads = [_contiguous_like(each) for each in inputs[2:]]
    v_mean, keys, k_square, values, v_square, _ = head.sources_made()
    q, qv, _, kv, _, vv = head.tensors
    of_share, delta = head.rows(), head.rows()
    # Rows begin at multiples of 16 bytes, which the library's fast products ask for.
    stride = -(-head.sources // 8) * 8
    num_matrices, num_factors = kernels.NUM_MATRICES.value, kernels.NUM_FACTORS.value
    each = num_matrices * head.targets * stride * q.element_size()
    most = max(1, min(head.count, _MOST_BYTES // each))
    matrices = q.new_empty((most, head.targets, num_matrices, stride))
    factors = q.new_empty((most, num_factors, head.targets, head.features))
    for start in range(0, head.count, most):
        count = min(most, head.count - start)
        sizes = (scale, start, head.heads, head.targets, head.sources)
        head.run(
            kernels.of_targets, count, q, qv, kv, vv, g, r, keys, k_square, values, v_square,
            v_mean, out, centre, pull, lse, share, matrices, factors, grad_qv, of_share, delta,
            *sizes, *_strides(q, qv, kv, r), S=stride,
        )  # fmt: skip
        head.run(
            kernels.of_queries, count, kv, keys, values, matrices, factors, of_share, delta,
            grad_q, grad_qv, *sizes, *_strides(kv), S=stride,
        )  # fmt: skip
        block = slice(start, start + count)
        made = (each.flatten(0, 1)[block] for each in (keys, values))
        found = (each.flatten(0, 1)[block] for each in grads)
        _sum_over_targets(matrices[:count, ..., : head.sources], factors[:count], *made, *found)
    return [grad_q, grad_qv, *grads]


def _sum_over_targets(
    matrices: Tensor,
    factors: Tensor,
    keys: Tensor,
    values: Tensor,
    grad_k: Tensor,
    grad_kv: Tensor,
    grad_v: Tensor,
    grad_vv: Tensor,
) -> None:
    """Write the gradients of keys and values: sums of products of matrices and factors."""
    from bayesify.moments import attention_gradients as kernels

    def add(
        result: Tensor, matrix: Any, factor: Any, *, beta: float = 1.0, alpha: float = 1.0
    ) -> Tensor:
        left, right = matrices[:, :, matrix.value].mT, factors[:, factor.value]
        return result.baddbmm_(left, right, beta=beta, alpha=alpha)

    add(grad_k, kernels.GD, kernels.QV, beta=0.0, alpha=2.0).mul_(keys)
    add(grad_k, kernels.GD, kernels.QC)
    add(grad_k, kernels.GS, kernels.Q)
    add(grad_k, kernels.P, kernels.GC)
    add(grad_v, kernels.W, kernels.R, beta=0.0, alpha=2.0).mul_(values)
    add(grad_v, kernels.W, kernels.RO)
    add(grad_v, kernels.P, kernels.G)
    add(grad_kv, kernels.GA, kernels.Q2, beta=0.0)
    add(grad_vv, kernels.U, kernels.R, beta=0.0)


class _Heads:
    """What all kernels of one attention take."""

    def __init__(self, *tensors: Tensor) -> None:
        self.tensors = _aligned(*tensors)
        q, k = self.tensors[0], self.tensors[2]
        batch, self.heads, self.targets, self.features = q.shape
        self.count, self.sources = batch * self.heads, k.shape[2]

    def rows(self) -> Tensor:
        """Return room for one number of each target."""
        return self.tensors[0].new_empty(self.tensors[0].shape[:3], dtype=torch.float32)

    def sources_made(self) -> list[Tensor]:
        """Return the mean of values, and factors of products: k, k^2, v, and v^2 in two parts."""
        from bayesify.moments.attention_kernels import sources_made

        _, _, k, _, v, _ = self.tensors
        v_mean = k.new_empty((self.count, self.features), dtype=torch.float32)
        made = [v_mean, *(_contiguous_like(k) for _ in range(5))]
        sizes = (self.heads, self.sources, *_strides(k))
        kernel: Any = sources_made
        kernel[(self.count,)](k, v, *made, *sizes, D=self.features, N=64)
        return made

    def run(self, kernel: Any, count: int, *args: Any, **fixed: int) -> None:
        """Run a kernel, whose programs have a block of targets each, for so many heads."""
        tiles = TILES[kernel.fn.__name__]
        # A program of 128 features holds as much as two of 64.
        narrow = 2 if self.features > 64 else 1
        num_targets, num_sources = tiles.targets // narrow, tiles.sources // narrow
        kernel[(-(-self.targets // num_targets), count)](
            *args, **fixed, D=self.features, M=num_targets, N=num_sources,
            num_warps=tiles.warps, num_stages=tiles.stages,
        )  # fmt: skip


def _strides(*tensors: Tensor) -> list[int]:
    """Return those of batch, head and token."""
    return [stride for each in tensors for stride in each.stride()[:3]]


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


def _tokens_like(tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    batch, heads, tokens, features = tensor.shape
    empty = tensor.new_empty((batch, tokens, heads, features), dtype=dtype or tensor.dtype)
    return empty.transpose(1, 2)


def _contiguous_like(tensor: Tensor) -> Tensor:
    return tensor.new_empty(tensor.shape)
