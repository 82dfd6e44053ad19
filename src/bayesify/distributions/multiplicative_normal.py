"""Multiplicative Gaussian noise: w = mean · (1 + √alpha · noise), alpha at most 1.

Beyond alpha = 1 the published fit of the KL falls without bound, so training that does not bound
alpha is rewarded for infinite noise. Here alpha = sigmoid(logit_alpha), below 1 by construction.

Reference: Kingma, Salimans, Welling (2015).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from bayesify.distributions.estimator import closed
from bayesify.distributions.family import Family, Parameters, families
from bayesify.distributions.half_line import log_size
from bayesify.distributions.log_uniform import LogUniformPrior, multiplicative_kl
from bayesify.distributions.log_uniform_fits import kingma_fit, molchanov_fit
from bayesify.distributions.precision import at_least_float32

_LARGEST_START = 0.5


@families.register("multiplicative_normal")
@dataclass(frozen=True)
class MultiplicativeNormal(Family):
    """Independent N(mean, alpha · mean²) with alpha = sigmoid(logit_alpha)."""

    name: ClassVar[str] = "multiplicative_normal"
    parameter_names: ClassVar[tuple[str, ...]] = ("mean", "logit_alpha")
    is_gaussian: ClassVar[bool] = True

    def initial(self, tensor: Tensor, std: Tensor) -> dict[str, Tensor]:
        """Return alpha = (std / mean)², at most ½; entries that share a scale share their mean."""
        size = tensor.square()
        for axis, count in enumerate(std.shape):
            if count != tensor.shape[axis]:
                size = size.mean(axis, keepdim=True)
        alpha = (std.square() / size.clamp_min(1e-30)).clamp(1e-12, _LARGEST_START)
        return {"mean": tensor, "logit_alpha": torch.logit(alpha)}

    def deviation(self, parameters: Parameters) -> Tensor:
        """Return mean · √alpha · noise, drawn in float32 or better."""
        mean, logit = (at_least_float32(parameters[name]) for name in self.parameter_names)
        return mean * torch.exp(0.5 * F.logsigmoid(logit)) * torch.randn_like(mean)

    def mean(self, parameters: Parameters) -> Tensor:
        """Return the mean."""
        return parameters["mean"]

    def variance(self, parameters: Parameters) -> Tensor:
        """Return alpha · mean²."""
        mean, logit = (at_least_float32(parameters[name]) for name in self.parameter_names)
        return torch.sigmoid(logit) * mean.square()

    def log_prob(self, parameters: Parameters, value: Tensor) -> Tensor:
        """Return the log density of N(mean, alpha · mean²)."""
        mean, logit = (at_least_float32(parameters[name]) for name in self.parameter_names)
        # A square of a small mean would be 0: only its logarithm is taken.
        log_std = 0.5 * F.logsigmoid(logit) + log_size(mean)
        noise = (value - mean) / log_std.exp().clamp_min(torch.finfo(mean.dtype).tiny)
        return -0.5 * (noise.square() + math.log(2 * math.pi)) - log_std


@closed.register(MultiplicativeNormal, LogUniformPrior)
def multiplicative_from_log_uniform(
    family: MultiplicativeNormal,
    parameters: Parameters,
    prior: LogUniformPrior,
    num_samples: int = 0,
) -> Tensor:
    """Return the KL, a function of alpha alone."""
    del family, num_samples
    logit = at_least_float32(parameters["logit_alpha"])
    if prior.kl == "exact":
        total = multiplicative_kl(logit)
    else:
        fit = molchanov_fit if prior.kl == "molchanov" else kingma_fit
        total = fit(F.logsigmoid(logit)).sum()
    return total * (parameters["mean"].numel() / max(logit.numel(), 1))
