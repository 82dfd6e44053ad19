"""Activations with closed-form moments: the piecewise linear ones, GELU, exp and powers.

All are exact for a normal input. Reference: sections A2 and A3 of the method notes; the clamp
follows from the ReLU as clamp(x, a, b) = a + relu(x - a) - relu(x - b).
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bayesify.moments.elementwise import Elementwise
from bayesify.moments.fused_gelu import half_precision_gelu_moments
from bayesify.moments.gaussian_functions import (
    cumulative,
    density,
    standard_deviation,
    tail_mean,
)
from bayesify.moments.gelu import gelu_moments
from bayesify.moments.moments import Moments, as_moments, mean_of, precise, rule, variance_of
from bayesify.moments.rectified import rectified_moments


def _step(x: Tensor) -> Tensor:
    return (x > 0).to(x.dtype)


def _leaky_slope(x: Tensor, slope: float) -> Tensor:
    return torch.where(x > 0, torch.ones_like(x), torch.full_like(x, slope))


def _clamp_slope(x: Tensor, low: float | None, high: float | None) -> Tensor:
    inside = torch.ones_like(x, dtype=torch.bool)
    if low is not None:
        inside = inside & (x >= low)
    if high is not None:
        inside = inside & (x <= high)
    return inside.to(x.dtype)


def clamp_moments(
    m: Tensor, v: Tensor, low: float | None, high: float | None
) -> tuple[Tensor, Tensor]:
    """Return mean and variance of a clamped normal value, exactly; None leaves a side open."""
    if low is None:
        if high is None:
            return m, v
        tail, variance = _tail(high - m, v)
        return torch.minimum(m, torch.full_like(m, high)) - tail, variance
    if high is None:
        tail, variance = _tail(m - low, v)
        return torch.maximum(m, torch.full_like(m, low)) + tail, variance
    # The side the mean lies on is mirrored to the left: var(r1) - var(r2) cancels on the right.
    middle, half = 0.5 * (low + high), 0.5 * (high - low)
    sign = torch.where(m > middle, -torch.ones_like(m), torch.ones_like(m))
    centred = (m - middle) * sign
    first, first_variance = _tail(centred + half, v)
    second, second_variance = _tail(centred - half, v)
    inside = torch.minimum(torch.maximum(m, torch.full_like(m, low)), torch.full_like(m, high))
    mean = inside + sign * (first - second)
    missing = half - (mean - middle) * sign
    variance = first_variance - second_variance - 2.0 * second * missing
    return mean, variance.clamp(0.0, half * half)


def _tail(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Return what the mean of a ReLU has above max(m, 0), and its variance."""
    s = standard_deviation(v)
    return v / s * tail_mean((m / s).abs()), rectified_moments(m, v)[1]


