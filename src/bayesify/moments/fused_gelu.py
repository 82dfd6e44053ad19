"""Moments of the GELU as one operation on a GPU, in half precision.

How many nodes an entry's variance is summed over depends on the largest of its block, so that its
last digit may. Second derivatives, and those of `torch.func` or forward mode, are left to torch's
own operations.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bayesify.moments.bfloat16_kernels import HAS_TRITON, has_bfloat16
from bayesify.moments.coarse_gelu import coarse_gelu_gradients, coarse_gelu_moments
from bayesify.moments.own_derivatives import has_no_other_derivatives

DEVICES, TYPES = ("cuda",), (torch.bfloat16,)
# Entries that a program looks at, by how many warps of threads.
_MOMENTS, _GRADIENTS = (512, 4), (256, 2)


def half_precision_gelu_moments(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and variance of z Phi(z), about as well as half precision can hold them."""
    can_fuse = (
        HAS_TRITON
        and m.device.type in DEVICES
        and m.device == v.device
        and m.dtype == v.dtype
        and m.dtype in TYPES
        and m.shape == v.shape
        and m.numel() > 0
        and has_no_other_derivatives()
    )
    return _gelu(m, v) if can_fuse else coarse_gelu_moments(m, v)


@torch.library.custom_op("bayesify::gelu_moments", mutates_args=())
def _gelu(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    m, v = _laid_out_alike(m, v)
    if not has_bfloat16(m.device):
        return coarse_gelu_moments(m, v)
    from bayesify.moments import gelu_kernels

    results = torch.empty_like(m), torch.empty_like(m)
    _launch(gelu_kernels.moments, _MOMENTS, m, v, *results)
    return results


@_gelu.register_fake
def _gelu_shapes(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    del v
    return torch.empty_like(m), torch.empty_like(m)


@torch.library.custom_op("bayesify::gelu_moments_backward", mutates_args=())
def _gelu_backward(
    m: Tensor, v: Tensor, of_mean: Tensor, of_variance: Tensor
) -> tuple[Tensor, Tensor]:
    m, v, of_mean, of_variance = _laid_out_alike(m, v, of_mean, of_variance)
    if not has_bfloat16(m.device):
        return coarse_gelu_gradients(m, v, of_mean, of_variance)
    from bayesify.moments import gelu_kernels

    results = torch.empty_like(m), torch.empty_like(m)
    _launch(gelu_kernels.gradients, _GRADIENTS, m, v, of_mean, of_variance, *results)
    return results


@_gelu_backward.register_fake
def _gradient_shapes(
    m: Tensor, v: Tensor, of_mean: Tensor, of_variance: Tensor
) -> tuple[Tensor, Tensor]:
    del v, of_mean, of_variance
    return torch.empty_like(m), torch.empty_like(m)


def _keep_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    del output
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, of_mean: Tensor, of_variance: Tensor) -> tuple[Tensor | None, ...]:
    m, v = ctx.saved_tensors
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        # Gradients that have gradients. Of views: one input may have come of the other.
        inputs = [each.view_as(each) for each in (m, v)]
        wanted = [each for each in inputs if each.requires_grad]
        results = coarse_gelu_moments(*inputs)
        given = (of_mean, of_variance)
        found = iter(torch.autograd.grad(results, wanted, given, create_graph=True))
        return tuple(next(found) if each.requires_grad else None for each in inputs)
    return _gelu_backward(m, v, of_mean, of_variance)


_gelu.register_autograd(_backward, setup_context=_keep_for_backward)


def _laid_out_alike(first: Tensor, *others: Tensor) -> list[Tensor]:
    """Return tensors whose entries lie in memory in one order, without gaps."""
    like = torch.empty_like(first)  # dense, whatever the first is
    return [
        each if each.stride() == like.stride() else torch.empty_like(like).copy_(each)
        for each in (first, *others)
    ]


def _launch(kernel: Any, shape: tuple[int, int], *tensors: Tensor) -> None:
    (size, warps), count = shape, tensors[0].numel()
    with torch.cuda.device_of(tensors[0]):
        kernel[(-(-count // size),)](*tensors, count, SIZE=size, num_warps=warps)
