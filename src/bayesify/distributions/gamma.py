"""The gamma family of a weight's size, its Erlang case, and the priors of that form."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bayesify.distributions.family import (
    Parameters,
    Prior,
    Support,
    families,
    is_finite_number,
    priors,
)
from bayesify.distributions.half_line import (
    HalfLine,
    at_least,
    log_size,
    on_a_side,
    shared_size,
)
from bayesify.distributions.precision import at_least_float32
from bayesify.distributions.scale import inverse_softplus, softplus
from bayesify.distributions.scaling import Scaling
from bayesify.distributions.special import digamma, standard_gamma, trigamma
from bayesify.distributions.statistic import Log, Power, Terms

# Far below a shape of 0.3 draws leave the range of float32: a tenth of them below 1e-38 at 0.03.
_LEAST_START, _LARGEST_START = 0.3, 1e6


@families.register("gamma")
@dataclass(frozen=True)
class Gamma(HalfLine):
    """Independent gamma sizes of shape least_shape + softplus(rho); std = |mean| / √shape.

    Draws are differentiated implicitly, so no noise of a fixed law stands behind them.

    Args:
        least_shape: What the shape stays above. Priors that need the mean of 1 / |w| take a
            least shape of 1 or more.
    """

    name: ClassVar[str] = "gamma"
    parameter_names: ClassVar[tuple[str, ...]] = ("mean", "rho")

    least_shape: float = 0.0

    def __post_init__(self) -> None:
        check_least_shape(self.least_shape, 0.0)

    def initial(self, tensor: Tensor, std: Tensor) -> dict[str, Tensor]:
        """Return mean = tensor and the shape (mean / std)², from 0.3 on: std ≤ 1.8 |mean|.

        A weight of exactly 0 starts at std.
        """
        mean = on_a_side(tensor, std)
        shape = (shared_size(mean, std) / at_least_float32(std)).square()
        excess = (shape - self.least_shape).clamp(_LEAST_START, _LARGEST_START)
        return {"mean": mean, "rho": inverse_softplus(excess).to(std.dtype)}

    def deviation(self, parameters: Parameters) -> Tensor:
        """Return mean · (gamma / shape − 1), drawn in float32 or better."""
        mean, shape = self._mean_and_shape(parameters)
        return mean * (standard_gamma(shape.expand_as(mean)) / shape - 1.0)

    def draw(self, parameters: Parameters) -> Tensor:
        """Return mean · gamma / shape, never 0."""
        mean, shape = self._mean_and_shape(parameters)
        return at_least(mean * (standard_gamma(shape.expand_as(mean)) / shape))

    def variance(self, parameters: Parameters) -> Tensor:
        """Return mean² / shape."""
        mean, shape = self._mean_and_shape(parameters)
        return mean.square() / shape

    def log_prob(self, parameters: Parameters, value: Tensor) -> Tensor:
        """Return −log Γ(k) − k log θ + (k − 1) log |w| − |w| / θ; −inf on the other side of 0."""
        mean, shape = self._mean_and_shape(parameters)
        inside = value / mean > 0
        size = torch.where(inside, value, torch.ones_like(value)).abs()
        scale = mean.abs() / shape
        density = (shape - 1) * size.log() - size / scale - shape * scale.log()
        return torch.where(inside, density - torch.lgamma(shape), -math.inf)

    def entropy(self, parameters: Parameters) -> Tensor:
        """Return Σ k + log θ + log Γ(k) + (1 − k) ψ(k)."""
        mean, shape = self._mean_and_shape(parameters)
        # Large terms that cancel: at shape 10⁶ half a nat would be left of float32.
        k = shape.double()
        of_shape = k - k.log() + torch.lgamma(k) + (1 - k) * torch.special.digamma(k)
        return (log_size(mean) + of_shape.to(mean.dtype)).sum()

    def mean_of_power(self, parameters: Parameters, power: float) -> Tensor:
        """Return |mean|^power Γ(k + power) / Γ(k) / k^power."""
        mean, shape = self._mean_and_shape(parameters)
        return torch.exp(power * log_size(mean) + log_moment(shape, power))

    def moments_of_log(self, parameters: Parameters) -> tuple[Tensor, Tensor]:
        """Return log θ + ψ(k) and ψ′(k)."""
        mean, shape = self._mean_and_shape(parameters)
        location = log_size(mean) - shape.log() + torch.special.digamma(shape)
        return location, torch.special.polygamma(1, shape)

    def has_moment(self, power: float) -> bool:
        """Whether the shape stays above −power."""
        return power >= -self.least_shape

    def _mean_and_shape(self, parameters: Parameters) -> tuple[Tensor, Tensor]:
        mean, rho = at_least_float32(parameters["mean"]), at_least_float32(parameters["rho"])
        return mean, above_least(self.least_shape, softplus(rho))


@families.register("erlang")
@dataclass(frozen=True)
class Erlang(Scaling):
    """Independent sums of `shape` exponential numbers; std = |mean| / √shape.

    Args:
        shape: How many exponential numbers a size is the sum of.
    """

    name: ClassVar[str] = "erlang"

    shape: int = 4

    def __post_init__(self) -> None:
        if not isinstance(self.shape, int) or isinstance(self.shape, bool) or self.shape < 1:
            raise ValueError(f"shape must be a whole number >= 1, got {self.shape!r}")

    def standard_noise(self, like: Tensor) -> Tensor:
        """Draw a gamma number of this shape, over the shape."""
        return standard_gamma(torch.full_like(like, float(self.shape))) / self.shape

    def noise_log_prob(self, noise: Tensor) -> Tensor:
        """Return k log k − log Γ(k) + (k − 1) log noise − k noise."""
        shape = self.shape
        constant = shape * math.log(shape) - math.lgamma(shape)
        return constant + (shape - 1) * noise.log() - shape * noise

    def noise_entropy(self) -> float:
        """Return k − log k + log Γ(k) + (1 − k) ψ(k)."""
        shape = self.shape
        return shape - math.log(shape) + math.lgamma(shape) + (1 - shape) * digamma(shape)

    def noise_moment(self, power: float) -> float:
        """Return Γ(k + power) / Γ(k) / k^power."""
        shape = self.shape
        return math.exp(math.lgamma(shape + power) - math.lgamma(shape)) / shape**power

    def noise_log_moments(self) -> tuple[float, float]:
        """Return ψ(k) − log k and ψ′(k)."""
        return digamma(self.shape) - math.log(self.shape), trigamma(self.shape)

    def has_moment(self, power: float) -> bool:
        """Whether the shape lies above −power."""
        return power > -self.shape


@priors.register("gamma")
@dataclass(frozen=True)
class GammaPrior(Prior):
    """Gamma sizes of this shape and rate."""

    name: ClassVar[str] = "gamma"
    support: ClassVar[Support] = "half line"
    positive: ClassVar[tuple[str, ...]] = ("shape", "rate")

    shape: float = 1.0
    rate: float = 1.0

    def terms(self) -> tuple[float, Terms]:
        """Return a log b − log Γ(a) + (a − 1) log |w| − b |w|."""
        constant = self.shape * math.log(self.rate) - math.lgamma(self.shape)
        return constant, ((self.shape - 1.0, Log()), (-self.rate, Power(1.0)))


@priors.register("erlang")
@dataclass(frozen=True)
class ErlangPrior(GammaPrior):
    """Gamma sizes of a whole shape."""

    name: ClassVar[str] = "erlang"

    shape: int = 1

    def problem(self) -> str | None:
        """Say when the shape is no whole number."""
        problem = super().problem()
        if problem is None and self.shape != int(self.shape):
            return f"the prior's shape must be a whole number, got {self.shape}"
        return problem


@priors.register("chi_squared")
@dataclass(frozen=True)
class ChiSquaredPrior(Prior):
    """Sizes that are sums of so many squared Normal numbers."""

    name: ClassVar[str] = "chi_squared"
    support: ClassVar[Support] = "half line"
    positive: ClassVar[tuple[str, ...]] = ("degrees",)

    degrees: float = 1.0

    def terms(self) -> tuple[float, Terms]:
        """Return the terms of a gamma prior of shape degrees / 2 and rate ½."""
        return GammaPrior(self.degrees / 2, 0.5).terms()


def log_moment(shape: Tensor, power: float) -> Tensor:
    """Return log E[x^power] of a gamma number of mean 1, in float64 where terms cancel."""
    k = shape.double()
    return (torch.lgamma(k + power) - torch.lgamma(k) - power * k.log()).to(shape.dtype)


def above_least(least: float, excess: Tensor) -> Tensor:
    """Return least + excess, above the least by more than rounding: at it moments are infinite."""
    return least + excess.clamp_min(1e-6 * least or torch.finfo(excess.dtype).tiny)


def check_least_shape(value: float, least: float) -> None:
    """Raise unless a family's least shape is a finite number from `least` on."""
    if not (is_finite_number(value) and value >= least):
        raise ValueError(f"least_shape must be finite and >= {least:g}, got {value!r}")
