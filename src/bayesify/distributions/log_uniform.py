"""The log-uniform prior of variational dropout, and its exact divergence from a Normal.

The prior p(w) ∝ 1/|w| is improper; the additive constant is fixed so that the KL vanishes as the
noise outgrows the mean. With x = |mean| / (std √2) the KL is 2 ∫₀ˣ D(u) du, D the Dawson function,
and its derivatives are bounded. One polynomial gives both to 2e-7 at every ratio: no clamp, and no
small constant.

Reference: Kingma, Salimans, Welling (2015); Molchanov, Ashukha, Vetrov (2017).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C._functorch import peek_interpreter_stack
from torch.autograd.function import once_differentiable

from bayesify.distributions.blocks import in_blocks
from bayesify.distributions.estimator import closed
from bayesify.distributions.family import Parameters, Prior, priors
from bayesify.distributions.log_uniform_fits import fitted_log_alpha, molchanov_fit
from bayesify.distributions.log_uniform_series import (
    SCALE,
    smooth_part,
    smooth_part_and_steepness,
)
from bayesify.distributions.normal import Normal
from bayesify.distributions.precision import at_least_float32
from bayesify.distributions.scale import log_softplus, softplus
from bayesify.distributions.statistic import Log, Terms

# With it the KL of N(0, std²), −½ log 2πe·std² + E[log |w|] − constant, is 0 at any std.
_CONSTANT = -0.5 * math.log(2 * math.pi * math.e) - 0.5 * (0.5772156649015329 + math.log(2))

LogUniformKL = Literal["exact", "molchanov", "kingma"]
"""The exact KL, or one of its published fits."""


@priors.register("log_uniform")
@dataclass(frozen=True)
class LogUniformPrior(Prior):
    """p(w) ∝ 1/|w|: every order of magnitude alike, which rewards weights that are mostly noise.

    Args:
        kl: How the divergence from it is computed: "exact", or by the fit of "molchanov" or
            "kingma", to reproduce what was published.
    """

    name: ClassVar[str] = "log_uniform"

    kl: LogUniformKL = "exact"

    def terms(self) -> tuple[float, Terms]:
        """Return −log |w| and the constant with which the KL vanishes under much noise."""
        return _CONSTANT, ((-1.0, Log()),)

    def is_fit(self) -> bool:
        """Whether the KL is one of the published fits."""
        return self.kl != "exact"

    def problem(self) -> str | None:
        """Return why the KL cannot be computed, or None."""
        if self.kl in get_args(LogUniformKL):
            return None
        return f"kl must be 'exact', 'molchanov' or 'kingma', got {self.kl!r}"


def _problem(family: Normal, prior: LogUniformPrior) -> str | None:
    del family
    if prior.kl != "kingma":
        return None
    return (
        "kl='kingma' holds for alpha <= 1 only, which additive noise does not keep: take "
        "'exact' or 'molchanov', or multiplicative noise"
    )


@closed.register(Normal, LogUniformPrior, _problem)
def normal_from_log_uniform(
    family: Normal, parameters: Parameters, prior: LogUniformPrior, num_samples: int = 0
) -> Tensor:
    """Return Σ 2 ∫₀ˣ D(u) du with x = |mean| / (std √2), or Molchanov's fit of it."""
    del family, num_samples
    mean, rho = at_least_float32(parameters["mean"]), at_least_float32(parameters["rho"])
    if prior.kl == "molchanov":
        return molchanov_fit(fitted_log_alpha(mean, log_softplus(rho))).sum()
    if peek_interpreter_stack() is not None:
        return _normal_value(mean, rho)[0]
    return _NormalKL.apply(mean, rho)


def log_uniform_kl(mean: Tensor, log_std: Tensor) -> Tensor:
    """Return the KL of N(mean, std²) from the log-uniform prior, for every entry."""
    mean, log_std = torch.broadcast_tensors(mean, log_std)
    return _LogUniformKL.apply(mean, log_std)


def multiplicative_kl(logit: Tensor) -> Tensor:
    """Return the KL of N(mean, alpha · mean²), alpha = sigmoid(logit), summed over entries."""
    if peek_interpreter_stack() is not None:
        return _multiplicative_value(logit)[0]
    return _MultiplicativeKL.apply(logit)


