"""The Radial family: a direction and a radius for a whole tensor, in place of noise per weight.

mean + std · √D · radius · direction, the direction uniform on the unit sphere of the tensor's D
entries, the radius |N(0, 1)|. Its noise is no longer than one Normal number, where that of D
independent weights is √D long: a sampled network stays where its mean is, however wide.

`std` is the standard deviation of a weight. The scale σ of the published form is std · √D, so that
its KL, least at σ = prior std · √D, is least here at std = prior std.

Reference: Farquhar, Osborne, Gal (2020), "Radial Bayesian neural networks".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from bayesify.distributions.estimator import closed
from bayesify.distributions.family import Family, Parameters, families, priors
from bayesify.distributions.location_scale import LocationScale, LocationScalePrior, sum_of_log_std
from bayesify.distributions.normal import Normal, NormalPrior, normal_from_normal
from bayesify.distributions.precision import at_least_float32
from bayesify.distributions.scale import softplus
from bayesify.distributions.special import EULER


@families.register("radial")
@dataclass(frozen=True)
class Radial(LocationScale):
    """mean + std · √D · |N(0, 1)| · direction, with std = softplus(rho).

    Args:
        sizes: Sizes of several tensors laid end to end, each with a direction of its own; None
            for one tensor.
    """

    name: ClassVar[str] = "radial"
    is_elementwise: ClassVar[bool] = False
    has_exponential_moments: ClassVar[bool] = True

    sizes: tuple[int, ...] | None = None

    def joined(self, sizes: tuple[int, ...]) -> Family:
        """Return the family of several tensors, each with a direction of its own."""
        return Radial(sizes)

    def standard_noise(self, like: Tensor) -> Tensor:
        """Draw √D · radius · direction."""
        noise = torch.randn_like(like)
        least = torch.finfo(like.dtype).tiny
        if self.sizes is None:
            radius = torch.randn((), dtype=like.dtype, device=like.device).abs()
            norm = torch.linalg.vector_norm(noise).clamp_min(least)
            return noise * (radius * math.sqrt(like.numel()) / norm)
        # All tensors at once: a few kernels, not a few for each.
        roots = _constants(self.sizes, like.device)[1]
        norms = _norms(noise, self.sizes)
        radii = torch.randn_like(norms).abs_()
        factors = radii.mul_(roots.to(norms.dtype)).div_(norms.clamp_min_(least))
        return noise.mul_(factors.index_select(0, _tensor_of_entry(self.sizes, like.device)))

    def noise_log_prob(self, noise: Tensor) -> Tensor:
        """Return the log density of each tensor's entries together, in float64.

        The density of the radius, over the sphere of that radius. Times D a rounding error of
        float32 in the logarithm would be larger than the rest.
        """
        sizes = self.sizes or (noise.numel(),)
        counts, roots, constants = _constants(sizes, noise.device)
        radii = (_norms(noise, sizes).double() / roots).clamp_min(torch.finfo(noise.dtype).tiny)
        return constants - 0.5 * radii.square() - (counts - 1) * radii.log()

    def log_prob(self, parameters: Parameters, value: Tensor) -> Tensor:
        """Return the log density of all entries together, a single number."""
        std = softplus(at_least_float32(parameters["rho"]))
        std = std.clamp_min(torch.finfo(std.dtype).tiny)
        standardised = (value - parameters["mean"]) / std
        return self.noise_log_prob(standardised).sum() - sum_of_log_std(parameters)

    def entropy(self, parameters: Parameters) -> Tensor:
        """Return Σ log std + the entropy of the noise of each tensor."""
        sizes = (parameters["mean"].numel(),) if self.sizes is None else self.sizes
        return sum_of_log_std(parameters) + math.fsum(map(radial_entropy, sizes))


def radial_entropy(size: int) -> float:
    """Return the entropy of the noise of a tensor of this size, in float64.

    At D = 10⁶ its parts are seven digits larger than what a weight's share is worth.
    """
    if size == 0:
        return 0.0
    of_radius = 0.5 - 0.5 * math.log(2 / math.pi)
    return (
        of_radius
        + _log_area(size)
        - 0.5 * (size - 1) * (EULER + math.log(2))
        + 0.5 * size * math.log(size)
    )


def _norms(noise: Tensor, sizes: tuple[int, ...]) -> Tensor:
    if len(sizes) == 1:
        return torch.linalg.vector_norm(noise).reshape(1)
    parts = list(noise.split(sizes))
    return torch.stack(torch._foreach_norm(parts))  # pyright: ignore[reportPrivateImportUsage]


@lru_cache(maxsize=32)
@torch.inference_mode(False)  # what is kept must serve training too
def _constants(sizes: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Return the sizes, their roots, and what does not depend on the noise in its log density."""
    constants = [
        0.5 * math.log(2 / math.pi) - _log_area(size) - 0.5 * size * math.log(max(size, 1))
        for size in sizes
    ]
    counts = torch.tensor(sizes, device=device)
    roots = counts.double().sqrt().clamp_min(1.0)
    return counts, roots, torch.tensor(constants, dtype=torch.float64, device=device)


@lru_cache(maxsize=4)
@torch.inference_mode(False)
def _tensor_of_entry(sizes: tuple[int, ...], device: torch.device) -> Tensor:
    """Return which tensor each entry belongs to; kept, because to expand it takes a millisecond."""
    counts = torch.tensor(sizes)
    places = torch.arange(len(sizes), dtype=torch.int32).repeat_interleave(counts)
    return places.to(device)


def _log_area(size: int) -> float:
    """Return the logarithm of the area of the unit sphere in so many dimensions."""
    return math.log(2) + 0.5 * size * math.log(math.pi) - math.lgamma(0.5 * max(size, 1))


@priors.register("radial")
@dataclass(frozen=True)
class RadialPrior(LocationScalePrior):
    """mean + std · √D · radius · direction, for all entries of a tensor together."""

    name: ClassVar[str] = "radial"
    is_elementwise: ClassVar[bool] = False

    def of_noise(self) -> Radial:
        """Return the Radial family of one tensor."""
        return Radial()

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density of all entries together, a single number."""
        standardised = (value - self.mean) / self.std
        return self.of_noise().noise_log_prob(standardised).sum() - value.numel() * math.log(
            self.std
        )

    def moments_needed(self) -> tuple[float, ...]:
        """Return 2: its log density falls with the square of the radius."""
        return (2.0,)


@closed.register(Radial, NormalPrior)
def radial_from_normal(
    family: Radial, parameters: Parameters, prior: NormalPrior, num_samples: int = 0
) -> Tensor:
    """Return the KL of the Normal with the same means and variances, plus what it lacks in entropy.

    A Normal prior sees means and variances only.
    """
    del num_samples
    sizes: Sequence[int] = family.sizes or (parameters["mean"].numel(),)
    each = Normal().noise_entropy()
    lacking = math.fsum(size * each - radial_entropy(size) for size in sizes)
    return normal_from_normal(Normal(), parameters, prior) + lacking
