"""Layers that are linear in their input and in their weight: linear, convolution, bilinear.

For independent entries of x and W all these are exact:

    mean      x W + b
    variance  (m^2 + v) S + v W^2 + s_b,   S the variance of W, s_b that of b

Two products, never three; the first is left out when the weight is certain, the second when the
input is. With one variance s for all weights of an output unit it is one product, v (W^2 + s), and
s times the sum of m^2 over what the unit sees, which costs next to nothing. Outputs that share an
input or a weight are correlated, which later rules do not know.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from bayesify.moments.moments import Moments, mean_of, rule, variance_of
from bayesify.moments.products import (
    Product,
    full_precision,
    product_dtype,
    product_precision,
    product_variance,
    second_moment,
    squares,
    sum_of_variances,
)

# Their weight has its output units first.
_UNITS_FIRST = (F.linear, F.conv1d, F.conv2d, F.conv3d)


def affine(operation: Any, x: Any, weight: Any, bias: Any, *args: Any, **kwargs: Any) -> Moments:
    """Return the moments of operation(x, weight, bias, ...), linear in x and in the weight."""
    mean = operation(mean_of(x), mean_of(weight), mean_of(bias), *args, **kwargs)

    def product(left: Tensor, right: Tensor) -> Tensor:
        return operation(left, right, None, *args, **kwargs)

    added = variance_of(bias)
    if added is not None and operation is not F.linear:
        # One bias per output: the last dimension of a linear layer, the channel of a convolution.
        added = added.view(-1, *[1] * (mean.ndim - 1 - _channel_dim(mean, mean_of(weight))))
    if is_shared_by_unit(operation, weight):
        if operation is F.linear:
            seen = squares(mean_of(x)).sum(-1, keepdim=True)
            shared = weight.shared_variance.view(-1)
        else:
            geometry = geometry_of(weight.ndim - 2, *args, **kwargs)
            seen, shared = seen_by_unit(operation, mean_of(x), weight, geometry)
        of_input = variance_of(x)
        if of_input is not None:
            factor = mean_of(weight).to(seen.dtype).square() + weight.shared_variance
            with product_precision(mean_of(weight)):
                dtype = product_dtype(mean_of(x), mean_of(weight))
                rest = product(of_input.to(dtype), factor.to(dtype))
            if operation is F.linear:
                return Moments(mean, sum_of_variances(rest, seen, shared, added))
            # Of one type, so that their gradient is one tensor of that type and no larger one. The
            # product goes first: it has the layout of the mean, and the sum takes it over.
            variance = rest + (seen * shared).to(rest.dtype)
        else:
            variance = seen * shared
    else:
        variance = product_variance(product, x, weight)
    if added is not None:
        variance = added if variance is None else variance + added
    return Moments(mean, variance)


def is_shared_by_unit(operation: Any, weight: Any) -> bool:
    """Whether a weight has one variance per output unit, which comes first in its shape."""
    shared = weight.shared_variance if isinstance(weight, Moments) else None
    return (
        shared is not None
        and operation in _UNITS_FIRST
        and shared.ndim == weight.ndim
        and shared.shape[0] == weight.shape[0]
        and math.prod(shared.shape[1:]) == 1
    )


def seen_by_unit(
    operation: Any, x: Any, weight: Moments, geometry: Geometry
) -> tuple[Tensor, Tensor]:
    """Return the sum of m^2 + v over what each output of a convolution sees, and s, to broadcast.

    Args:
        operation: A convolution.
        x: Its input, moments or a tensor.
        weight: Its kernel, of one variance s for each unit.
        geometry: How the kernel moves.
    """
    shared = cast(Tensor, weight.shared_variance)
    second = second_moment(x)
    num_sides = weight.ndim - 2
    channels = second.unflatten(-1 - num_sides, (geometry.groups, -1)).sum(-1 - num_sides)
    sums = _window_sums(operation, channels, tuple(weight.shape[2:]), geometry)
    if geometry.groups > 1:
        sums = sums.repeat_interleave(weight.shape[0] // geometry.groups, -1 - num_sides)
    return sums, shared.view(-1, *[1] * num_sides)


class Geometry(NamedTuple):
    """How the kernel of a convolution moves, side by side."""

    stride: tuple[int, ...]
    padding: tuple[int, ...] | str
    dilation: tuple[int, ...]
    groups: int


def geometry_of(
    num_sides: int, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Geometry:
    """Return what a convolution was given, a number for each side."""

    def sides(value: Any) -> Any:
        if isinstance(value, str):
            return value
        given = (value,) if isinstance(value, int) else tuple(value)
        return given * num_sides if len(given) == 1 else given

    return Geometry(sides(stride), sides(padding), sides(dilation), groups)


_POOLS: dict[Any, Any] = {F.conv1d: F.avg_pool1d, F.conv2d: F.avg_pool2d, F.conv3d: F.avg_pool3d}


def _window_sums(
    operation: Any, channels: Tensor, kernel: tuple[int, ...], geometry: Geometry
) -> Tensor:
    """Return the sums over what a kernel sees, one channel per group.

    By average pooling where it can be: libraries have no fast convolution of one channel.
    """
    stride, padding, dilation, groups = geometry
    can_pool = (
        not isinstance(padding, str)
        and all(each == 1 for each in dilation)
        and all(2 * pad <= size for pad, size in zip(padding, kernel, strict=True))
    )
    if can_pool:
        return _POOLS[operation](channels, kernel, stride, padding) * math.prod(kernel)
    ones = torch.ones(groups, 1, *kernel, dtype=channels.dtype, device=channels.device)
    with full_precision(channels):
        return operation(channels, ones, None, stride, padding, dilation, groups)


def _channel_dim(mean: Tensor, weight: Tensor) -> int:
    return mean.ndim - weight.ndim + 1


def _register(operation: Any) -> None:
    def implementation(input: Any, weight: Any, bias: Any = None, *args: Any, **kw: Any) -> Moments:
        return affine(operation, input, weight, bias, *args, **kw)

    rule(operation)(implementation)


_register(F.linear)
_register(F.conv1d)
_register(F.conv2d)
_register(F.conv3d)
_register(F.conv_transpose1d)
_register(F.conv_transpose2d)
_register(F.conv_transpose3d)


@rule(F.bilinear)
def _bilinear(input1: Any, input2: Any, weight: Any, bias: Any = None) -> Moments:
    """Exact for independent entries: two inputs share a weight's rows and columns."""
    mean = F.bilinear(mean_of(input1), mean_of(input2), mean_of(weight), mean_of(bias))
    m1, m2, w = mean_of(input1), mean_of(input2), mean_of(weight)
    v1, v2, vw = variance_of(input1), variance_of(input2), variance_of(weight)
    terms: list[Tensor] = []
    with full_precision(mean):
        if vw is not None:
            dtype = vw.dtype
            second1 = m1.to(dtype).square() + (0.0 if v1 is None else v1)
            second2 = m2.to(dtype).square() + (0.0 if v2 is None else v2)
            terms.append(F.bilinear(second1, second2, vw))
        if v1 is not None:
            along = torch.einsum("oij,...j->...oi", w.to(v1.dtype), m2.to(v1.dtype))
            terms.append(torch.einsum("...oi,...i->...o", along.square(), v1))
        if v2 is not None:
            along = torch.einsum("oij,...i->...oj", w.to(v2.dtype), m1.to(v2.dtype))
            terms.append(torch.einsum("...oj,...j->...o", along.square(), v2))
        if v1 is not None and v2 is not None:
            terms.append(F.bilinear(v1, v2, w.to(v1.dtype).square()))
    added = variance_of(bias)
    if added is not None:
        terms.append(added)
    return Moments(mean, sum(terms[1:], start=terms[0]) if terms else None)


