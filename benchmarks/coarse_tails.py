"""Fit the polynomials by which moments do without an error function in half precision.

    python benchmarks/coarse_tails.py        # seconds; prints what `gaussian_functions.py` holds

With u = 1 / (1 + 0.45 x) the two ratios are u p(u) and u^2 q(u) for polynomials p and q of six
terms, fitted so that the largest relative error is least.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import erfcx

STEP, NUM_TERMS = 0.45, 6
Values = NDArray[np.float64]


def fitted(u: Values, target: Values, power: int) -> tuple[Values, float]:
    """Return the coefficients of target / u^power and their largest relative error."""
    terms = np.stack([u ** (k + power) for k in range(NUM_TERMS)], 1) / target[:, None]
    weights = np.ones(len(u))
    # Weights move to where the error is largest, until it is the same at every peak.
    for _ in range(200):
        found = np.linalg.lstsq(terms * weights[:, None], weights, rcond=None)[0]
        error = np.abs(terms @ found - 1.0)
        weights *= (error / error.max() + 1e-3) ** 0.3
        weights /= weights.mean()
    return found, float(error.max())


def main() -> None:
    x = np.concatenate([np.linspace(0, 6, 4001), np.geomspace(6, 60, 800)])
    u = 1.0 / (1.0 + STEP * x)
    tail = math.sqrt(math.pi / 2) * erfcx(x / math.sqrt(2))
    # 1 - x tail loses its digits far out, where a series has them.
    y = np.maximum(x, 8.0) ** -2
    excess = np.where(x > 8.0, y - 3 * y**2 + 15 * y**3 - 105 * y**4, 1.0 - x * tail)
    for name, target, power in (("tail", tail, 1), ("excess", excess, 2)):
        found, error = fitted(u, target, power)
        print(name, found.round(9).tolist(), f"error {error:.1e}")


if __name__ == "__main__":
    main()