class _LogUniformKL(torch.autograd.Function):
    """The KL entry by entry from log std, at any ratio a logarithm can hold."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, log_std: Tensor) -> Tensor:
        log_square = 2 * (mean.abs().log() - log_std) - math.log(SCALE)
        share = torch.sigmoid(log_square)
        ctx.save_for_backward(mean, share)
        return 0.5 * F.softplus(log_square) + share * smooth_part(share)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, gradient: Tensor
    ) -> tuple[Tensor, Tensor]:
        mean, share = ctx.saved_tensors
        slope = share * smooth_part_and_steepness(share)[1]  # dKL / dlog x = 2 x D(x)
        of_mean = torch.where(mean == 0, torch.zeros_like(mean), slope / mean)
        return gradient * of_mean, -gradient * slope


class _NormalKL(torch.autograd.Function):
    """Σ KL from mean and rho: forward finds the gradient too, and backward only scales it.

    Value and slope share most of their work, and nothing else is kept in between.
    """

    @staticmethod
    def forward(ctx: Any, mean: Tensor, rho: Tensor) -> Tensor:
        if not any(ctx.needs_input_grad):
            return in_blocks(_normal_value, mean, rho)[0]
        value, *gradients = in_blocks(_normal_value_and_gradient, mean, rho)
        ctx.save_for_backward(*gradients)
        return value

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, gradient: Tensor
    ) -> tuple[Tensor, Tensor]:
        of_mean, of_rho = ctx.saved_tensors
        return gradient * of_mean, gradient * of_rho


class _MultiplicativeKL(torch.autograd.Function):
    """Σ KL from the logit of alpha, likewise."""

    @staticmethod
    def forward(ctx: Any, logit: Tensor) -> Tensor:
        if not ctx.needs_input_grad[0]:
            return in_blocks(_multiplicative_value, logit)[0]
        value, of_logit = in_blocks(_multiplicative_value_and_gradient, logit)
        ctx.save_for_backward(of_logit)
        return value

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, gradient: Tensor
    ) -> Tensor:
        return gradient * ctx.saved_tensors[0]


def _normal_value(mean: Tensor, rho: Tensor) -> tuple[Tensor]:
    return (_value((mean / _bounded(softplus(rho), mean)).square()),)


def _normal_value_and_gradient(mean: Tensor, rho: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    least = torch.finfo(rho.dtype).tiny
    std = softplus(rho).clamp_min_(least)
    bounded = _bounded(std, mean)
    ratio = mean / bounded
    value, rate = _value_and_rate(ratio.square())
    of_mean = rate.mul_(ratio).div_(bounded)
    # d log std / d rho tends to 1 as both its numerator and std underflow.
    of_log_std = torch.sigmoid(rho).clamp_min_(least).div_(std)
    of_rho = (of_mean * mean).mul_(of_log_std).neg_()
    return value, of_mean, of_rho.sum_to_size(rho.shape)


def _multiplicative_value(logit: Tensor) -> tuple[Tensor]:
    return (_value(1.0 + _excess(logit)),)


def _multiplicative_value_and_gradient(logit: Tensor) -> tuple[Tensor, Tensor]:
    excess = _excess(logit)
    value, rate = _value_and_rate(1.0 + excess)
    return value, rate.mul_(excess).mul_(-0.5)


def _excess(logit: Tensor) -> Tensor:
    """Return mean² / std² − 1 = 1 / alpha − 1 = exp(−logit), kept finite."""
    return logit.neg().exp().clamp_max(1.0 / (256.0 * torch.finfo(logit.dtype).tiny))


def _bounded(std: Tensor, mean: Tensor) -> Tensor:
    # A std far below the resolution of its mean counts as a little more: the square of their ratio
    # stays finite, and so do both derivatives.
    least = torch.finfo(mean.dtype).tiny
    return torch.maximum(std, mean.abs().mul_(16.0 * math.sqrt(least)).clamp_min_(least))


def _value(square: Tensor) -> Tensor:
    """Return Σ KL at mean² / std², by operations that torch can differentiate and transform."""
    share = square / (square + SCALE)
    return (0.5 * torch.log1p(square / SCALE) + share * smooth_part(share)).sum()


def _value_and_rate(square: Tensor) -> tuple[Tensor, Tensor]:
    """Return Σ KL, and each entry's derivative in log |mean| over its mean² / std²."""
    raised = square + SCALE
    share = square / raised
    smooth, steepness = smooth_part_and_steepness(share)
    value = square.div(SCALE).log1p_().mul_(0.5).addcmul_(share, smooth).sum()
    return value, steepness.div_(raised)
