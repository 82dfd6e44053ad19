"""When a rule gives its derivatives itself instead of leaving them to autograd."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch._C._functorch import peek_interpreter_stack
from torch.autograd import forward_ad


def takes_own_derivatives(*inputs: Tensor | None) -> bool:
    """Whether moments of these are best given by a Function that knows its derivatives.

    Forward-mode derivatives take the open form: the compiler takes no Function that has its own.
    """
    is_wanted = any(x is not None and x.requires_grad for x in inputs)
    return has_no_other_derivatives() and is_wanted and torch.is_grad_enabled()


def has_no_other_derivatives() -> bool:
    """Whether derivatives, if any, are those of a backward pass, not of `torch.func` or forward."""
    return torch.compiler.is_compiling() or (
        peek_interpreter_stack() is None and forward_ad._current_level < 0
    )


def of_type(result: Tensor, dtype: torch.dtype) -> Tensor:
    """Return what a Function gives in this type.

    Not by `to` alone: compiled by torch 2.11, a result that is cast to the type it has already
    has no gradient.
    """
    return result if result.dtype == dtype else result.to(dtype)


def gradients_openly(
    call: Callable[[list[Tensor]], Sequence[Tensor]],
    tensors: list[Tensor],
    given: Sequence[Tensor],
    *,
    create_graph: bool,
) -> list[Tensor | None]:
    """Return the gradients of what a function of tensors gives, by torch's own operations.

    Args:
        call: The function.
        tensors: What it takes; None is returned for those that need no gradient.
        given: The gradients of its results.
        create_graph: Whether the gradients are to have gradients.
    """
    if create_graph:
        # Of views: one tensor may be given in several places.
        tensors = [each.view_as(each) for each in tensors]
    else:
        tensors = [each.detach().requires_grad_() for each in tensors]
    wanted = [each for each in tensors if each.requires_grad]
    with torch.enable_grad():
        results = call(tensors)
    found = iter(torch.autograd.grad(results, wanted, given, create_graph=create_graph))
    return [next(found) if each.requires_grad else None for each in tensors]
