import math

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from scipy.stats import norm
from sklearn.metrics import root_mean_squared_error
from torch import Tensor
from torchmetrics.functional.regression import continuous_ranked_probability_score

from bayesify.evaluation.regression import (
    crps,
    interval_coverage,
    mean_interval_width,
    regression_nll,
    rmse,
)
from bayesify.prediction.predictive import RegressionPredictive

SCORES = [rmse, regression_nll, interval_coverage, crps]


def example(num: int = 50, noise: float = 0.5) -> tuple[RegressionPredictive, Tensor]:
    generator = torch.Generator().manual_seed(0)
    means = torch.randn(8, num, 2, generator=generator)
    variance = noise * (1 + torch.rand(8, num, 2, generator=generator)) * (noise > 0)
    targets = torch.randn(num, 2, generator=generator)
    return RegressionPredictive.build(means, variance, "samples"), targets


def test_rmse_equals_sklearn():
    predictive, targets = example()
    expected = root_mean_squared_error(targets.flatten(), predictive.mean.flatten())
    assert rmse(predictive, targets) == pytest.approx(expected, rel=1e-6)


def test_nll_equals_scipy():
    predictive, targets = example()
    std = predictive.noise_variance.sqrt()
    each = norm.logpdf(targets.numpy(), predictive.samples.numpy(), std.numpy()).sum(2)
    expected = -(logsumexp(each, axis=0) - math.log(8)).mean()
    assert regression_nll(predictive, targets) == pytest.approx(expected, rel=1e-6)


def test_nll_without_noise_is_undefined():
    assert math.isnan(regression_nll(*example(noise=0.0)))


def test_coverage_and_width_equal_those_of_draws():
    predictive, _ = example(6)
    generator = torch.Generator().manual_seed(1)
    pick = torch.randint(8, (40_000,), generator=generator)
    noise = torch.randn(40_000, 6, 2, generator=generator)
    draws = predictive.samples[pick] + predictive.noise_variance[pick].sqrt() * noise
    repeated = predictive[list(range(6)) * 200]
    share = interval_coverage(repeated, draws[:200].flatten(0, 1), 0.9)
    # 200 draws of 12 outputs, each inside with probability 0.9.
    assert share == pytest.approx(0.9, abs=4 * math.sqrt(0.09 / 2400))
    low, high = np.quantile(draws.numpy(), [0.05, 0.95], axis=0)
    assert mean_interval_width(predictive, 0.9) == pytest.approx((high - low).mean(), rel=0.02)
    assert mean_interval_width(predictive, 0.5) < mean_interval_width(predictive, 0.9)


def test_coverage_of_targets_inside_at_and_outside_the_interval():
    predictive = RegressionPredictive.build(torch.zeros(2, 4), 1.0, "samples")
    low, high = predictive.interval(0.95)
    assert interval_coverage(predictive, torch.zeros(4)) == 1.0
    assert (
        interval_coverage(predictive, torch.stack([low[0], high[1], low[2] - 1, high[3] + 1]))
        == 0.5
    )
    assert interval_coverage(predictive, torch.full((4,), 9.0)) == 0.0
    assert mean_interval_width(predictive) == pytest.approx(2 * norm.ppf(0.975), rel=1e-6)


def test_perfect_prediction_without_noise():
    targets = torch.tensor([1.0, 2.0, 3.0])
    predictive = RegressionPredictive.build(targets.expand(5, 3), 0.0, "samples")
    assert rmse(predictive, targets) == crps(predictive, targets) == 0.0
    assert interval_coverage(predictive, targets) == 1.0
    assert mean_interval_width(predictive) == 0.0


def test_crps_equals_the_integral_of_squared_cdf_differences():
    predictive, targets = example(3)
    grid = np.linspace(-15, 15, 60_001)
    std = predictive.noise_variance.sqrt().numpy()
    expected = []
    for n, d in np.ndindex(3, 2):
        cdf = norm.cdf(grid[:, None], predictive.samples[:, n, d].numpy(), std[:, n, d]).mean(1)
        expected.append(np.trapezoid((cdf - (grid >= targets[n, d].item())) ** 2, grid))
    # The step inside a cell of the grid costs up to its width, 5e-4.
    assert crps(predictive, targets) == pytest.approx(np.mean(expected), abs=5e-4)


def test_crps_without_noise_equals_the_ensemble_score_of_torchmetrics():
    predictive, targets = example(noise=0.0)
    ensemble = predictive.samples.flatten(1).T
    expected = continuous_ranked_probability_score(ensemble, targets.flatten()).item()
    assert crps(predictive, targets) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("score", SCORES)
def test_order_of_examples_does_not_matter(score):
    predictive, targets = example()
    order = torch.randperm(50, generator=torch.Generator().manual_seed(2))
    expected = score(predictive, targets)
    # Each example's term is float32, and its last bit may depend on its place in a vector.
    assert score(predictive[order], targets[order]) == pytest.approx(expected, rel=2**-21)


@pytest.mark.parametrize("score", SCORES)
def test_no_examples_give_nan_and_one_example_a_number(score):
    predictive, targets = example()
    assert math.isnan(score(predictive[:0], targets[:0]))
    assert math.isnan(mean_interval_width(predictive[:0]))
    assert math.isfinite(score(predictive[:1], targets[:1]))


@pytest.mark.parametrize("score", SCORES)
def test_one_sample_low_precision_and_integer_targets_work(score):
    one = RegressionPredictive.build(torch.zeros(1, 3).bfloat16(), 1.0, "one sample")
    assert math.isfinite(score(one, torch.tensor([0, 1, -1])))
    assert math.isfinite(score(one, torch.zeros(3, dtype=torch.bfloat16)))


@pytest.mark.parametrize("score", SCORES)
def test_targets_that_would_broadcast_are_refused(score):
    predictive = RegressionPredictive.build(torch.zeros(2, 3, 1), 1.0, "samples")
    assert math.isfinite(score(predictive, torch.zeros(3)))
    with pytest.raises(ValueError, match=r"prediction's shape \(3, 1\), got \(3, 3\)"):
        score(predictive, torch.zeros(3, 3))
