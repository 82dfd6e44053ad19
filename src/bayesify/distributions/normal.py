"""The Normal family, the Normal prior, and the divergence between them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch._C._functorch import peek_interpreter_stack

from bayesify.distributions.blocks import in_blocks
from bayesify.distributions.estimator import closed
from bayesify.distributions.family import Parameters, families, priors
from bayesify.distributions.location_scale import (
    LocationScale,
    LocationScalePrior,
    bounded_below,
)
from bayesify.distributions.precision import at_least_float32
from bayesify.distributions.scale import log_softplus, softplus
from bayesify.distributions.statistic import Exponent, Power, Statistic, Terms

_HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)


@families.register("normal")
@dataclass(frozen=True)
class Normal(LocationScale):
    """Independent N(mean, std²) with std = softplus(rho)."""

    name: ClassVar[str] = "normal"
    is_gaussian: ClassVar[bool] = True
    has_exponential_moments: ClassVar[bool] = True

    def standard_noise(self, like: Tensor) -> Tensor:
        """Draw from N(0, 1)."""
        return torch.randn_like(like)

    def noise_log_prob(self, noise: Tensor) -> Tensor:
        """Return −½ log 2π − ½ noise²."""
        return -_HALF_LOG_TWO_PI - 0.5 * noise.square()

    def noise_entropy(self) -> float:
        """Return ½ log 2πe."""
        return _HALF_LOG_TWO_PI + 0.5

    def noise_moment(self, power: int) -> float:
        """Return 1 · 3 · 5 · ... · (power − 1) for an even power, 0 for an odd one."""
        return float(math.prod(range(1, power, 2))) if power % 2 == 0 else 0.0

    def expected_distance(self, offset: Tensor, std: Tensor) -> Tensor:
        """Return the mean of a folded Normal."""
        # 40 deviations away nothing is folded, in float64 too.
        ratio = offset / bounded_below(std, offset.abs() / 40)
        tail = std * math.sqrt(2 / math.pi) * torch.exp(-0.5 * ratio.square())
        return offset * torch.erf(ratio * math.sqrt(0.5)) + tail

    def expected(self, statistic: Statistic, parameters: Parameters) -> Tensor | None:
        """Return the average of exp(r (w − c)) too."""
        if not isinstance(statistic, Exponent):
            return super().expected(statistic, parameters)
        mean, rho = at_least_float32(parameters["mean"]), at_least_float32(parameters["rho"])
        rate = statistic.rate
        return torch.exp(rate * (mean - statistic.centre) + 0.5 * (rate * softplus(rho)).square())


@priors.register("normal")
@dataclass(frozen=True)
class NormalPrior(LocationScalePrior):
    """N(mean, std²) on every entry."""

    name: ClassVar[str] = "normal"

    def of_noise(self) -> Normal:
        """Return the Normal family."""
        return Normal()

    def terms(self) -> tuple[float, Terms]:
        """Return −log std − ½ log 2π − ½ ((w − mean)/std)²."""
        weight = -0.5 / self.std**2
        return -math.log(self.std) - _HALF_LOG_TWO_PI, ((weight, Power(2.0, self.mean)),)


@closed.register(Normal, NormalPrior)
def normal_from_normal(
    family: Normal, parameters: Parameters, prior: NormalPrior, num_samples: int = 0
) -> Tensor:
    """Return Σ log(s/σ) + (σ² + (μ − m)² − s²) / (2 s²).

    A scale shared by several entries counts once for each of them.
    """
    del family, num_samples
    mean = at_least_float32(parameters["mean"])
    rho = at_least_float32(parameters["rho"])
    if peek_interpreter_stack() is None:
        return _NormalKL.apply(mean, rho, prior.mean, prior.std)
    of_scale = 0.5 * ((softplus(rho) / prior.std).square() - 1.0) - log_softplus(rho)
    of_mean = 0.5 * ((mean - prior.mean) / prior.std).square()
    share = mean.numel() / max(rho.numel(), 1)
    return share * (of_scale + math.log(prior.std)).sum() + of_mean.sum()


class _NormalKL(torch.autograd.Function):
    """The sum and its own derivatives: half the passes over memory that autograd would make."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, rho: Tensor, prior_mean: float, prior_std: float) -> Tensor:
        share = mean.numel() / max(rho.numel(), 1)
        ctx.prior_mean, ctx.prior_std, ctx.share = prior_mean, prior_std, share
        of_mean = in_blocks(lambda mean: (_mean_terms(mean, prior_mean, prior_std),), mean)[0]
        of_scale, *slopes = in_blocks(
            lambda rho: _scale_terms(rho, prior_std, with_slope=ctx.needs_input_grad[1]), rho
        )
        ctx.save_for_backward(mean, rho, *slopes)
        return share * of_scale + 0.5 * of_mean

    @staticmethod
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, gradient: Tensor
    ) -> tuple[Tensor, Tensor | None, None, None]:
        mean, rho, *slopes = ctx.saved_tensors
        of_mean = mean - ctx.prior_mean if ctx.prior_mean else mean
        of_mean = of_mean * (gradient / ctx.prior_std**2)
        if not ctx.needs_input_grad[1]:
            return of_mean, None, None, None
        # A second derivative goes through the slope, which forward found without a graph.
        slope = _slope(rho, ctx.prior_std) if torch.is_grad_enabled() else slopes[0]
        return of_mean, slope * (gradient * ctx.share), None, None


def _mean_terms(mean: Tensor, prior_mean: float, prior_std: float) -> Tensor:
    return (mean - prior_mean).div_(prior_std).square_().sum()


def _scale_terms(rho: Tensor, prior_std: float, *, with_slope: bool) -> tuple[Tensor, ...]:
    least = torch.finfo(rho.dtype).tiny
    std = softplus(rho).clamp_min_(least)
    log_std = torch.minimum(std.log(), rho)
    # Constants are taken off entry by entry: near the prior both sides are large and cancel.
    excess = std.div(prior_std).square_().sub_(1.0)
    total = torch.sub(excess, log_std.sub_(math.log(prior_std)), alpha=2.0).sum() * 0.5
    if not with_slope:
        return (total,)
    # d log std / d rho tends to 1 as both its numerator and std underflow.
    return total, excess.mul_(torch.sigmoid(rho).clamp_min_(least).div_(std))


def _slope(rho: Tensor, prior_std: float) -> Tensor:
    least = torch.finfo(rho.dtype).tiny
    std = softplus(rho).clamp_min(least)
    return ((std / prior_std).square() - 1.0) * (torch.sigmoid(rho).clamp_min(least) / std)
