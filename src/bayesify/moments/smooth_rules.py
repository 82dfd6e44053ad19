"""Smooth activations by 16-node Gauss-Hermite quadrature, and a few functions to first order.

The error of the variance, in units of v, is at v = 1 about 1e-7 for sigmoid and SiLU, 3e-4 for
tanh; it grows with v, as a function becomes a step for a wide normal law. Functions with a kink
(ELU with alpha other than 1, SELU, hardswish) are off by up to some per cent where the kink lies
inside the law.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bayesify.moments.activation_rules import exp_moments, square
from bayesify.moments.elementwise import Elementwise
from bayesify.moments.moments import Moments, precise_dtype, rule

_SELU_ALPHA = 1.6732632423543772
_SELU_SCALE = 1.0507009873554805


def _sigmoid_slope(x: Tensor) -> Tensor:
    return torch.sigmoid(x) * torch.sigmoid(-x)


def _silu_slope(x: Tensor) -> Tensor:
    return torch.sigmoid(x) * (1.0 + x * torch.sigmoid(-x))


def _tanh_slope(x: Tensor) -> Tensor:
    return 4.0 * torch.sigmoid(2.0 * x) * torch.sigmoid(-2.0 * x)


def _softplus_slope(x: Tensor, beta: float, threshold: float) -> Tensor:
    del threshold
    return torch.sigmoid(beta * x)


def _elu_slope(x: Tensor, alpha: float) -> Tensor:
    return torch.where(x > 0, torch.ones_like(x), alpha * torch.exp(x.clamp_max(0.0)))


def _celu_slope(x: Tensor, alpha: float) -> Tensor:
    return torch.where(x > 0, torch.ones_like(x), torch.exp(x.clamp_max(0.0) / alpha))


def _selu_slope(x: Tensor) -> Tensor:
    return _SELU_SCALE * _elu_slope(x, _SELU_ALPHA)


def _mish_slope(x: Tensor) -> Tensor:
    squashed = torch.tanh(F.softplus(x))
    return squashed + x * torch.sigmoid(x) * (1.0 - squashed.square())


def _hardswish_slope(x: Tensor) -> Tensor:
    inner = (2.0 * x + 3.0) / 6.0
    return torch.where(x <= -3, torch.zeros_like(x), torch.where(x >= 3, torch.ones_like(x), inner))


def _softsign_slope(x: Tensor) -> Tensor:
    return (1.0 + x.abs()) ** -2


def _erf_slope(x: Tensor) -> Tensor:
    return 2.0 / math.sqrt(math.pi) * torch.exp(-x * x)


def _minus_sin(x: Tensor) -> Tensor:
    return -torch.sin(x)


def _atan_slope(x: Tensor) -> Tensor:
    return (1.0 + x.square()).reciprocal()


def _tanhshrink_slope(x: Tensor) -> Tensor:
    return torch.tanh(x).square()


def _expm1_moments(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return torch.expm1(m + 0.5 * v), exp_moments(m, v)[1]


def _log_sigmoid_slope(x: Tensor) -> Tensor:
    return torch.sigmoid(-x)


def _identity(x: Tensor) -> Tensor:
    return x


Elementwise(torch.sigmoid, _sigmoid_slope).register(torch.sigmoid, Tensor.sigmoid, F.sigmoid)
Elementwise(torch.tanh, _tanh_slope).register(torch.tanh, Tensor.tanh, F.tanh)
Elementwise(F.silu, _silu_slope).register(F.silu)
Elementwise(F.mish, _mish_slope).register(F.mish)
Elementwise(F.hardswish, _hardswish_slope).register(F.hardswish)
Elementwise(F.softsign, _softsign_slope).register(F.softsign)
Elementwise(F.logsigmoid, _log_sigmoid_slope).register(F.logsigmoid)
Elementwise(torch.erf, _erf_slope).register(torch.erf, torch.special.erf, Tensor.erf)
Elementwise(torch.sin, torch.cos).register(torch.sin, Tensor.sin)
Elementwise(torch.expm1, torch.exp, _expm1_moments).register(
    torch.expm1, Tensor.expm1, torch.special.expm1
)
Elementwise(torch.atan, _atan_slope).register(torch.atan, torch.arctan, Tensor.atan, Tensor.arctan)
Elementwise(F.tanhshrink, _tanhshrink_slope).register(F.tanhshrink)
Elementwise(torch.cos, _minus_sin).register(torch.cos, Tensor.cos)
Elementwise(F.elu, _elu_slope, parameters=(("alpha", 1.0),)).register(F.elu)
Elementwise(F.celu, _celu_slope, parameters=(("alpha", 1.0),)).register(F.celu, torch.celu)
Elementwise(F.selu, _selu_slope).register(F.selu, torch.selu)
Elementwise(F.softplus, _softplus_slope, parameters=(("beta", 1.0), ("threshold", 20.0))).register(
    F.softplus
)


def first_order(x: Moments, value: Tensor, slope: Tensor) -> Moments:
    """Return f(m) and f'(m)^2 v for a function that a normal value may leave the domain of."""
    v = x.variance_or_none
    if v is None:
        return Moments(value)
    # What is certain stays so where the slope is infinite.
    is_sure = (v == 0) & ~slope.isfinite()
    slope = torch.where(is_sure, 0.0, slope.to(precise_dtype(x.dtype)))
    return Moments(value, slope.square() * v)


