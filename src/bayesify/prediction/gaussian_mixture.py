"""The equally weighted mixture of Gaussians that a sampled regression predicts, one per output.

Components lie on axis 0: `means` and `variances` are (T, ...). A variance of 0 is a point mass.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import torch
from torch import Tensor

# Halving a float64 bracket this often reaches neighbouring numbers.
_NUM_HALVINGS = 64
# Bounds the float64 working copy of a quantile to about 32 MB.
_MAX_WORKING_ELEMENTS = 2**22


def spread_variance(means: Tensor, variance: Tensor | float, name: str) -> Tensor:
    """Return a variance, checked, in the shape of the means it belongs to."""
    variance = torch.as_tensor(variance, dtype=means.dtype, device=means.device)
    if bool((variance < 0).any()):
        raise ValueError(f"{name} must be at least 0, got {float(variance.min())}")
    try:
        return variance.expand_as(means)
    except RuntimeError:
        raise ValueError(
            f"{name} must broadcast to the means {tuple(means.shape)}, got shape "
            f"{tuple(variance.shape)}"
        ) from None


def mixture_cdf(values: Tensor, means: Tensor, variances: Tensor) -> Tensor:
    """Return P(Y <= values) with mean_t Phi((y - mu_t)/std_t)."""
    # erfc keeps the lower tail that 1 + erf loses in floating point.
    is_point = variances == 0
    std = variances.sqrt().masked_fill(is_point, 1.0)
    smooth = 0.5 * torch.erfc((means - values) / (std * math.sqrt(2.0)))
    return torch.where(is_point, (values >= means).to(smooth.dtype), smooth).mean(0)


def mixture_quantile(level: float, means: Tensor, variances: Tensor) -> Tensor:
    """Return the smallest y with P(Y <= y) >= level, by bisection to float precision."""
    if not 0.0 < level < 1.0:
        raise ValueError(f"the quantile level must lie strictly between 0 and 1, got {level}")
    shape = means.shape[1:]
    means, variances = means.flatten(1), variances.flatten(1)
    width = max(1, _MAX_WORKING_ELEMENTS // means.shape[0])
    pieces = [
        _bisect(level, *piece)
        for piece in zip(means.split(width, 1), variances.split(width, 1), strict=True)
    ]
    return torch.cat(pieces).reshape(shape)


def mixture_log_density(values: Tensor, means: Tensor, variances: Tensor) -> Tensor:
    """Return log 1/T sum_t prod_d N(y_d; mu_td, variance_td) per example (axis 0 of values).

    NaN where a component has no variance: a point mass has no density.
    """
    variances = variances.masked_fill(variances == 0, math.nan)
    log_density = -0.5 * (
        math.log(2 * math.pi) + variances.log() + (values - means).square() / variances
    )
    # The joint density multiplies the outputs of one example before the samples are averaged.
    joint = log_density.flatten(2).sum(2) if log_density.ndim > 2 else log_density
    return joint.logsumexp(0) - math.log(means.shape[0])


def _bisect(level: float, means: Tensor, variances: Tensor) -> Tensor:
    # Apple's GPUs have no float64.
    working = means.dtype if means.device.type == "mps" else torch.float64
    means, variances = means.to(working), variances.to(working)
    # The mixture's quantile lies between the smallest and the largest of its components'.
    quantiles = means + variances.sqrt() * NormalDist().inv_cdf(level)
    low, high = quantiles.amin(0), quantiles.amax(0)
    # 1 - 0.975 is not 0.025 in binary: without a tolerance a step would be taken one too late.
    threshold = level - min(8 * torch.finfo(working).eps, 1e-6 * level)
    # A step at the lower end is not found by halving, which only ever moves towards it.
    high = torch.where(mixture_cdf(low, means, variances) >= threshold, low, high)
    for _ in range(_NUM_HALVINGS):
        middle = low + (high - low) / 2
        is_enough = mixture_cdf(middle, means, variances) >= threshold
        low, high = torch.where(is_enough, low, middle), torch.where(is_enough, middle, high)
    return high
