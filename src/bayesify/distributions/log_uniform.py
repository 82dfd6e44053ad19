"""The log-uniform prior of variational dropout, and its exact divergence from a Normal.

The prior p(w) ∝ 1/|w| is improper; the additive constant is fixed so that the KL vanishes as the
noise outgrows the mean. With x = |mean| / (std √2) the KL is 2 ∫₀ˣ D(u) du, D the Dawson function,
and its derivatives are bounded: no fit, no clamp, no small constant.

Reference: Kingma, Salimans, Welling (2015); Molchanov, Ashukha, Vetrov (2017).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import torch
import torch.nn.functional as F
from numpy.polynomial import chebyshev
from torch import Tensor
from torch.autograd.function import once_differentiable

from bayesify.distributions.divergence import divergences
from bayesify.distributions.family import Parameters, Prior, priors
from bayesify.distributions.log_uniform_fits import fitted_log_alpha, molchanov_fit
from bayesify.distributions.normal import Normal
from bayesify.distributions.precision import at_least_float32
from bayesify.distributions.scale import log_softplus

# Chebyshev interpolants of this degree are exact to 1e-8, below float32 resolution of a KL.
_DEGREE = 48
_CONSTANT = 0.5 * (np.euler_gamma + 2 * math.log(2))

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

    def log_prob(self, value: Tensor) -> Tensor:
        """Return −log |w|, up to the constant an improper prior does not have."""
        return -value.abs().log()

    def problem(self) -> str | None:
        """Return why the KL cannot be computed, or None."""
        if self.kl in get_args(LogUniformKL):
            return None
        return f"kl must be 'exact', 'molchanov' or 'kingma', got {self.kl!r}"


@divergences.register(Normal, LogUniformPrior)
def normal_from_log_uniform(
    family: Normal, parameters: Parameters, prior: LogUniformPrior
) -> Tensor:
    """Return Σ 2 ∫₀ˣ D(u) du with x = |mean| / (std √2), or Molchanov's fit of it."""
    del family
    mean, rho = at_least_float32(parameters["mean"]), at_least_float32(parameters["rho"])
    if prior.kl == "kingma":
        raise ValueError(
            "kl='kingma' holds for alpha <= 1 only, which additive noise does not keep: take "
            "'exact' or 'molchanov', or multiplicative noise"
        )
    if prior.kl == "molchanov":
        return molchanov_fit(fitted_log_alpha(mean, log_softplus(rho))).sum()
    return log_uniform_kl(mean, log_softplus(rho)).sum()


def log_uniform_kl(mean: Tensor, log_std: Tensor) -> Tensor:
    """Return the KL of N(mean, std²) from the log-uniform prior, for every entry."""
    mean, log_std = torch.broadcast_tensors(mean, log_std)
    return _LogUniformKL.apply(mean, log_std)


class _LogUniformKL(torch.autograd.Function):
    """With l = log x² and s = sigmoid(l): KL = ½ softplus(l) + s E(s), dKL/dlog x = s G(s).

    Both E and G are smooth on [0, 1], so polynomials give them, to a relative error that holds
    down to x = 0 and up to x = ∞.
    """

    @staticmethod
    def forward(ctx: Any, mean: Tensor, log_std: Tensor) -> Tensor:
        log_square = 2 * (mean.abs().log() - log_std) - math.log(2)
        share = torch.sigmoid(log_square)
        ctx.save_for_backward(mean, share)
        return 0.5 * F.softplus(log_square) + share * _evaluate(_coefficients()[0], share)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, gradient: Tensor
    ) -> tuple[Tensor, Tensor]:
        mean, share = ctx.saved_tensors
        slope = share * _evaluate(_coefficients()[1], share)  # dKL / dlog x = 2 x D(x)
        of_mean = torch.where(mean == 0, torch.zeros_like(mean), slope / mean)
        return gradient * of_mean, -gradient * slope


def _evaluate(coefficients: tuple[float, ...], share: Tensor) -> Tensor:
    """Return the Chebyshev series at `share` by Clenshaw's recurrence."""
    twice = 4 * share - 2
    first, second = torch.zeros_like(share), torch.zeros_like(share)
    for coefficient in coefficients[:0:-1]:
        first, second = coefficient + twice * first - second, first
    return coefficients[0] + 0.5 * twice * first - second


@cache
def _coefficients() -> tuple[tuple[float, ...], tuple[float, ...]]:
    nodes = 0.5 + 0.5 * np.cos(np.pi * (np.arange(_DEGREE + 1) + 0.5) / (_DEGREE + 1))
    x = np.sqrt(nodes / (1 - nodes))
    value = (_integral(x) - 0.5 * np.log1p(x**2)) / nodes
    slope = 2 * x * _dawson(x) / nodes
    fits = (chebyshev.chebfit(2 * nodes - 1, target, _DEGREE) for target in (value, slope))
    exact, slopes = (tuple(float(entry) for entry in fit) for fit in fits)
    return exact, slopes


def _dawson(x: np.ndarray) -> np.ndarray:
    """Return the Dawson function: Rybicki's series, or the asymptotic one from 8 on."""
    odd = np.arange(1, 81, 2)[:, None]
    near = np.exp(-((x - 0.2 * odd) ** 2)) - np.exp(-((x + 0.2 * odd) ** 2))
    series = (near / odd).sum(0) / math.sqrt(math.pi)
    inverse = 1 / np.maximum(x, 1.0) ** 2
    terms = 1 + inverse * (0.5 + inverse * (0.75 + inverse * (1.875 + inverse * 6.5625)))
    return np.where(x < 8, series, terms / (2 * np.maximum(x, 1.0)))


def _integral(x: np.ndarray) -> np.ndarray:
    """Return 2 ∫₀ˣ D(u) du: Rybicki's series integrated, or the asymptotic one from 8 on."""
    erf = np.vectorize(math.erf)
    odd = np.arange(1, 81, 2)[:, None]
    series = ((erf(x - 0.2 * odd) - erf(x + 0.2 * odd) + 2 * erf(0.2 * odd)) / odd).sum(0)
    inverse = 1 / np.maximum(x, 1.0) ** 2
    tail = inverse * (0.25 + inverse * (3 / 16 + inverse * (5 / 16 + inverse * 105 / 128)))
    return np.where(x < 8, series, np.log(np.maximum(x, 1.0)) + _CONSTANT - tail)
