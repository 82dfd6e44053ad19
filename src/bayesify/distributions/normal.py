"""The Normal family, the Normal prior, and the divergence between them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch._C._functorch import peek_interpreter_stack

from bayesify.distributions.blocks import in_blocks
from bayesify.distributions.divergence import divergences
from bayesify.distributions.family import Family, Parameters, Prior, families, priors
from bayesify.distributions.precision import at_least_float32
from bayesify.distributions.scale import inverse_softplus, log_softplus, softplus

_HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)


@families.register("normal")
@dataclass(frozen=True)
class Normal(Family):
    """Independent N(mean, std²) with std = softplus(rho)."""

    name: ClassVar[str] = "normal"
    parameter_names: ClassVar[tuple[str, ...]] = ("mean", "rho")
    is_gaussian: ClassVar[bool] = True

    def initial(self, tensor: Tensor, std: Tensor) -> dict[str, Tensor]:
        """Return mean = tensor and the rho of std."""
        return {"mean": tensor, "rho": inverse_softplus(at_least_float32(std)).to(std.dtype)}

    def deviation(self, parameters: Parameters) -> Tensor:
        """Return std · noise, drawn in float32 or better.

        In bfloat16 the noise of a small std would be rounded to a grid of 2⁻⁸ of itself.
        """
        mean, rho = parameters["mean"], at_least_float32(parameters["rho"])
        return softplus(rho) * torch.randn_like(mean, dtype=rho.dtype)

    def mean(self, parameters: Parameters) -> Tensor:
        """Return the mean."""
        return parameters["mean"]

    def variance(self, parameters: Parameters) -> Tensor:
        """Return std²."""
        return softplus(at_least_float32(parameters["rho"])).square()

    def log_prob(self, parameters: Parameters, value: Tensor) -> Tensor:
        """Return −log std − ½ log 2π − ½ ((w − mean)/std)²."""
        mean, rho = map(at_least_float32, (parameters["mean"], parameters["rho"]))
        standardised = (value - mean) / softplus(rho)
        return -log_softplus(rho) - _HALF_LOG_TWO_PI - 0.5 * standardised.square()


@priors.register("normal")
@dataclass(frozen=True)
class NormalPrior(Prior):
    """N(mean, std²) on every entry."""

    name: ClassVar[str] = "normal"
    mean: float = 0.0
    std: float = 1.0

    def log_prob(self, value: Tensor) -> Tensor:
        """Return −log std − ½ log 2π − ½ ((w − mean)/std)²."""
        standardised = (at_least_float32(value) - self.mean) / self.std
        return -math.log(self.std) - _HALF_LOG_TWO_PI - 0.5 * standardised.square()

    def problem(self) -> str | None:
        """Say when the mean is not finite or the std not a positive finite number."""
        if not math.isfinite(self.mean):
            return f"the prior's mean must be finite, got {self.mean}"
        if not (math.isfinite(self.std) and self.std > 0):
            return f"the prior's std must be positive and finite, got {self.std}"
        return None


@divergences.register(Normal, NormalPrior)
def normal_from_normal(family: Normal, parameters: Parameters, prior: NormalPrior) -> Tensor:
    """Return Σ log(s/σ) + (σ² + (μ − m)² − s²) / (2 s²).

    A scale shared by several entries counts once for each of them.
    """
    del family
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
