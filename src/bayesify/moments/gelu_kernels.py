"""Moments of the GELU and their gradients in GPU kernels; `coarse_gelu` has the formulas.

Compiled from torch's own operations they are as many values at once as no GPU has registers for:
these look at few entries at a time. Roots and exponentials are those of the hardware.
"""

# Triton's language is no Python that a type checker knows.
# pyright: basic, reportMissingImports=false

from __future__ import annotations

import triton
import triton.language as tl

from bayesify.moments import gaussian_functions
from bayesify.moments.coarse_gelu import FEW_NODES, FEW_UP_TO, NODES

LOG2_E = tl.constexpr(1.4426950408889634)
PER_ROOT_2PI = tl.constexpr(0.3989422804014327)
PER_PI = tl.constexpr(0.3183098861837907)
STEP = tl.constexpr(gaussian_functions.COARSE_STEP)
(X0, W0), (X1, W1), (X2, W2), (X3, W3) = ((tl.constexpr(x), tl.constexpr(w)) for x, w in NODES)
(Y0, V0), (Y1, V1) = ((tl.constexpr(x), tl.constexpr(w)) for x, w in FEW_NODES)
SMALL = tl.constexpr(FEW_UP_TO)
T0, T1, T2, T3, T4, T5 = (tl.constexpr(each) for each in gaussian_functions.TAIL_OVER_BELL)


@triton.jit
def parts(m, v):
    """Return what `coarse_gelu._parts` does: m bounded, Phi(h), b, expectations, and for nodes."""
    per_root = tl.rsqrt(1.0 + v)
    per_total = per_root * per_root
    furthest = 40.0 * (1.0 + v) * per_root
    # What is not a number stays so.
    above = tl.maximum(m, -furthest, propagate_nan=tl.PropagateNan.ALL)
    u = tl.minimum(above, furthest, propagate_nan=tl.PropagateNan.ALL)
    h = u * per_root
    bell = tl.exp2(h * h * (-0.5 * LOG2_E)) * PER_ROOT_2PI
    t = 1.0 / (1.0 + STEP * tl.abs(h))
    tail = bell * t * (T0 + t * (T1 + t * (T2 + t * (T3 + t * (T4 + t * T5)))))
    below = tl.where(h > 0.0, 1.0 - tail, tail)
    bell = bell * per_root
    centre, width = u * per_total, v * per_total
    square = centre * centre
    slope = below + centre * bell
    bend = bell * (2.0 - square - width)
    third = bell * centre * (square + 3.0 * width - 4.0)
    last = tl.rsqrt(1.0 + 2.0 * v)
    root = 2.0 * v * last / (1.0 + last)
    return above, u, below, bell, slope, bend, third, 0.5 * per_total, last, root


@triton.jit
def term(X: tl.constexpr, W: tl.constexpr, last, span, per_two, x, exponent):
    """Return weight, q, N, and the slope of N over the step, given (u / 2 t)^2 and -u^2 / 2 t."""
    y = last + X * span
    square = y * y
    q = 1.0 + square
    inverse = tl.rsqrt(q * square)
    inverse = inverse * inverse
    g = (0.5 * per_two) * (q * inverse)
    a, b = square * inverse + q * (g - x), (2.0 - q) * g
    weight = W * (last + y) * tl.exp2(q * exponent)
    return weight, q, a * a + b * (2.0 * b + q * (4.0 * x)), 2.0 * b - a


@triton.jit
def value(X: tl.constexpr, W: tl.constexpr, last, span, per_two, x, exponent):
    """Return what one node adds to the variance."""
    weight, _, polynomial, _ = term(X, W, last, span, per_two, x, exponent)
    return weight * polynomial


@triton.jit
def slopes(X: tl.constexpr, W: tl.constexpr, last, span, per_two, x, exponent, two_squares):
    """Return what one node adds to the variance's derivatives along m, over 2 m, and along v."""
    weight, q, polynomial, slope = term(X, W, last, span, per_two, x, exponent)
    beta = per_two * q
    step = (2.0 * per_two) * beta
    slope = step * slope
    inner = slope - beta * polynomial
    outer = 0.5 * (step * step) - beta * (slope + inner)
    return weight * inner, weight * (inner + two_squares * outer)


@triton.jit
def moments(m, v, mean, variance, count, SIZE: tl.constexpr):
    """Write mean and variance of the GELU."""
    where = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    is_there = where < count
    m = tl.load(m + where, mask=is_there, other=0.0).to(tl.float32)
    v = tl.load(v + where, mask=is_there, other=0.0).to(tl.float32)
    above, u, below, bell, slope, _, _, per_two, last, root = parts(m, v)
    span, along = root * last, per_two * u
    x, exponent = along * along, along * u * -LOG2_E
    if tl.max(v, 0) <= SMALL:
        total = value(Y0, V0, last, span, per_two, x, exponent)
        total += value(Y1, V1, last, span, per_two, x, exponent)
    else:
        total = value(X0, W0, last, span, per_two, x, exponent)
        total += value(X1, W1, last, span, per_two, x, exponent)
        total += value(X2, W2, last, span, per_two, x, exponent)
        total += value(X3, W3, last, span, per_two, x, exponent)
    total = v * slope * slope + root * root * PER_PI * total
    found = above * below + v * bell
    tl.store(mean + where, found.to(mean.dtype.element_ty), mask=is_there)
    tl.store(variance + where, total.to(variance.dtype.element_ty), mask=is_there)


@triton.jit
def gradients(m, v, of_mean, of_variance, along_m, along_v, count, SIZE: tl.constexpr):
    """Write the gradients of m and v."""
    where = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    is_there = where < count
    m = tl.load(m + where, mask=is_there, other=0.0).to(tl.float32)
    v = tl.load(v + where, mask=is_there, other=0.0).to(tl.float32)
    _, u, _, _, slope, bend, third, per_two, last, root = parts(m, v)
    span, along = root * last, per_two * u
    x, exponent, twice = along * along, along * u * -LOG2_E, 2.0 * u * u
    if tl.max(v, 0) <= SMALL:
        r_m, r_v = slopes(Y0, V0, last, span, per_two, x, exponent, twice)
        more_m, more_v = slopes(Y1, V1, last, span, per_two, x, exponent, twice)
        r_m, r_v = r_m + more_m, r_v + more_v
    else:
        r_m, r_v = slopes(X0, W0, last, span, per_two, x, exponent, twice)
        more_m, more_v = slopes(X1, W1, last, span, per_two, x, exponent, twice)
        r_m, r_v = r_m + more_m, r_v + more_v
        more_m, more_v = slopes(X2, W2, last, span, per_two, x, exponent, twice)
        r_m, r_v = r_m + more_m, r_v + more_v
        more_m, more_v = slopes(X3, W3, last, span, per_two, x, exponent, twice)
        r_m, r_v = r_m + more_m, r_v + more_v
    factor = root * root * PER_PI
    r_m = 2.0 * (v * slope * bend + factor * u * r_m)
    r_v = slope * slope + v * (bend * bend + slope * third) + factor * r_v
    g = tl.load(of_mean + where, mask=is_there, other=0.0).to(tl.float32)
    r = tl.load(of_variance + where, mask=is_there, other=0.0).to(tl.float32)
    found = g * slope + r * r_m
    tl.store(along_m + where, found.to(along_m.dtype.element_ty), mask=is_there)
    found = 0.5 * g * bend + r * r_v
    tl.store(along_v + where, found.to(along_v.dtype.element_ty), mask=is_there)
