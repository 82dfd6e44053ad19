"""The Student-t family and prior: tails that fall as a power."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bayesify.distributions.family import families, is_finite_number, priors
from bayesify.distributions.location_scale import LocationScale, LocationScalePrior
from bayesify.distributions.special import digamma, standard_gamma


@families.register("student_t")
@dataclass(frozen=True)
class StudentT(LocationScale):
    """Independent Student-t with std = softplus(rho).

    Args:
        degrees: Degrees of freedom, above 2: with fewer there is no variance.
    """

    name: ClassVar[str] = "student_t"

    degrees: float = 4.0

    def __post_init__(self) -> None:
        if not (is_finite_number(self.degrees) and self.degrees > 2):
            raise ValueError(f"degrees must be finite and above 2, got {self.degrees!r}")

    def standard_noise(self, like: Tensor) -> Tensor:
        """Draw a Normal number over the root of a chi-square one."""
        half = torch.full_like(like, 0.5 * self.degrees)
        chi_square = standard_gamma(half) * 2
        return torch.randn_like(like) * torch.sqrt((self.degrees - 2) / chi_square)

    def noise_log_prob(self, noise: Tensor) -> Tensor:
        """Return the log density of a Student-t of variance 1."""
        degrees = self.degrees
        constant = (
            math.lgamma(0.5 * (degrees + 1))
            - math.lgamma(0.5 * degrees)
            - 0.5 * math.log(math.pi * (degrees - 2))
        )
        return constant - 0.5 * (degrees + 1) * torch.log1p(noise.square() / (degrees - 2))

    def noise_entropy(self) -> float:
        """Return the entropy of a Student-t of variance 1."""
        half, more = 0.5 * self.degrees, 0.5 * (self.degrees + 1)
        log_beta = math.lgamma(0.5) + math.lgamma(half) - math.lgamma(more)
        return more * (digamma(more) - digamma(half)) + 0.5 * math.log(self.degrees - 2) + log_beta

    def has_moment(self, power: float) -> bool:
        """Whether the power lies above −1 and below the degrees of freedom."""
        return -1 < power < self.degrees


@priors.register("student_t")
@dataclass(frozen=True)
class StudentTPrior(LocationScalePrior):
    """Student-t with this mean, standard deviation and degrees of freedom on every entry."""

    name: ClassVar[str] = "student_t"

    degrees: float = 4.0

    def of_noise(self) -> StudentT:
        """Return the Student-t family of these degrees of freedom."""
        return StudentT(self.degrees)

    def problem(self) -> str | None:
        """Say when there are too few degrees of freedom for a standard deviation."""
        problem = super().problem()
        if problem is None and self.degrees <= 2:
            return f"the prior's degrees must be finite and above 2, got {self.degrees}"
        return problem
