import math

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from scipy.special import logsumexp
from scipy.stats import norm

from bayesify.prediction import gaussian_mixture
from bayesify.prediction.gaussian_mixture import (
    mixture_cdf,
    mixture_log_density,
    mixture_quantile,
    spread_variance,
)


def mixture(*shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    means = 3 * torch.randn(*shape, generator=generator, dtype=torch.float64)
    return means, torch.rand(*shape, generator=generator, dtype=torch.float64) + 0.01


@pytest.mark.parametrize("level", [1e-9, 0.025, 0.5, 0.9, 1 - 1e-9])
def test_quantile_equals_root_of_scipy_cdf(level):
    means, variances = mixture(7, 5)
    found = mixture_quantile(level, means, variances)
    for column in range(5):
        mu, std = means[:, column].numpy(), variances[:, column].sqrt().numpy()
        exact = brentq(
            lambda y, mu=mu, std=std: norm.cdf(y, mu, std).mean() - level, -50, 50, xtol=1e-12
        )
        # Near 1 the cdf itself is only known to 2^-53, here 1e-16/1e-9 of the tail.
        assert found[column].item() == pytest.approx(exact, abs=1e-6)


def test_quantile_of_one_component_is_normal():
    found = mixture_quantile(0.975, torch.tensor([[2.0]]), torch.tensor([[9.0]]))
    assert found.item() == pytest.approx(norm.ppf(0.975, 2, 3), rel=1e-12)


@pytest.mark.parametrize("num_samples", [1, 2, 10, 40])
@pytest.mark.parametrize("level", [0.025, 0.1, 0.3, 0.5, 0.95, 0.975, 1 - 0.025, 1 - 0.95])
def test_quantile_without_noise_is_an_order_statistic(num_samples, level):
    means, _ = mixture(num_samples, 6)
    found = mixture_quantile(level, means, torch.zeros_like(means))
    rank = math.ceil(round(level * num_samples, 9))
    assert torch.equal(found, means.sort(0).values[rank - 1])


def test_quantile_of_mixed_point_masses_and_gaussians_inverts_the_cdf():
    means = torch.tensor([[0.0], [1.0], [2.0]], dtype=torch.float64)
    variances = torch.tensor([[0.0], [0.5], [0.0]], dtype=torch.float64)
    smooth = mixture_quantile(0.5, means, variances)
    assert mixture_cdf(smooth, means, variances).item() == pytest.approx(0.5, abs=1e-12)
    # The step at 0 jumps from 0.026 to 0.36, across 0.2.
    assert mixture_quantile(0.2, means, variances).item() == pytest.approx(0.0, abs=1e-15)


def test_quantile_in_pieces_equals_the_whole(monkeypatch):
    means, variances = mixture(4, 3, 5)
    whole = mixture_quantile(0.3, means, variances)
    monkeypatch.setattr(gaussian_mixture, "_MAX_WORKING_ELEMENTS", 8)
    assert torch.equal(mixture_quantile(0.3, means, variances), whole)
    assert whole.shape == (3, 5)


def test_quantile_of_no_examples_is_empty():
    assert mixture_quantile(0.5, torch.zeros(3, 0, 2), torch.zeros(3, 0, 2)).shape == (0, 2)


@pytest.mark.parametrize("level", [0.0, 1.0, -0.1, 1.5])
def test_quantile_refuses_impossible_levels(level):
    with pytest.raises(ValueError, match=f"strictly between 0 and 1, got {level}"):
        mixture_quantile(level, torch.zeros(1, 1), torch.ones(1, 1))


def test_cdf_keeps_the_lower_tail():
    value = mixture_cdf(torch.tensor([-12.0]), torch.zeros(1, 1), torch.ones(1, 1))
    assert value.item() == pytest.approx(norm.cdf(-12), rel=1e-4, abs=0)


def test_log_density_is_joint_over_outputs():
    means, variances = mixture(6, 4, 3, 2)
    targets = torch.randn(4, 3, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    each = norm.logpdf(targets.numpy(), means.numpy(), variances.sqrt().numpy())
    exact = logsumexp(each.sum((2, 3)), axis=0) - np.log(6)
    found = mixture_log_density(targets, means, variances)
    np.testing.assert_allclose(found, exact, rtol=1e-12)
    independent = (logsumexp(each, axis=0) - np.log(6)).sum((1, 2))
    assert np.abs(independent - exact).min() > 1e-3


def test_log_density_integrates_to_one():
    means, variances = mixture(5, 1)
    grid = torch.linspace(-40, 40, 80_001, dtype=torch.float64)
    density = mixture_log_density(grid, means.expand(5, len(grid)), variances.expand(5, len(grid)))
    assert torch.trapezoid(density.exp(), grid).item() == pytest.approx(1.0, abs=1e-9)


def test_log_density_far_out_is_finite():
    found = mixture_log_density(torch.tensor([1e4]), torch.zeros(3, 1), torch.ones(3, 1))
    assert found.item() == pytest.approx(-5e7, rel=1e-6)


def test_log_density_of_a_point_mass_is_undefined():
    found = mixture_log_density(torch.zeros(2), torch.zeros(1, 2), torch.tensor([[0.0, 1.0]]))
    assert found[0].isnan()
    assert found[1].item() == pytest.approx(norm.logpdf(0))


def test_spread_variance_refuses_negative_and_misshapen():
    with pytest.raises(ValueError, match="noise_variance must be at least 0, got -1"):
        spread_variance(torch.zeros(2, 3), torch.tensor([1.0, -1.0, 2.0]), "noise_variance")
    with pytest.raises(ValueError, match=r"must broadcast to the means \(2, 3\), got shape \(4,\)"):
        spread_variance(torch.zeros(2, 3), torch.ones(4), "noise_variance")
