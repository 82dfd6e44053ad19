"""The KL of Normal tensors whose entries share scales, of many tensors at once.

A mean enters by its square and a scale by a function of its own, times the number of entries that
share it: so no scale is written out for each of its entries, and no mean is copied.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import peek_interpreter_stack

from bayesify.distributions.normal import NormalPrior
from bayesify.distributions.precision import at_least_float32
from bayesify.distributions.scale import log_softplus, softplus

Sizes = tuple[tuple[int, int], ...]
"""Of every tensor: the number of its scales, and of its entries."""

# What optimisers of torch itself step with; not among its exported names.
_torch: Any = torch


def kl_of_shared_scales(
    means: Sequence[Tensor], rhos: Sequence[Tensor], prior: NormalPrior
) -> Tensor:
    """Return the sum over tensors of KL(N(mean, softplus(rho)²) ‖ prior).

    Args:
        means: The mean of every entry, one tensor each, all on one device and of one type.
        rhos: As many tensors of scales, each of which the same number of entries share.
        prior: The prior of all of them.
    """
    rho = torch.cat([at_least_float32(each).flatten() for each in rhos])
    sizes = tuple((each.numel(), mean.numel()) for each, mean in zip(rhos, means, strict=True))
    counts = (_kept_counts if _is_plain(rho) else _counts)(sizes, rho.dtype, rho.device)
    of_scale = 0.5 * ((softplus(rho) / prior.std).square() - 1.0) - log_softplus(rho)
    of_scale = (counts * (of_scale + math.log(prior.std))).sum()
    precise = [at_least_float32(each) for each in means]
    if peek_interpreter_stack() is None:
        of_mean = _SquaredDistance.apply(prior.mean, *precise)
    else:
        of_mean = torch.stack([(each - prior.mean).square().sum() for each in precise]).sum()
    return of_scale + of_mean * (0.5 / prior.std**2)


def _is_plain(tensor: Tensor) -> bool:
    """Whether a tensor is what it seems: those of a trace or a transform are not to be kept."""
    return (
        type(tensor) is Tensor
        and not torch.compiler.is_compiling()
        and peek_interpreter_stack() is None
        and _torch._C._len_torch_dispatch_stack() == 0
    )


def _counts(sizes: Sizes, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return how many entries each scale has."""
    # Made on the processor and sent in one go; in compiled code they are constants of a kernel.
    made_on = device if torch.compiler.is_compiling() else torch.device("cpu")
    counts = [
        torch.full((num,), whole / max(num, 1), dtype=dtype, device=made_on) for num, whole in sizes
    ]
    return torch.cat(counts).to(device)


@lru_cache(maxsize=32)
def _kept_counts(sizes: Sizes, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the same, kept: a copy to the device in every step would wait for it."""
    # What is made without a graph in mind could not be part of one later.
    with torch.inference_mode(False):
        return _counts(sizes, dtype, device)


class _SquaredDistance(torch.autograd.Function):
    """The sum of (w − centre)² over tensors: a kernel for all of them, one for their gradients."""

    @staticmethod
    def forward(ctx: Any, centre: float, *tensors: Tensor) -> Tensor:
        ctx.centre = centre
        ctx.save_for_backward(*tensors)
        if tensors[0].device.type == "cpu":
            # There the sum inside a norm goes entry by entry, and loses digits.
            return torch.stack([(each - centre).square_().sum() for each in tensors]).sum()
        shifted = _torch._foreach_sub(tensors, centre) if centre else tensors
        return torch.stack(_torch._foreach_norm(shifted)).square().sum()

    @staticmethod
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, gradient: Tensor
    ) -> tuple[Tensor | None, ...]:
        tensors = ctx.saved_tensors
        if torch.is_grad_enabled():
            return None, *(2.0 * gradient * (each - ctx.centre) for each in tensors)
        shifted = _torch._foreach_sub(tensors, ctx.centre) if ctx.centre else tensors
        return None, *_torch._foreach_mul(shifted, 2.0 * gradient)
