"""Sums, differences, products and quotients of independent operands.

An operand met twice is known by being the same object: x + x is 2x with a variance of 4v, x - x
is 0 and x * x the square. Any other dependence, such as that of a residual branch on its input,
is not seen. Sums and products are exact for independent operands, a quotient by a value that is
not certain is to first order.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bayesify.moments.activation_rules import square
from bayesify.moments.moments import Moments, in_place, mean_of, precise_dtype, rule, variance_of
from bayesify.moments.products import product_variance
from bayesify.moments.smooth_rules import reciprocal


@rule(torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__)
def add(left: Any, right: Any, *, alpha: float = 1) -> Moments:
    """Return left + alpha right."""
    if left is right:
        return scale(left, 1 + alpha)
    mean = torch.add(mean_of(left), mean_of(right), alpha=alpha)
    return Moments(mean, _sum_variance(variance_of(left), variance_of(right), alpha))


@rule(torch.sub, torch.subtract, Tensor.sub, Tensor.__sub__)
def subtract(left: Any, right: Any, *, alpha: float = 1) -> Moments:
    """Return left - alpha right."""
    return add(left, right, alpha=-alpha)


@rule(torch.rsub, Tensor.__rsub__)
def _reflected_subtract(left: Any, right: Any, *, alpha: float = 1) -> Moments:
    return add(right, left, alpha=-alpha)


@rule(torch.mul, torch.multiply, Tensor.mul, Tensor.multiply)
def multiply(left: Any, right: Any) -> Moments:
    """Return left * right."""
    if left is right:
        return square(left)
    if not isinstance(left, (Tensor, Moments)):
        left, right = right, left
    if not isinstance(right, (Tensor, Moments)):
        return scale(left, right)
    mean = torch.mul(mean_of(left), mean_of(right))
    return Moments(mean, product_variance(torch.mul, left, right))


rule(Tensor.__mul__, Tensor.__rmul__)(multiply)


@rule(torch.div, torch.divide, torch.true_divide, Tensor.div, Tensor.__truediv__)
def divide(left: Any, right: Any, *, rounding_mode: None = None) -> Moments:
    """Return left / right; to first order where the divisor is not certain."""
    if rounding_mode is not None:
        raise ValueError(f"rounding_mode must be None for moments, got {rounding_mode!r}")
    if variance_of(right) is not None:
        if left is right:
            return Moments(torch.ones_like(right.expected))
        return multiply(reciprocal(right), left)
    divisor = mean_of(right)
    mean, variance = torch.div(mean_of(left), divisor), variance_of(left)
    if variance is None:
        return Moments(mean)
    if isinstance(divisor, Tensor):
        divisor = divisor.to(precise_dtype(mean.dtype))
    # Divided twice: the square of a small divisor would underflow.
    return Moments(mean, variance / divisor / divisor)


@rule(Tensor.__rtruediv__, Tensor.__rdiv__)
def _reflected_divide(left: Any, right: Any) -> Moments:
    return divide(right, left)


@rule(torch.neg, torch.negative, Tensor.neg, Tensor.__neg__)
def _negate(x: Moments) -> Moments:
    return Moments(-x.expected, x.variance_or_none)


@rule(torch.positive, Tensor.positive, Tensor.__pos__)
def _positive(x: Moments) -> Moments:
    return x


@rule(F.glu)
def _glu(x: Moments, dim: int = -1) -> Moments:
    value, gate = x.chunk(2, dim)
    return multiply(value, gate.sigmoid())


rule(Tensor.__iadd__)(in_place(add))
rule(Tensor.__isub__)(in_place(subtract))
rule(Tensor.__imul__)(in_place(multiply))
rule(Tensor.__itruediv__)(in_place(divide))


def scale(x: Any, factor: float) -> Moments:
    """Return x times a number."""
    variance = variance_of(x)
    return Moments(mean_of(x) * factor, None if variance is None else variance * factor**2)


def _sum_variance(left: Tensor | None, right: Tensor | None, alpha: float) -> Tensor | None:
    if right is not None and alpha not in (1, -1):
        right = right * alpha**2
    if left is None or right is None:
        return right if left is None else left
    return left + right