def abs_moments(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and variance of |z|, the folded normal law."""
    return rectified_moments(m, v, -1.0)


def exp_moments(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and variance of exp(z), the log-normal law."""
    return torch.exp(m + 0.5 * v), torch.exp(2.0 * m + v) * torch.expm1(v)


def square_moments(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and variance of z^2."""
    return m * m + v, 2.0 * v * (v + 2.0 * m * m)


def _gelu_slope(x: Tensor) -> Tensor:
    return cumulative(x) + x * density(x)


def tanh_gelu(x: Tensor) -> Tensor:
    """Return the tanh approximation of GELU."""
    return F.gelu(x, approximate="tanh")


def _tanh_gelu_slope(x: Tensor) -> Tensor:
    factor = math.sqrt(2.0 / math.pi)
    bounded = x.clamp(-1e4, 1e4)
    squashed = torch.tanh(factor * (bounded + 0.044715 * bounded**3))
    inner = factor * (1.0 + 3 * 0.044715 * bounded**2)
    return 0.5 * (1.0 + squashed) + 0.5 * bounded * (1.0 - squashed**2) * inner


_GELU = Elementwise(F.gelu, _gelu_slope, gelu_moments, coarse=half_precision_gelu_moments)
_TANH_GELU = Elementwise(tanh_gelu, _tanh_gelu_slope)
_CLAMP = Elementwise(torch.clamp, _clamp_slope, clamp_moments)
_SQUARE = Elementwise(torch.square, lambda x: 2.0 * x, square_moments)

Elementwise(
    torch.relu, _step, rectified_moments, coarse=partial(rectified_moments, is_coarse=True)
).register(F.relu, torch.relu, Tensor.relu)
Elementwise(F.leaky_relu, _leaky_slope, rectified_moments, (("negative_slope", 0.01),)).register(
    F.leaky_relu
)
Elementwise(torch.abs, torch.sign, abs_moments).register(
    torch.abs, torch.absolute, Tensor.abs, Tensor.absolute, Tensor.__abs__
)
Elementwise(torch.exp, torch.exp, exp_moments).register(torch.exp, Tensor.exp)


@rule(torch.square, Tensor.square)
def square(x: Moments) -> Moments:
    """Return the square of x."""
    return _SQUARE.apply(x)


@rule(F.prelu, torch.prelu)
def _prelu(x: Any, weight: Any) -> Moments:
    x, slope, noise = as_moments(x), mean_of(weight), variance_of(weight)
    if slope.numel() > 1 and x.ndim > 1:
        sides = (1, -1, *[1] * (x.ndim - 2))
        slope, noise = slope.view(sides), None if noise is None else noise.view(sides)
    if noise is not None:
        # What comes out is relu(z) - slope relu(-z), so the slope's noise adds E[relu(-z)^2] times.
        mean, variance = precise(x) if x.variance_or_none is not None else x.pair()
        below, spread = rectified_moments(-mean, variance)
        result = _prelu(x, slope.flatten())
        spread = spread + below.to(spread.dtype).square()
        return Moments(result.expected, result.variance + noise * spread)
    if x.variance_or_none is None:
        return Moments(torch.where(x.expected > 0, x.expected, slope * x.expected))
    activation = Elementwise(
        lambda z: torch.where(z > 0, z, slope * z),
        lambda z: torch.where(z > 0, torch.ones_like(z), slope.to(z.dtype)),
        lambda m, v: rectified_moments(m, v, slope.to(m.dtype)),
    )
    return activation.apply(x)


@rule(F.gelu)
def _gelu(x: Moments, approximate: str = "none") -> Moments:
    return (_TANH_GELU if approximate == "tanh" else _GELU).apply(x)


@rule(torch.clamp, torch.clip, Tensor.clamp, Tensor.clip)
def _clamp(x: Moments, min: float | None = None, max: float | None = None) -> Moments:
    return _CLAMP.apply(x, min, max)


@rule(torch.clamp_min, Tensor.clamp_min)
def _clamp_min(x: Moments, min: float) -> Moments:
    return _CLAMP.apply(x, min, None)


@rule(torch.clamp_max, Tensor.clamp_max)
def _clamp_max(x: Moments, max: float) -> Moments:
    return _CLAMP.apply(x, None, max)


@rule(F.hardtanh)
def _hardtanh(
    x: Moments, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False
) -> Moments:
    result = _CLAMP.apply(x, min_val, max_val)
    return x.assign(result) if inplace else result


@rule(F.relu6)
def _relu6(x: Moments, inplace: bool = False) -> Moments:
    return _hardtanh(x, 0.0, 6.0, inplace)


@rule(F.hardsigmoid)
def _hardsigmoid(x: Moments, inplace: bool = False) -> Moments:
    shifted = _CLAMP.apply(Moments(x.expected + 3.0, x.variance_or_none), 0.0, 6.0)
    v = shifted.variance_or_none
    result = Moments(shifted.expected / 6.0, None if v is None else v / 36.0)
    return x.assign(result) if inplace else result
