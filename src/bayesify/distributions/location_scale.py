"""Families and priors of the form mean + std · noise, with a noise of mean 0 and variance 1.

Standard noise makes `std` the standard deviation in every one of them, whatever the scale in its
textbook formula: what starts, prunes and sums up a posterior needs no table of factors.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bayesify.distributions.family import Averaged, Family, Parameters, Prior
from bayesify.distributions.parameterization_tuple import parameterization_tuple
from bayesify.distributions.precision import at_least_float32
from bayesify.distributions.scale import inverse_softplus, log_softplus, softplus
from bayesify.distributions.statistic import Linear, Power, Statistic


@dataclass(frozen=True)
class NoisePower:
    """noise^power, at any real power."""

    power: float

    def __call__(self, noise: Tensor) -> Tensor:
        """Return noise^power."""
        if self.power == 1:
            return noise
        return noise.square() if self.power == 2 else noise**self.power


class LocationScale(Family):
    """Independent mean + std · noise, std = softplus(rho). A subclass describes the noise."""

    parameter_names: ClassVar[tuple[str, ...]] = ("mean", "rho")

    @abstractmethod
    def standard_noise(self, like: Tensor) -> Tensor:
        """Draw noise of mean 0 and variance 1, shaped like a tensor and of its type."""

    @abstractmethod
    def noise_log_prob(self, noise: Tensor) -> Tensor:
        """Return the log density of the noise."""

    def noise_entropy(self) -> float | None:
        """Return the entropy of one noise, None where no closed form is known."""
        return None

    def noise_moment(self, power: int) -> float | None:
        """Return E[noise^power], None where it is not known; 0, 0 + 1 and 1 for a start."""
        return {0: 1.0, 1: 0.0, 2: 1.0}.get(power)

    def expected_distance(self, offset: Tensor, std: Tensor) -> Tensor | None:
        """Return E|offset + std · noise|, None where no closed form is known."""
        del offset, std
        return None

    def initial(self, tensor: Tensor, std: Tensor) -> dict[str, Tensor]:
        """Return mean = tensor and the rho of std."""
        return {"mean": tensor, "rho": inverse_softplus(at_least_float32(std)).to(std.dtype)}

    def deviation(self, parameters: Parameters) -> Tensor:
        """Return std · noise, drawn in float32 or better.

        In bfloat16 the noise of a small std would be rounded to a grid of 2⁻⁸ of itself.
        """
        return softplus(at_least_float32(parameters["rho"])) * self.noise(parameters)

    def noise(self, parameters: Parameters) -> Tensor:
        """Draw one noise per entry, in float32 or better."""
        rho = parameters["rho"]
        return self.standard_noise(parameters["mean"].detach().to(at_least_float32(rho).dtype))

    def mean(self, parameters: Parameters) -> Tensor:
        """Return the mean."""
        return parameters["mean"]

    def variance(self, parameters: Parameters) -> Tensor:
        """Return std²."""
        return softplus(at_least_float32(parameters["rho"])).square()

    def log_prob(self, parameters: Parameters, value: Tensor) -> Tensor:
        """Return log density((w − mean) / std) − log std."""
        mean, rho = _precise(parameters)
        # As little as keeps its inverse, times any noise, in range.
        std = softplus(rho).clamp_min(1e6 * torch.finfo(rho.dtype).tiny)
        return self.noise_log_prob((value - mean) / std) - log_softplus(rho)

    def entropy(self, parameters: Parameters) -> Tensor | None:
        """Return Σ log std + entropy of the noise."""
        each = self.noise_entropy()
        if each is None:
            return None
        return sum_of_log_std(parameters) + parameters["mean"].numel() * each

    def expected(self, statistic: Statistic, parameters: Parameters) -> Tensor | None:
        """Return the average of w, of |w − c|, or of an even power of w − c."""
        mean, rho = _precise(parameters)
        if isinstance(statistic, Linear):
            return mean
        if not isinstance(statistic, Power):
            return None
        offset, std = mean - statistic.centre, softplus(rho)
        if statistic.exponent == 1:
            return self.expected_distance(offset, std)
        if not statistic.is_polynomial:
            return None
        moments = [self.noise_moment(power) for power in range(int(statistic.exponent) + 1)]
        if None in moments:
            return None
        return _of_power(int(statistic.exponent), offset, std, moments)  # pyright: ignore[reportArgumentType]

    def averaged(self, statistic: Statistic | None) -> Averaged | None:
        """Cover the log density, w, and even powers of w − c: polynomials in mean and std."""
        if statistic is None:
            return Averaged((self.noise_log_prob,), _sampled_log_density)
        if isinstance(statistic, Linear):
            return Averaged((NoisePower(1),), _sampled_value)
        if not (isinstance(statistic, Power) and statistic.is_polynomial):
            return None
        degree, centre = int(statistic.exponent), statistic.centre

        def assemble(parameters: Parameters, averages: Sequence[Tensor]) -> Tensor:
            mean, rho = _precise(parameters)
            return _of_power(degree, mean - centre, softplus(rho), [1.0, *averages])

        return Averaged(tuple(map(NoisePower, range(1, degree + 1))), assemble)


def sum_of_log_std(parameters: Parameters) -> Tensor:
    """Return Σ log std; a std that entries share counts once for each of them."""
    mean, rho = parameters["mean"], at_least_float32(parameters["rho"])
    return log_softplus(rho).sum() * (mean.numel() / max(rho.numel(), 1))


def bounded_below(scale: Tensor, least: Tensor) -> Tensor:
    """Return a scale that another number over it, and its derivatives, stay finite for.

    Args:
        scale: May be 0.
        least: What it counts as where it is less: a share of that number, at which what is
            wanted of the quotient has reached its limit.
    """
    return torch.maximum(scale, least.clamp_min(torch.finfo(scale.dtype).tiny))


def _precise(parameters: Parameters) -> tuple[Tensor, Tensor]:
    return at_least_float32(parameters["mean"]), at_least_float32(parameters["rho"])


def _of_power(
    degree: int, offset: Tensor, std: Tensor, moments: Sequence[float | Tensor]
) -> Tensor:
    """Return the average of (offset + std · noise)^degree from the averages of noise^0, ^1, ..."""
    split = parameterization_tuple(2, degree)
    products = split.of_parameters((offset, std))
    kept = [
        product * moments[powers[1]]
        for product, powers in zip(products, split.exponents, strict=True)
        if not (isinstance(moments[powers[1]], float) and moments[powers[1]] == 0)
    ]
    return sum(kept[1:], start=kept[0])


def _sampled_log_density(parameters: Parameters, averages: Sequence[Tensor]) -> Tensor:
    return averages[0].sum() - sum_of_log_std(parameters)


def _sampled_value(parameters: Parameters, averages: Sequence[Tensor]) -> Tensor:
    mean, rho = _precise(parameters)
    return mean + softplus(rho) * averages[0]


@dataclass(frozen=True)
class LocationScalePrior(Prior):
    """mean + std · noise on every entry. A subclass names the family whose noise it is."""

    positive: ClassVar[tuple[str, ...]] = ("std",)

    mean: float = 0.0
    std: float = 1.0

    @abstractmethod
    def of_noise(self) -> LocationScale:
        """Return the family with this noise."""

    def log_prob(self, value: Tensor) -> Tensor:
        """Return log density((w − mean) / std) − log std."""
        standardised = (at_least_float32(value) - self.mean) / self.std
        return self.of_noise().noise_log_prob(standardised) - math.log(self.std)
