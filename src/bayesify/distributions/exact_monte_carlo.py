"""The average over M draws, drawn from its own exact law: any M at the cost of two draws.

The draws enter a KL only through a few sums. Where the joint law of those is known, they are drawn
instead: for Normal noise Σξ = √M Z and Σξ² = Z² + χ²(M − 1) with Z and χ² independent (Cochran),
for exponential noise Σξ is a gamma number. Value and gradients have the joint law of M draws.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bayesify.distributions.estimator import exact_mc
from bayesify.distributions.exponential import Exponential, ExponentialPrior
from bayesify.distributions.family import Parameters
from bayesify.distributions.log_normal import LogNormal, LogNormalPrior
from bayesify.distributions.normal import Normal, NormalPrior
from bayesify.distributions.precision import at_least_float32
from bayesify.distributions.rayleigh import Rayleigh, RayleighPrior
from bayesify.distributions.scale import log_softplus, softplus
from bayesify.distributions.scaling import log_size
from bayesify.distributions.special import standard_gamma


@exact_mc.register(Normal, NormalPrior)
def sampled_normal_from_normal(
    family: Normal, parameters: Parameters, prior: NormalPrior, num_samples: int
) -> Tensor:
    """Return Σ log(s/σ) + [(μ − m)² + 2 (μ − m) σ x̄ + σ² q] / (2 s²) − q/2."""
    del family
    mean, rho = at_least_float32(parameters["mean"]), at_least_float32(parameters["rho"])
    share = mean.numel() / max(rho.numel(), 1)
    log_ratio = math.log(prior.std) * mean.numel() - log_softplus(rho).sum() * share
    average, square = normal_averages(mean.detach(), num_samples)
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
        half = 0.5 * (num_samples - 1)
        square += standard_gamma(torch.full_like(like, half)).mul_(2.0 / num_samples)
    return average, square


@torch.no_grad()
def exponential_average(like: Tensor, num_samples: int) -> Tensor:
    """Draw the average of M exponential numbers, for every entry."""
    return standard_gamma(torch.full_like(like, float(num_samples))) / num_samples


def _quadratic(
    offset: Tensor, std: Tensor, average: Tensor, square: Tensor, prior_std: float
) -> Tensor:
    deviation = offset.square() + 2 * offset * std * average + std.square() * square
    return (deviation / (2 * prior_std**2) - 0.5 * square).sum()
