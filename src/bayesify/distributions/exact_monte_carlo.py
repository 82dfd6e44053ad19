"""The average over M draws, drawn from its own exact law: any M at the cost of two draws.

The draws enter a KL only through a few sums. Where the joint law of those is known, they are drawn
instead: for Normal noise Σξ = √M Z and Σξ² = Z² + χ²(M − 1) with Z and χ² independent (Cochran),
for exponential noise Σξ is a gamma number. Value and gradients have the joint law of M draws.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import peek_interpreter_stack
from torch.autograd.function import once_differentiable

from bayesify.distributions.blocks import in_blocks
from bayesify.distributions.chi_square import chi_square
from bayesify.distributions.estimator import exact_mc
from bayesify.distributions.exponential import Exponential, ExponentialPrior
from bayesify.distributions.family import Parameters
from bayesify.distributions.half_line import log_size
from bayesify.distributions.log_normal import LogNormal, LogNormalPrior
from bayesify.distributions.normal import Normal, NormalPrior
from bayesify.distributions.precision import at_least_float32
from bayesify.distributions.rayleigh import Rayleigh, RayleighPrior
from bayesify.distributions.scale import log_softplus, softplus
from bayesify.distributions.special import standard_gamma


@exact_mc.register(Normal, NormalPrior)
def sampled_normal_from_normal(
    family: Normal, parameters: Parameters, prior: NormalPrior, num_samples: int
) -> Tensor:
    """Return Σ log(s/σ) + [(μ − m)² + 2 (μ − m) σ x̄ + σ² q] / (2 s²) − q/2."""
    del family
    mean, rho = at_least_float32(parameters["mean"]), at_least_float32(parameters["rho"])
    average, square = normal_averages(mean.detach(), num_samples)
    if peek_interpreter_stack() is None and mean.shape == rho.shape:
        return _SampledKL.apply(mean, rho, average, square, prior.mean, prior.std)
    share = mean.numel() / max(rho.numel(), 1)
    log_ratio = math.log(prior.std) * mean.numel() - log_softplus(rho).sum() * share
    return log_ratio + _quadratic(mean - prior.mean, softplus(rho), average, square, prior.std)


@exact_mc.register(LogNormal, LogNormalPrior)
def sampled_log_normal_from_log_normal(
    family: LogNormal, parameters: Parameters, prior: LogNormalPrior, num_samples: int
) -> Tensor:
    """Return the same in log |w|, whose KL is that of w."""
    mean, rho = at_least_float32(parameters["mean"]), at_least_float32(parameters["rho"])
    spread = family.spread(rho)
    location = log_size(mean) - family.log_moment(spread)
    share = mean.numel() / max(rho.numel(), 1)
    log_ratio = math.log(prior.log_std) * mean.numel() - log_softplus(rho).sum() * share
    average, square = normal_averages(mean.detach(), num_samples)
    return log_ratio + _quadratic(location - prior.log_mean, spread, average, square, prior.log_std)


@exact_mc.register(Exponential, ExponentialPrior)
def sampled_exponential_from_exponential(
    family: Exponential, parameters: Parameters, prior: ExponentialPrior, num_samples: int
) -> Tensor:
    """Return Σ (rate |mean| − 1) x̄ − log(rate |mean|)."""
    del family
    mean = at_least_float32(parameters["mean"])
    average = exponential_average(mean.detach(), num_samples)
    log_ratio = log_size(mean) + math.log(prior.rate)
    return ((prior.rate * mean.abs() - 1.0) * average - log_ratio).sum()


@exact_mc.register(Rayleigh, RayleighPrior)
def sampled_rayleigh_from_rayleigh(
    family: Rayleigh, parameters: Parameters, prior: RayleighPrior, num_samples: int
) -> Tensor:
    """Return Σ 2 log(s/σ) + (σ²/s² − 1) x̄: half the square of a Rayleigh number is exponential."""
    del family
    scale = at_least_float32(parameters["mean"]).abs() * math.sqrt(2 / math.pi)
    average = exponential_average(scale.detach(), num_samples)
    log_ratio = math.log(prior.scale) - log_size(scale)
    return (2 * log_ratio + ((scale / prior.scale).square() - 1.0) * average).sum()


@torch.no_grad()
def normal_averages(like: Tensor, num_samples: int) -> tuple[Tensor, Tensor]:
    """Draw the averages of M Normal numbers and of their squares, for every entry."""
    average = torch.randn_like(like) / math.sqrt(num_samples)
    square = average.square()
    if num_samples > 1:
        square.add_(chi_square(like, num_samples - 1), alpha=1.0 / num_samples)
    return average, square


@torch.no_grad()
def exponential_average(like: Tensor, num_samples: int) -> Tensor:
    """Draw the average of M exponential numbers, for every entry."""
    return standard_gamma(torch.full_like(like, float(num_samples))) / num_samples


class _SampledKL(torch.autograd.Function):
    """The sum and its slopes in the same few passes; backward only scales them."""

    @staticmethod
    def forward(
        ctx: Any,
        mean: Tensor,
        rho: Tensor,
        average: Tensor,
        square: Tensor,
        prior_mean: float,
        prior_std: float,
    ) -> Tensor:
        terms = partial(_sampled_terms, prior_mean=prior_mean, prior_std=prior_std)
        value, *slopes = in_blocks(terms, mean, rho, average, square)
        ctx.save_for_backward(*slopes)
        return value

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, gradient: Tensor
    ) -> tuple[Tensor | None, ...]:
        of_mean, of_rho = ctx.saved_tensors
        return of_mean * gradient, of_rho * gradient, None, None, None, None


def _sampled_terms(
    mean: Tensor,
    rho: Tensor,
    average: Tensor,
    square: Tensor,
    prior_mean: float,
    prior_std: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the sum over entries, and the slopes in mean and rho of each."""
    least = torch.finfo(rho.dtype).tiny
    std = softplus(rho).clamp_min_(least)
    log_std = torch.minimum(std.log(), rho)
    scaled_offset, scaled_std = (mean - prior_mean).div_(prior_std), std / prior_std
    of_mean = torch.addcmul(scaled_offset, scaled_std, average)
    of_std = (scaled_std * square).addcmul_(scaled_offset, average)
    # Near the prior the terms cancel: they are taken together entry by entry.
    each = scaled_offset.mul_(of_mean).addcmul_(scaled_std, of_std).sub_(square).mul_(0.5)
    total = each.sub_(log_std.sub_(math.log(prior_std))).sum()
    # std · d/dstd, then d log std / d rho, which tends to 1 as both its parts underflow.
    of_log_std = of_std.mul_(scaled_std).sub_(1.0)
    of_rho = of_log_std.mul_(torch.sigmoid(rho).clamp_min_(least).div_(std))
    return total, of_mean.div_(prior_std), of_rho


def _quadratic(
    offset: Tensor, std: Tensor, average: Tensor, square: Tensor, prior_std: float
) -> Tensor:
    deviation = offset.square() + 2 * offset * std * average + std.square() * square
    return (deviation / (2 * prior_std**2) - 0.5 * square).sum()
