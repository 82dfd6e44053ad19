"""Sums of powers over many draws, from sums over the noise alone.

Where a weight is a sum of products, w = Σₛ ηₛ(parameters) · Tₛ(noise), the multinomial theorem
parts the two: Σᵢ wᵢᵏ = Σₐ cₐ Πₛ ηₛ^aₛ · [Σᵢ Πₛ Tₛ(noiseᵢ)^aₛ] over the exponents a with |a| = k.
What is in brackets needs no graph, so the graph of the sum does not grow with the number of draws.

Reference: Nazarovs, Mehta, Lokhande, Singh (2021), "Graph reparameterizations for enabling 1000+
Monte Carlo iterations in Bayesian deep neural networks", Theorems 1 and 2, as the tuple (G, n, t).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class ParameterizationTuple:
    """The split of Σᵢ wᵢᵏ into what depends on parameters and what depends on noise.

    Attributes:
        exponents: n, the exponents of each product.
        coefficients: How often each product occurs, a multinomial coefficient.
    """

    exponents: tuple[tuple[int, ...], ...]
    coefficients: tuple[int, ...]

    @property
    def size(self) -> int:
        """d_P, the number of products: of numbers kept of the noise, and of nodes in the graph."""
        return len(self.exponents)

    def of_parameters(self, factors: Sequence[Tensor]) -> list[Tensor]:
        """Return G, the products of the ηₛ, each with its coefficient."""
        return [
            count * _product(factors, powers)
            for count, powers in zip(self.coefficients, self.exponents, strict=True)
        ]

    @torch.no_grad()
    def of_noise(self, factors: Sequence[Tensor]) -> list[Tensor]:
        """Return t, the sums over the first axis (the draws) of the products of the Tₛ."""
        return [_product(factors, powers).sum(0) for powers in self.exponents]

    def total(self, of_parameters: Sequence[Tensor], of_noise: Sequence[Tensor]) -> Tensor:
        """Return Σᵢ wᵢᵏ."""
        return torch.stack(
            torch.broadcast_tensors(
                *(left * right for left, right in zip(of_parameters, of_noise, strict=True))
            )
        ).sum(0)


def parameterization_tuple(num_terms: int, degree: int) -> ParameterizationTuple:
    """Return the split of a sum of powers of a weight of `num_terms` products.

    Args:
        num_terms: How many products a weight is a sum of: 2 for mean + std · noise.
        degree: The power k. A polynomial takes one tuple for each of its powers, together
            `num_statistics(num_terms, degree)` products.
    """
    for name, value in (("num_terms", num_terms), ("degree", degree)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{name} must be a whole number >= 1, got {value!r}")
    exponents = tuple(
        powers
        for powers in itertools.product(range(degree, -1, -1), repeat=num_terms)
        if sum(powers) == degree
    )
    counts = (math.factorial(degree) // math.prod(map(math.factorial, n)) for n in exponents)
    return ParameterizationTuple(exponents, tuple(counts))


def num_statistics(num_terms: int, degree: int) -> int:
    """Return how many sums of noise a polynomial of this degree needs: C(K + S, S) − 1."""
    return math.comb(degree + num_terms, num_terms) - 1


def _product(factors: Sequence[Tensor], powers: Sequence[int]) -> Tensor:
    used = [factor**power for factor, power in zip(factors, powers, strict=True) if power]
    return math.prod(used[1:], start=used[0])
