"""Draws from the chi-square law of many degrees of freedom, at the price of a Normal draw.

A quantile of the law is a short polynomial in the Normal quantile (Cornish and Fisher), so a Normal
number becomes a chi-square one by a few multiplications. From 200 degrees of freedom on the series
is right to 4e-7 standard deviations for Normal numbers up to 5 and to 3e-6 up to 6.5, which is what
float32 resolves; torch's gamma numbers, which take ten times as long on a CPU, serve all else.

Reference: Goldberg, Levine (1946), "Approximate formulas for the percentage points and
normalization of t and chi-square".
"""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

from bayesify.distributions.special import standard_gamma

_LEAST_DEGREES = 200


def chi_square(like: Tensor, degrees: int) -> Tensor:
    """Draw chi-square numbers of these degrees of freedom, shaped like a tensor and of its type."""
    if degrees < _LEAST_DEGREES or like.dtype == torch.float64:
        return standard_gamma(torch.full_like(like, 0.5 * degrees)).mul_(2.0)
    last, *others = reversed(quantile_polynomial(degrees))
    normal = torch.randn_like(like)
    drawn = torch.full_like(like, last)
    for coefficient in others:
        drawn.mul_(normal).add_(coefficient)
    return drawn


@cache
def quantile_polynomial(degrees: int) -> tuple[float, ...]:
    """Return the coefficients of 1, z, z², ... of the chi-square number at a Normal number z."""
    root, two = math.sqrt(degrees), math.sqrt(2)
    terms = (
        (float(degrees), {0: 1}),
        (two * root, {1: 1}),
        (2 / 3, {2: 1, 0: -1}),
        (1 / (9 * two * root), {3: 1, 1: -7}),
        (-1 / (405 * degrees), {4: 6, 2: 14, 0: -32}),
        (1 / (4860 * two * degrees * root), {5: 9, 3: 256, 1: -433}),
        (1 / (25515 * degrees**2), {6: 12, 4: -243, 2: -923, 0: 1472}),
        (-1 / (9185400 * two * degrees**2 * root), {7: 3753, 5: 4353, 3: -289517, 1: -289717}),
    )
    found = [0.0] * 8
    for scale, powers in terms:
        for power, weight in powers.items():
            found[power] += scale * weight
    # What float32 cannot see even at z = 6.5 is not worth a pass over memory.
    while abs(found[-1]) * 6.5 ** (len(found) - 1) < 1e-7 * two * root:
        found.pop()
    return tuple(found)
