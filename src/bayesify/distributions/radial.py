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
from typing import ClassVar

import torch
from torch import Tensor

from bayesify.distributions.estimator import closed
from bayesify.distributions.family import Family, Parameters, families, priors
from bayesify.distributions.location_scale import LocationScale, LocationScalePrior, sum_of_log_std
from bayesify.distributions.normal import Normal, NormalPrior, normal_from_normal

_EULER = 0.5772156649015329


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
        if self.sizes is None:
            radius = torch.randn((), dtype=like.dtype, device=like.device).abs()
            norm = torch.linalg.vector_norm(noise).clamp_min(torch.finfo(like.dtype).tiny)
            return noise * (radius * math.sqrt(like.numel()) / norm)
        parts = list(noise.split(self.sizes))
        norms = torch.stack(torch._foreach_norm(parts))  # pyright: ignore[reportPrivateImportUsage]
        roots = norms.new_tensor(self.sizes).sqrt_()
        radii = torch.randn_like(norms).abs_()
        factors = radii.mul_(roots).div_(norms.clamp_min_(torch.finfo(like.dtype).tiny))
        counts = torch.tensor(self.sizes, device=like.device)
        return noise.mul_(factors.repeat_interleave(counts, output_size=like.numel()))

    def noise_log_prob(self, noise: Tensor) -> Tensor:
        """Return the log density of all entries together, tensor by tensor.

        The density of the radius, over the sphere of that radius.
        """
        parts = [noise] if self.sizes is None else list(noise.split(self.sizes))
        return torch.stack([_log_density(part) for part in parts])

    def log_prob(self, parameters: Parameters, value: Tensor) -> Tensor:
        """Return the log density of all entries together, a single number."""
        standardised = (value - parameters["mean"]) / self.variance(parameters).sqrt()
        return self.noise_log_prob(standardised).sum() - sum_of_log_std(parameters)

    def entropy(self, parameters: Parameters) -> Tensor:
        """Return Σ log std + the entropy of the noise of each tensor."""
        sizes = (parameters["mean"].numel(),) if self.sizes is None else self.sizes
        return sum_of_log_std(parameters) + math.fsum(map(radial_entropy, sizes))

    def noise_moment(self, power: int) -> float | None:
        """Return E[noise^power] up to the second; later ones depend on the size."""
        return super().noise_moment(power)


def radial_entropy(size: int) -> float:
    """Return the entropy of the noise of a tensor of this size, in float64.

    At D = 10⁶ its parts are seven digits larger than what a weight's share is worth.
    """
    if size == 0:
        return 0.0
    log_area = math.log(2) + 0.5 * size * math.log(math.pi) - math.lgamma(0.5 * size)
    of_radius = 0.5 - 0.5 * math.log(2 / math.pi)
    return (
        of_radius
        + log_area
        - 0.5 * (size - 1) * (_EULER + math.log(2))
        + 0.5 * size * math.log(size)
    )


def _log_density(noise: Tensor) -> Tensor:
    size = noise.numel()
    if size == 0:
        return noise.new_zeros(())
    norm = torch.linalg.vector_norm(noise).clamp_min(torch.finfo(noise.dtype).tiny)
    radius = norm / math.sqrt(size)
    log_area = math.log(2) + 0.5 * size * math.log(math.pi) - math.lgamma(0.5 * size)
    constant = 0.5 * math.log(2 / math.pi) - log_area - 0.5 * size * math.log(size)
    return constant - 0.5 * radius.square() - (size - 1) * radius.log()


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
