"""The plain average over M draws, and the same with the memory of one draw.

Both hold for every pair that has a finite KL. `direct` builds the graph of all draws, as every
textbook does. `streamed` takes each draw's gradient before the next draw and adds it up: value and
gradients are the same, and neither graph nor memory knows how many draws there were.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import peek_interpreter_stack
from torch.autograd.function import once_differentiable

from bayesify.distributions.estimator import direct, streamed
from bayesify.distributions.family import Family, Parameters, Prior
from bayesify.distributions.precision import at_least_float32


@direct.register(Family, Prior)
def direct_average(
    family: Family, parameters: Parameters, prior: Prior, num_samples: int
) -> Tensor:
    """Return the average of log q(w) − log p(w) over M draws, graph and all."""
    total = _log_ratio(family, parameters, prior)
    for _ in range(num_samples - 1):
        total = total + _log_ratio(family, parameters, prior)
    return (total / num_samples).to(at_least_float32(parameters[family.parameter_names[0]]).dtype)


@streamed.register(Family, Prior)
def streamed_average(
    family: Family, parameters: Parameters, prior: Prior, num_samples: int
) -> Tensor:
    """Return the average of log q(w) − log p(w) over M draws, one draw in memory at a time."""
    if peek_interpreter_stack() is not None:
        return direct_average(family, parameters, prior, num_samples)
    names = tuple(parameters)
    return _Streamed.apply(family, prior, num_samples, names, *(parameters[n] for n in names))


class _Streamed(torch.autograd.Function):
    """Forward finds the gradient too; backward only scales it."""

    @staticmethod
    def forward(
        ctx: Any,
        family: Family,
        prior: Prior,
        num_samples: int,
        names: Sequence[str],
        *values: Tensor,
    ) -> Tensor:
        needed = ctx.needs_input_grad[4:]
        total = torch.zeros((), device=values[0].device, dtype=torch.float64)
        # In bfloat16 a sum of many draws would stop growing: 1 + 1/256 is 1.
        pairs = list(zip(map(at_least_float32, values), needed, strict=True))
        sums = [torch.zeros_like(value) for value, is_needed in pairs if is_needed]
        for _ in range(num_samples):
            leaves = [value.detach().requires_grad_(is_needed) for value, is_needed in pairs]
            with torch.enable_grad():
                term = _log_ratio(family, dict(zip(names, leaves, strict=True)), prior)
            total += term.detach()
            _add_gradients(term, [leaf for leaf in leaves if leaf.requires_grad], sums, num_samples)
            del leaves, term  # before the next draw, so that no two are in memory
        ctx.needed = needed
        ctx.save_for_backward(*sums)
        return (total / num_samples).to(at_least_float32(values[0]).dtype)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, gradient: Tensor
    ) -> tuple[Tensor | None, ...]:
        sums = iter(ctx.saved_tensors)
        return (None,) * 4 + tuple(
            next(sums) * gradient if is_needed else None for is_needed in ctx.needed
        )


def _add_gradients(
    term: Tensor, leaves: list[Tensor], sums: list[Tensor], num_samples: int
) -> None:
    gradients = torch.autograd.grad(term, leaves) if leaves else ()
    for kept, gradient in zip(sums, gradients, strict=True):
        kept.add_(gradient, alpha=1.0 / num_samples)


def _log_ratio(family: Family, parameters: Parameters, prior: Prior) -> Tensor:
    """Return log q(w) − log p(w) of one fresh draw, summed over entries."""
    value = family.draw(parameters)
    return family.log_prob(parameters, value).sum() - prior.log_prob(value).sum()