@rule(F.embedding)
def _embedding(
    input: Tensor,
    weight: Any,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Moments:
    if max_norm is not None:
        raise ValueError(
            f"max_norm must be None for moments, got {max_norm}: it rewrites the table by norms "
            "that are not certain"
        )
    options = (padding_idx, None, norm_type, scale_grad_by_freq, sparse)
    variance = variance_of(weight)
    return Moments(
        F.embedding(input, mean_of(weight), *options),
        None if variance is None else F.embedding(input, variance),
    )


def register_product(*functions: Any) -> None:
    """File the rule of a function of two operands that is linear in each."""
    for function in functions:
        rule(function)(_product_rule(function))


def _product_rule(function: Product) -> Any:
    def implementation(left: Any, right: Any) -> Moments:
        mean = function(mean_of(left), mean_of(right))
        return Moments(mean, product_variance(function, left, right))

    return implementation


def _reflected(left: Any, right: Any) -> Moments:
    return matmul(right, left)


def _operator(left: Any, right: Any) -> Moments:
    """Return left @ right.

    The compiler (torch 2.13) hands `moments @ tensor` over as `tensor @ moments`, its operands
    exchanged, so there the shapes have to tell which of the two was written.
    """
    if torch.compiler.is_compiling() and isinstance(left, Tensor):
        if not _can_multiply(left, right):
            return matmul(right, left)
        if _can_multiply(right, left):
            raise ValueError(
                f"a compiled `@` of moments and a tensor of shapes {tuple(left.shape)} and "
                f"{tuple(right.shape)} could be meant either way round; write torch.matmul"
            )
    return matmul(left, right)


def _can_multiply(left: Any, right: Any) -> bool:
    inner = right.shape[-1] if right.ndim == 1 else right.shape[-2]
    batch = zip(reversed(left.shape[:-2]), reversed(right.shape[:-2]), strict=False)
    return left.shape[-1] == inner and all(1 in pair or pair[0] == pair[1] for pair in batch)


matmul = _product_rule(torch.matmul)
register_product(torch.mm, torch.bmm, torch.mv, torch.dot, Tensor.mm, Tensor.bmm, Tensor.mv)
rule(torch.matmul)(matmul)
rule(Tensor.matmul, Tensor.__matmul__)(_operator)
rule(Tensor.__rmatmul__)(_reflected)


@rule(torch.addmm, torch.baddbmm, torch.addmv, Tensor.addmm, Tensor.baddbmm, Tensor.addmv)
def _add_product(input: Any, left: Any, right: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    return torch.add(torch.mul(input, beta), matmul(left, right), alpha=alpha)


@rule(torch.einsum)
def _einsum(equation: str, *operands: Any) -> Moments:
    parts = list(operands[0]) if isinstance(operands[0], (list, tuple)) else list(operands)
    if len(parts) == 1:
        # Entries are moved and summed, with no factor but 1.
        x = parts[0]
        variance = variance_of(x)
        with full_precision(mean_of(x)):
            moved = None if variance is None else torch.einsum(equation, variance)
        return Moments(torch.einsum(equation, mean_of(x)), moved)
    if len(parts) > 2:
        raise ValueError(
            f"einsum of moments takes one or two operands, got {len(parts)}; contract them in "
            "steps of two"
        )
    _check_indices(equation)

    def product(left: Tensor, right: Tensor) -> Tensor:
        return torch.einsum(equation, left, right)

    left, right = parts
    mean = product(mean_of(left), mean_of(right))
    return Moments(mean, product_variance(product, left, right))


def _check_indices(equation: str) -> None:
    """Refuse sums over an index of one operand alone, whose terms share the other's entries."""
    inputs, arrow, output = equation.replace(" ", "").partition("->")
    first, second = inputs.split(",")
    if not arrow:
        return
    alone = (set(first) ^ set(second)) - set(output) - {"."}
    if alone:
        raise ValueError(
            f"einsum of moments cannot sum over {sorted(alone)} of {equation!r}, which only one "
            "operand has; sum that operand first"
        )
