"""The variance of a product of independent factors, for any bilinear operation.

Nothing cancels in it, all terms are positive: bfloat16 products are as good as those of the mean.
float16 is another matter. Its least number, 6e-8, is a usual variance, so its products are taken
in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from bayesify.moments.moments import mean_of, precise_dtype, variance_dtype, variance_of
from bayesify.moments.own_derivatives import takes_own_derivatives

Product = Callable[[Tensor, Tensor], Tensor]


def product_variance(product: Product, left: Any, right: Any) -> Tensor | None:
    """Return (m_l^2 + v_l) * v_r + v_l * m_r^2, * the product; None where both are certain."""
    left_variance, right_variance = variance_of(left), variance_of(right)
    if left_variance is None and right_variance is None:
        return None
    right_mean = mean_of(right)
    dtype = product_dtype(mean_of(left), right_mean)
    terms: list[Tensor] = []
    with product_precision(right_mean):
        if right_variance is not None:
            terms.append(product(second_moment(left).to(dtype), right_variance.to(dtype)))
        if left_variance is not None:
            squares = right_mean.to(precise_dtype(right_mean.dtype)).square()
            terms.append(product(left_variance.to(dtype), squares.to(dtype)))
        return terms[0] if len(terms) == 1 else terms[0] + terms[1]


def second_moment(x: Any) -> Tensor:
    """Return m^2 + v, in float32 at least."""
    mean, variance = mean_of(x), variance_of(x)
    squares = mean.to(precise_dtype(mean.dtype)).square()
    return squares if variance is None else squares + variance


def squares(mean: Tensor) -> Tensor:
    """Return m^2, in float32 at least, with a gradient found in the type of the mean."""
    own = mean.dtype == torch.bfloat16 and takes_own_derivatives(mean)
    return _Square.apply(mean) if own else mean.to(precise_dtype(mean.dtype)).square()


class _Square(torch.autograd.Function):
    """The square of a bfloat16 tensor in float32, with a gradient found in bfloat16.

    Left to autograd, compiled code keeps 2 m for the gradient, in float32, beside m itself.
    """

    @staticmethod
    def forward(ctx: Any, m: Tensor) -> Tensor:
        ctx.save_for_backward(m)
        return m.to(precise_dtype(m.dtype)).square()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        (m,) = ctx.saved_tensors
        return (2.0 * gradient).to(m.dtype) * m


def product_dtype(left: Tensor, right: Tensor) -> torch.dtype:
    """Return the type of the factors of a variance."""
    return variance_dtype(torch.promote_types(left.dtype, right.dtype))


def product_precision(like: Tensor) -> AbstractContextManager[Any]:
    """Return a context in which autocast brings variances to bfloat16, but not to float16."""
    kind = like.device.type
    is_safe = _is_autocast(kind) and torch.get_autocast_dtype(kind) == torch.bfloat16
    return nullcontext() if is_safe else full_precision(like)


def full_precision(like: Tensor) -> AbstractContextManager[Any]:
    """Return a context in which autocast does not bring variances to half precision."""
    kind = like.device.type
    return torch.autocast(kind, enabled=False) if _is_autocast(kind) else nullcontext()


def _is_autocast(kind: str) -> bool:
    """Whether autocast is on; tensors of no device, where torch raises an error, have none."""
    return kind != "meta" and torch.is_autocast_enabled(kind)


def sum_of_variances(product: Tensor, seen: Tensor, shared: Tensor, added: Tensor | None) -> Tensor:
    """Return product + seen * shared + added, of the product's type, for a linear layer.

    Args:
        product: What the variance of the input gives.
        seen: A number of each place that all units there see.
        shared: A number of each unit.
        added: Another of each unit, or None.
    """
    parts = (product, seen, shared, added)
    if product.dtype == torch.bfloat16 and takes_own_derivatives(*parts):
        return _SumOfVariances.apply(*parts)
    total = product + (seen * shared).to(product.dtype)
    return total if added is None else total + added.to(product.dtype)


class _SumOfVariances(torch.autograd.Function):
    """The sum, with gradients found in bfloat16 and summed in float32.

    Left to autograd, the compiler leaves out that the gradient is rounded before it is summed over
    places, and writes it down in float32 too. (Of convolutions it does not.)
    """

    @staticmethod
    def forward(
        ctx: Any, product: Tensor, seen: Tensor, shared: Tensor, added: Tensor | None
    ) -> Tensor:
        ctx.save_for_backward(seen, shared, added)
        total = product + (seen * shared).to(product.dtype)
        return total if added is None else total + added.to(product.dtype)

    @staticmethod
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, gradient: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        seen, shared, added = ctx.saved_tensors
        of_seen = _summed(gradient * shared.to(gradient.dtype), seen)
        of_shared = _summed(gradient * seen.to(gradient.dtype), shared)
        return gradient, of_seen, of_shared, None if added is None else _summed(gradient, added)


def sum_of_outer(
    places: Sequence[Tensor], units: Sequence[Tensor], added: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """Return sum_k places_k * units_k + added, in a type, without a product to begin with.

    Args:
        places: Numbers of each place, with a last dimension of 1, in float32 at least.
        units: As many numbers of each unit.
        added: Another of each unit, or None.
        dtype: The type of the result.
    """
    if dtype == torch.bfloat16 and takes_own_derivatives(*places, *units, added):
        return _SumOfOuter.apply(len(places), added, *places, *units)
    return _outer(places, units, added).to(dtype)


def _outer(places: Sequence[Tensor], units: Sequence[Tensor], added: Tensor | None) -> Tensor:
    total = places[0] * units[0]
    for place, unit in zip(places[1:], units[1:], strict=True):
        total = total + place * unit
    return total if added is None else total + added


class _SumOfOuter(torch.autograd.Function):
    """The sum in bfloat16, its gradients found in bfloat16 and summed in float32, as above."""

    @staticmethod
    def forward(ctx: Any, number: int, added: Tensor | None, *factors: Tensor) -> Tensor:
        ctx.save_for_backward(added, *factors)
        ctx.number = number
        return _outer(factors[:number], factors[number:], added).to(torch.bfloat16)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        added, *factors = ctx.saved_tensors
        places, units = factors[: ctx.number], factors[ctx.number :]
        pairs = list(zip(places, units, strict=True))
        of_places = [_summed(gradient * unit.to(gradient.dtype), place) for place, unit in pairs]
        of_units = [_summed(gradient * place.to(gradient.dtype), unit) for place, unit in pairs]
        of_added = None if added is None else _summed(gradient, added)
        return None, of_added, *of_places, *of_units


def _summed(full: Tensor, like: Tensor) -> Tensor:
    """Return sums over what a tensor of fewer entries was broadcast along."""
    sizes = [1] * (full.ndim - like.ndim) + list(like.shape)
    dims = [dim for dim, size in enumerate(sizes) if size == 1]
    return full.sum(dims, dtype=like.dtype).view(like.shape) if dims else full.to(like.dtype)
