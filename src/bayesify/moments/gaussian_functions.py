"""Functions of the standard normal law, in forms that do not cancel in float32.

Throughout the rules m is a mean, v a variance and s a standard deviation; `phi` and `Phi` are
the density and the distribution function of the standard normal law.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

# Its root, 1e-6, divides means; a smaller one would make t = m / s overflow when squared.
LEAST_VARIANCE = 1e-12


def _hermite_rule(num_nodes: int) -> list[tuple[float, float]]:
    """Positive nodes and weights of E[f(z)], z standard normal; the negative ones mirror them."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(num_nodes)
    weights = weights / math.sqrt(2.0 * math.pi)
    return [(float(x), float(w)) for x, w in zip(nodes, weights, strict=True) if x > 0.0]


def _legendre_rule(num_nodes: int) -> list[tuple[float, float]]:
    """Nodes and weights of the integral over [0, 1]."""
    nodes, weights = np.polynomial.legendre.leggauss(num_nodes)
    return [(0.5 + 0.5 * float(x), 0.5 * float(w)) for x, w in zip(nodes, weights, strict=True)]


_HERMITE, _LEGENDRE = _hermite_rule(16), _legendre_rule(10)


def density(x: Tensor) -> Tensor:
    """Return phi(x)."""
    return torch.exp(-0.5 * x * x) * (1.0 / math.sqrt(2.0 * math.pi))


def cumulative(x: Tensor) -> Tensor:
    """Return Phi(x), with all digits in the lower tail."""
    return 0.5 * torch.erfc(x * (-1.0 / math.sqrt(2.0)))


def standard_deviation(variance: Tensor) -> Tensor:
    """Return a root that is never 0, so that its gradient is finite at a variance of 0."""
    return variance.clamp_min(LEAST_VARIANCE).sqrt()


def tail_mean(x: Tensor) -> Tensor:
    """Return E[max(z - x, 0)] = phi(x) - x Phi(-x) for z standard normal and x >= 0."""
    return (density(x) - x * cumulative(-x)).clamp_min(0.0)


def hermite_moments(
    function: Callable[[Tensor], Tensor], m: Tensor, v: Tensor
) -> tuple[Tensor, Tensor]:
    """Return mean and variance of a smooth function of a normal value, by 16 nodes.

    Both are written as v times a difference quotient, over a step that has a floor. So they are
    f(m) and 0 at v = 0, where their gradients are those of the limit, f''(m) / 2 and f'(m)^2.
    """
    # Steps below the floor would leave nothing of a difference but rounding.
    floor = 1e-5 if m.dtype == torch.float32 else 1e-9
    scale = 1.0 + m.detach().abs().clamp_max(1e15) ** 2
    step = torch.maximum(v, floor * scale).sqrt()
    centre = function(m)
    pairs = []
    drift = torch.zeros_like(m)
    for node, weight in _HERMITE:
        above = (function(m + node * step) - centre) / step
        below = (function(m - node * step) - centre) / step
        drift = drift + weight * (above + below)
        pairs.append((weight, above, below))
    ratio = torch.zeros_like(m)
    for weight, above, below in pairs:
        ratio = ratio + weight * ((above - drift) ** 2 + (below - drift) ** 2)
    return centre + v * (drift / step), v * ratio


def owen_t(h: Tensor, a: Tensor) -> Tensor:
    """Return Owen's T function of h and of a in [0, 1], by 10 nodes.

    T(h, a) = 1/(2 pi) int_0^a exp(-h^2 (1 + x^2) / 2) / (1 + x^2) dx
    """
    exponent, square = -0.5 * h * h, a * a
    slope, total = exponent * square, torch.zeros_like(h)
    for node, weight in _LEGENDRE:
        part = torch.exp(torch.add(exponent, slope, alpha=node**2))
        total = torch.addcdiv(total, part, 1.0 + node**2 * square, value=weight)
    return total * a * (0.5 / math.pi)


# Minimax fits in u = 1 / (1 + 0.45 x), for x from 0 to 60 (`benchmarks/coarse_tails.py`).
COARSE_STEP = 0.45
TAIL_OVER_BELL = (0.449868354, 0.454723911, 0.307758447, 0.407015032, -0.506205099, 0.140104276)
_EXCESS_OVER_BELL = (0.202300564, 0.412863661, 0.387770444, 0.817314155, -1.248336852, 0.428016236)


def coarse_tail(x: Tensor, bell: Tensor) -> Tensor:
    """Return Phi(-x) to within 4e-5 of itself, given x >= 0 and phi(x)."""
    u = 1.0 / (1.0 + COARSE_STEP * x)
    return bell * u * _polynomial(u, TAIL_OVER_BELL)


def coarse_tail_mean(x: Tensor, bell: Tensor) -> Tensor:
    """Return E[max(z - x, 0)] to within 1e-4 of itself, given x >= 0 and phi(x)."""
    u = 1.0 / (1.0 + COARSE_STEP * x)
    return bell * u.square() * _polynomial(u, _EXCESS_OVER_BELL)


def _polynomial(u: Tensor, coefficients: tuple[float, ...]) -> Tensor:
    result = u * coefficients[-1] + coefficients[-2]
    for each in coefficients[-3::-1]:
        result = result * u + each
    return result
