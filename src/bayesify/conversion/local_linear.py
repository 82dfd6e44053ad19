"""Local reparameterisation of a dense layer as one step of the graph, for eager CPU code.

Autograd would record eight small operations. Besides, a product of a batch with the rows of a
small weight, as a dense layer takes it, is up to twice as slow as that of the rows with the batch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import peek_interpreter_stack
from torch.autograd import forward_ad

# Below this many rows torch's own order of the factors is the faster one.
_FEWEST_ROWS = 16
_PLAIN_TYPES = (Tensor, torch.nn.Parameter)


def can_be_one_step(inputs: Tensor, *weights: Tensor | None) -> bool:
    """Whether `local_linear` takes these tensors; where not, the plain operations do.

    The compiler fuses those itself, and transforms of torch.func, forward-mode derivatives, mixed
    precision and sharded tensors need them.
    """
    if torch.compiler.is_compiling() or peek_interpreter_stack() is not None:
        return False
    dtype = inputs.dtype
    if inputs.ndim != 2 or not inputs.is_cpu or dtype not in (torch.float32, torch.float64):
        return False
    for tensor in (inputs, *weights):
        if tensor is not None and (tensor.dtype != dtype or type(tensor) not in _PLAIN_TYPES):
            return False
    return not torch.is_autocast_enabled("cpu") and forward_ad._current_level < 0


def local_linear(
    inputs: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    variance: Tensor,
    bias_variance: Tensor | None,
    least: float,
) -> Tensor:
    """Return x Wᵀ + b + sqrt(x² Vᵀ + v + least) · noise, for rows x."""
    noise = torch.randn(len(inputs), len(weight), dtype=inputs.dtype)
    if not torch.is_grad_enabled():
        return _forward(inputs, weight, bias, variance, bias_variance, noise, least)[0]
    return _LocalLinear.apply(inputs, weight, bias, variance, bias_variance, noise, least)[0]


def _forward(
    inputs: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    variance: Tensor,
    bias_variance: Tensor | None,
    noise: Tensor,
    least: float,
) -> tuple[Tensor, Tensor]:
    mean = product(inputs, weight, bias)
    std = product(inputs.square(), variance, bias_variance).add_(least).sqrt_()
    return torch.addcmul(mean, std, noise, out=torch.empty_like(noise)), std


def product(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x Wᵀ + b for rows x, in the faster order."""
    if len(inputs) < _FEWEST_ROWS:
        return torch.nn.functional.linear(inputs, weight, bias)
    if bias is None:
        return torch.mm(weight, inputs.t()).t()
    return torch.addmm(bias.unsqueeze(1), weight, inputs.t()).t()


class _LocalLinear(torch.autograd.Function):
    """Output and std; both are differentiable, which makes second derivatives right."""

    # The older form of a function: torch inspects the signature of the newer one at every call.
    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None, variance: Tensor, *rest: Any
    ) -> tuple[Tensor, Tensor]:
        output, std = _forward(rows, weight, bias, variance, *rest)
        bias_variance, noise, _ = rest
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(rows, weight, variance, noise, std)
        ctx.has_bias, ctx.has_bias_variance = bias is not None, bias_variance is not None
        return output, std

    @staticmethod
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, of_mean: Tensor | None, of_std: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        rows, weight, variance, noise, std = ctx.saved_tensors
        if of_mean is None:
            of_mean = torch.zeros_like(noise)
        of_spread = of_mean * noise if of_std is None else of_std + of_mean * noise
        of_spread = of_spread / (2.0 * std)
        wanted = ctx.needs_input_grad
        of_rows = None
        if wanted[0]:
            of_rows = of_mean @ weight + 2.0 * rows * (of_spread @ variance)
        return (
            of_rows,
            of_mean.t() @ rows if wanted[1] else None,
            of_mean.sum(0) if ctx.has_bias and wanted[2] else None,
            of_spread.t() @ rows.square() if wanted[3] else None,
            of_spread.sum(0) if ctx.has_bias_variance and wanted[4] else None,
            None,
            None,
        )
