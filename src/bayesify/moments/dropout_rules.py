"""Dropout with its noise marginalised: a wider variance in training, nothing in evaluation.

Exact for the mean and variance of one entry. Dropping whole channels gives an entry the same
moments; that the entries of a channel then vary together is not seen.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from bayesify.moments.moments import Moments, precise, precise_dtype, rule
from bayesify.moments.watched_functions import seen


def drop(x: Moments, p: float) -> Moments:
    """Return m and (v + p m^2) / (1 - p)."""
    if p == 0.0:
        return x
    if p == 1.0:
        return Moments(torch.zeros_like(x.expected))
    spread = p * x.expected.to(precise_dtype(x.dtype)).square()
    if x.variance_or_none is not None:
        spread = spread + x.variance_or_none
    return Moments(x.expected, spread / (1.0 - p))


@rule(F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, torch.dropout)
def _dropout(x: Moments, p: float = 0.5, training: bool = True, inplace: bool = False) -> Moments:
    if not training:
        return x
    result = seen(x, lambda x: drop(x, p))
    return x.assign(result) if inplace else result


@rule(F.alpha_dropout, F.feature_alpha_dropout, torch.alpha_dropout, torch.feature_alpha_dropout)
def _alpha_dropout(
    x: Moments, p: float = 0.5, training: bool = False, inplace: bool = False
) -> Moments:
    """Entries become a(x or alpha') + b, with a and b that keep mean 0 and variance 1."""
    if not training or p == 0.0:
        return x
    fill = -1.7580993408473766
    keep = 1.0 - p
    a = (keep * (1.0 + p * fill**2)) ** -0.5
    b = -a * fill * p

    def dropped(x: Moments) -> Moments:
        m, v = precise(x)
        mean = a * (keep * m + p * fill) + b
        variance = keep * v + keep * p * (m - fill).square()
        return Moments(mean.to(x.dtype), a**2 * variance)

    result = seen(x, dropped)
    return x.assign(result) if inplace else result