@rule(torch.sqrt, Tensor.sqrt)
def _sqrt(x: Moments) -> Moments:
    if x.variance_or_none is None:
        return Moments(x.expected.sqrt())
    # Of a 0 that is certain, as the norm of padding is: with gradients of 0, as torch's norm has.
    is_zero = (x.expected == 0) & (x.variance == 0)
    root = torch.where(is_zero, 1.0, x.expected).sqrt()
    return first_order(x, torch.where(is_zero, 0.0, root), 0.5 / root)


@rule(torch.rsqrt, Tensor.rsqrt)
def _rsqrt(x: Moments) -> Moments:
    m = x.expected.to(precise_dtype(x.dtype))
    return first_order(x, x.expected.rsqrt(), 0.5 * m**-1.5)


@rule(torch.reciprocal, Tensor.reciprocal)
def reciprocal(x: Moments) -> Moments:
    """Return 1 / x to first order; good where the mean is many standard deviations from 0."""
    m = x.expected.to(precise_dtype(x.dtype))
    return first_order(x, x.expected.reciprocal(), m**-2)


@rule(torch.log, Tensor.log)
def _log(x: Moments) -> Moments:
    return first_order(x, x.expected.log(), x.expected.to(precise_dtype(x.dtype)).reciprocal())


@rule(torch.log1p, Tensor.log1p, torch.special.log1p)
def _log1p(x: Moments) -> Moments:
    return first_order(
        x, x.expected.log1p(), (1.0 + x.expected.to(precise_dtype(x.dtype))).reciprocal()
    )


@rule(torch.pow, Tensor.pow, Tensor.__pow__)
def _pow(x: Moments, exponent: Any) -> Moments:
    """Take whole powers exactly, roots and reciprocals to first order, where the mean has them."""
    is_single = isinstance(exponent, Tensor) and exponent.numel() == 1
    is_learned = is_single and exponent.requires_grad and torch.is_grad_enabled()
    if is_single and not is_learned:
        exponent = exponent.item()
    is_number = isinstance(exponent, (int, float)) and math.isfinite(exponent)
    if not isinstance(x, Moments) or not (is_number or is_learned):
        got = exponent if isinstance(exponent, (int, float)) else type(exponent).__name__
        raise ValueError(
            f"a power of moments must have a finite number as its exponent, got {got}; "
            "a base that is certain is exp(exponent * log(base))"
        )
    if is_learned:
        return _power(x, exponent)
    if exponent == 0:
        return Moments(torch.ones_like(x.expected))
    if exponent == 2:
        return square(x)
    if exponent == int(exponent) and exponent > 0:
        power = int(exponent)
        # Sixteen nodes are exact up to the degree 31, so to the variance of the 15th power.
        return Elementwise(lambda z: z**power, lambda z: power * z ** (power - 1)).apply(x)
    return _power(x, exponent)


def _power(x: Moments, exponent: Any) -> Moments:
    m = x.expected.to(precise_dtype(x.dtype))
    return first_order(x, x.expected**exponent, exponent * m ** (exponent - 1))
