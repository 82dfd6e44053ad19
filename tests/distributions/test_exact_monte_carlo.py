"""The law of M-draw averages that are drawn themselves: Cochran's, and sums of exponentials."""

import math

import pytest
import torch
from scipy import stats

from bayesify.distributions import (
    Exponential,
    ExponentialPrior,
    LogNormal,
    LogNormalPrior,
    Normal,
    NormalPrior,
    Rayleigh,
    RayleighPrior,
    divergence,
    divergence_problem,
    families,
    priors,
)
from bayesify.distributions.exact_monte_carlo import exponential_average, normal_averages

COUNT = 20_000
PAIRS = [
    (Normal(), NormalPrior(0.3, 0.7)),
    (LogNormal(), LogNormalPrior(-0.4, 0.8)),
    (Exponential(), ExponentialPrior(1.7)),
    (Rayleigh(), RayleighPrior(0.6)),
]
EACH = pytest.mark.parametrize(("family", "prior"), PAIRS, ids=str)
MANY = pytest.mark.parametrize("num_samples", [1, 2, 7, 1000])


def like(count=COUNT):
    return torch.empty(count, dtype=torch.float64)


def parameters(family, count=COUNT):
    values = {"mean": torch.full((count,), -0.8), "rho": torch.full((count,), -0.9)}
    return {name: values[name].double() for name in family.parameter_names}


def test_the_checked_pairs_are_all_there_are():
    checked = {(family.name, prior.name) for family, prior in PAIRS}
    found = {
        (family, prior)
        for family in families
        for prior in priors
        if divergence_problem(families[family](), priors[prior](), "exact_mc") is None
    }
    assert found == checked


@MANY
def test_normal_averages_follow_cochran(num_samples):
    average, square = normal_averages(like(), num_samples)
    scaled = average * math.sqrt(num_samples)
    assert stats.kstest(scaled.numpy(), "norm").pvalue > 1e-3
    if num_samples == 1:
        assert torch.equal(square, average.square())
        return
    rest = num_samples * (square - average.square())
    assert stats.kstest(rest.numpy(), stats.chi2(num_samples - 1).cdf).pvalue > 1e-3
    correlation = torch.corrcoef(torch.stack([scaled.square(), rest]))[0, 1]
    assert abs(correlation) < 4 / math.sqrt(COUNT)


@MANY
def test_exponential_averages_are_gamma_numbers(num_samples):
    found = num_samples * exponential_average(like(), num_samples)
    assert stats.kstest(found.numpy(), stats.gamma(num_samples).cdf).pvalue > 1e-3


def gradients(family, prior, estimator, num_samples):
    """Return the gradient of every entry, a row for each parameter."""
    leaves = {name: value.requires_grad_() for name, value in parameters(family).items()}
    found = divergence(family, leaves, prior, estimator=estimator, num_samples=num_samples)
    return torch.stack(torch.autograd.grad(found, list(leaves.values())))


def covariance_and_error(rows):
    """Return the covariances of rows, and the standard error of each."""
    centred = rows - rows.mean(1, keepdim=True)
    products = centred.unsqueeze(0) * centred.unsqueeze(1)
    return products.mean(-1), products.std(-1) / math.sqrt(rows.shape[1])


@EACH
@pytest.mark.parametrize("num_samples", [1, 7])
def test_gradients_have_the_joint_law_of_direct_draws(family, prior, num_samples):
    found, expected = (gradients(family, prior, way, num_samples) for way in ("exact_mc", "direct"))
    error = (found.var(1) + expected.var(1)).div(COUNT).sqrt()
    assert ((found.mean(1) - expected.mean(1)).abs() < 4 * error).all()
    (one, of_one), (two, of_two) = map(covariance_and_error, (found, expected))
    assert ((one - two).abs() < 4 * torch.hypot(of_one, of_two)).all()
    for row, other in zip(found, expected, strict=True):
        assert stats.ks_2samp(row.numpy(), other.numpy()).pvalue > 1e-3


@EACH
def test_values_have_the_law_of_direct_draws(family, prior):
    one, count, num_samples = parameters(family, 1), 2000, 3
    options = {"estimator": "exact_mc", "num_samples": num_samples}
    found = torch.stack([divergence(family, one, prior, **options) for _ in range(count)])
    many = parameters(family, count * num_samples)
    draws = family.draw(many)
    ratios = family.log_prob(many, draws) - prior.log_prob(draws)
    expected = ratios.view(count, num_samples).mean(1)
    assert stats.ks_2samp(found.numpy(), expected.numpy()).pvalue > 1e-3


@EACH
def test_a_billion_draws_cost_no_more_and_give_the_closed_form(family, prior):
    values = parameters(family, 10)
    closed = divergence(family, values, prior, estimator="closed")
    found = divergence(family, values, prior, estimator="exact_mc", num_samples=10**9)
    # A log ratio of one draw has a standard deviation of a few nats at most.
    assert abs(found - closed) < 4 * 5 * math.sqrt(10 / 10**9)


def test_normal_value_near_the_prior_has_the_stated_spread():
    # With M = 100 and q = p up to a twentieth: the sampled entropy cancels most of the noise,
    # which a closed entropy beside a sampled cross-entropy would keep.
    values = Normal().initial(torch.full((1,), 0.3).double(), torch.full((1,), 0.9).double())
    found = torch.stack(
        [
            divergence(Normal(), values, NormalPrior(), estimator="exact_mc", num_samples=100)
            for _ in range(2000)
        ]
    )
    # Var = [(μσ)² + (σ² − 1)²/2] / M of log q − log p = const + μσ ξ + (σ² − 1) ξ²/2.
    expected = math.sqrt(((0.3 * 0.9) ** 2 + (0.81 - 1) ** 2 / 2) / 100)
    assert abs(found.std().item() / expected - 1) < 4 / math.sqrt(2 * 2000)
