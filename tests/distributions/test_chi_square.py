"""Chi-square numbers from Normal ones: the quantile to float32, and the law itself."""

import numpy as np
import pytest
import torch
from scipy import stats

from bayesify.distributions.chi_square import chi_square, quantile_polynomial


@pytest.mark.parametrize("degrees", [200, 999, 9_999, 10**6])
def test_the_polynomial_is_the_quantile_to_what_float32_resolves(degrees: int) -> None:
    z = np.linspace(-6.5, 6.5, 261)
    # The upper tail by its own function: 1 − p would lose it.
    exact = np.where(
        z < 0,
        stats.chi2.ppf(stats.norm.cdf(z), degrees),
        stats.chi2.isf(stats.norm.sf(z), degrees),
    )
    found = np.polynomial.polynomial.polyval(z, quantile_polynomial(degrees))
    error = np.abs(found - exact) / np.sqrt(2 * degrees)
    assert error.max() < 3e-6
    assert error[np.abs(z) <= 5].max() < 5e-7


@pytest.mark.parametrize("degrees", [1, 9, 199, 200, 999])
@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_draws_have_the_chi_square_law(degrees: int, kind: torch.dtype) -> None:
    torch.manual_seed(degrees)
    drawn = chi_square(torch.empty(40_000, dtype=kind), degrees)
    assert drawn.dtype == kind
    assert stats.kstest(drawn.double().numpy(), stats.chi2(degrees).cdf).pvalue > 1e-3
    spread = (2 * degrees) ** 0.5
    assert abs(drawn.double().mean() - degrees) < 4 * spread / 40_000**0.5
