"""The inverse gamma family and prior of a weight's size: heavy above, nothing near 0."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bayesify.distributions.family import Parameters, Prior, Support, families, priors
from bayesify.distributions.gamma import above_least, check_least_shape
from bayesify.distributions.half_line import (
    HalfLine,
    at_least,
    log_size,
    on_a_side,
    shared_size,
)
from bayesify.distributions.precision import at_least_float32
from bayesify.distributions.scale import inverse_softplus, softplus
from bayesify.distributions.special import standard_gamma
from bayesify.distributions.statistic import Log, Power, Terms

_LEAST_START, _LARGEST_START = 0.05, 1e6


@families.register("inverse_gamma")
@dataclass(frozen=True)
class InverseGamma(HalfLine):
    """Independent inverse gamma sizes of shape least_shape + softplus(rho).

    std = |mean| / √(shape − 2).

    Args:
        least_shape: What the shape stays above; from 2 on there is a variance. Priors that need
            the mean of |w|^k take a least shape of k or more.
    """

    name: ClassVar[str] = "inverse_gamma"
    parameter_names: ClassVar[tuple[str, ...]] = ("mean", "rho")

    least_shape: float = 2.0

    def __post_init__(self) -> None:
        check_least_shape(self.least_shape, 2.0)

    def initial(self, tensor: Tensor, std: Tensor) -> dict[str, Tensor]:
        """Return mean = tensor and the shape of std; a weight of exactly 0 starts at std."""
        mean = on_a_side(tensor, std)
        shape = 2.0 + (shared_size(mean, std) / at_least_float32(std)).square()
        excess = (shape - self.least_shape).clamp(_LEAST_START, _LARGEST_START)
        return {"mean": mean, "rho": inverse_softplus(excess).to(std.dtype)}

    def deviation(self, parameters: Parameters) -> Tensor:
        """Return mean · ((shape − 1) / gamma − 1), drawn in float32 or better."""
        mean, shape = self._mean_and_shape(parameters)
        return mean * ((shape - 1.0) / standard_gamma(shape.expand_as(mean)) - 1.0)

    def draw(self, parameters: Parameters) -> Tensor:
        """Return mean · (shape − 1) / gamma, never 0."""
        mean, shape = self._mean_and_shape(parameters)
        return at_least(mean * ((shape - 1.0) / standard_gamma(shape.expand_as(mean))))

    def variance(self, parameters: Parameters) -> Tensor:
        """Return mean² / (shape − 2)."""
        mean, shape = self._mean_and_shape(parameters)
        return mean.square() / (shape - 2.0)

    def log_prob(self, parameters: Parameters, value: Tensor) -> Tensor:
        """Return k log θ − log Γ(k) − (k + 1) log |w| − θ / |w|; −inf on the other side of 0."""
        mean, shape = self._mean_and_shape(parameters)
        inside = value / mean > 0
        size = torch.where(inside, value, torch.ones_like(value)).abs()
        scale = mean.abs() * (shape - 1.0)
        density = shape * scale.log() - (shape + 1) * size.log() - scale / size
        return torch.where(inside, density - torch.lgamma(shape), -math.inf)

    def entropy(self, parameters: Parameters) -> Tensor:
        """Return Σ k + log θ + log Γ(k) − (1 + k) ψ(k)."""
        mean, shape = self._mean_and_shape(parameters)
        # Large terms that cancel, as in a gamma law.
        k = shape.double()
        of_shape = k + (k - 1).log() + torch.lgamma(k) - (1 + k) * torch.special.digamma(k)
        return (log_size(mean) + of_shape.to(mean.dtype)).sum()

    def mean_of_power(self, parameters: Parameters, power: float) -> Tensor:
        """Return θ^power Γ(k − power) / Γ(k)."""
        mean, shape = self._mean_and_shape(parameters)
        k = shape.double()
        ratio = torch.lgamma(k - power) - torch.lgamma(k) + power * (k - 1).log()
        return torch.exp(power * log_size(mean) + ratio.to(mean.dtype))

    def moments_of_log(self, parameters: Parameters) -> tuple[Tensor, Tensor]:
        """Return log θ − ψ(k) and ψ′(k)."""
        mean, shape = self._mean_and_shape(parameters)
        location = log_size(mean) + (shape - 1.0).log() - torch.special.digamma(shape)
        return location, torch.special.polygamma(1, shape)

    def has_moment(self, power: float) -> bool:
        """Whether the shape stays above the power."""
        return power <= self.least_shape

    def _mean_and_shape(self, parameters: Parameters) -> tuple[Tensor, Tensor]:
        mean, rho = at_least_float32(parameters["mean"]), at_least_float32(parameters["rho"])
        return mean, above_least(self.least_shape, softplus(rho))


@priors.register("inverse_gamma")
@dataclass(frozen=True)
class InverseGammaPrior(Prior):
    """Inverse gamma sizes of this shape and scale."""

    name: ClassVar[str] = "inverse_gamma"
    support: ClassVar[Support] = "half line"
    positive: ClassVar[tuple[str, ...]] = ("shape", "scale")

    shape: float = 1.0
    scale: float = 1.0

    def terms(self) -> tuple[float, Terms]:
        """Return a log b − log Γ(a) − (a + 1) log |w| − b / |w|."""
        constant = self.shape * math.log(self.scale) - math.lgamma(self.shape)
        return constant, ((-(self.shape + 1.0), Log()), (-self.scale, Power(-1.0)))
