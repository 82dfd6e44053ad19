"""Bayesian linear regression has a known posterior: `fit` must find its mean-field optimum."""

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import bayesify as bf

NOISE_STD, PRIOR_STD, NUM_DATA = 0.5, 1.5, 64


def problem() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return inputs, targets, and the analytic mean and variance of the mean-field optimum.

    The exact posterior is N(m, A⁻¹) with A = XᵀX/noise² + I/prior²; the factorised Gaussian
    closest in KL(q ‖ p) has the same mean and the variances 1/diag(A).
    """
    generator = torch.Generator().manual_seed(3)
    mixing = torch.tensor([[1.0, 0.4, 0.0], [0.0, 1.0, -0.3], [0.0, 0.0, 0.8]])
    x = torch.randn(NUM_DATA, 3, generator=generator) @ mixing
    noise = NOISE_STD * torch.randn(NUM_DATA, 1, generator=generator)
    y = x @ torch.tensor([[0.8], [-1.2], [0.3]]) + noise
    precision = (x.T @ x / NOISE_STD**2 + torch.eye(3) / PRIOR_STD**2).double()
    mean = torch.linalg.solve(precision, (x.T @ y).double() / NOISE_STD**2).T
    return x, y, mean, 1 / precision.diagonal().unsqueeze(0)


@pytest.mark.parametrize("how", ["sample", "local"])
def test_fit_recovers_the_mean_field_optimum(how: str) -> None:
    torch.manual_seed(0)
    x, y, mean, variance = problem()
    model = bf.convert(
        nn.Linear(3, 1, bias=False), bf.MeanField(prior_std=PRIOR_STD, initial_std=0.02, how=how)
    )
    bf.fit(
        model,
        DataLoader(TensorDataset(x, y), NUM_DATA),
        epochs=3000,
        likelihood=bf.GaussianRegression(NOISE_STD),
        learning_rate=2e-2,
        scale_learning_rate=2e-2,
        num_samples=1 if how == "local" else 4,
        progress=False,
    )
    posterior = model.weight_posterior
    distance = (posterior.mean.detach() - mean).abs() / variance.sqrt()
    assert distance.max() < 0.1
    ratio = posterior.dense_variance().detach() / variance
    assert (ratio - 1).abs().max() < 0.05


def test_fit_at_beta_zero_finds_least_squares() -> None:
    torch.manual_seed(0)
    x, y, _, _ = problem()
    model = bf.convert(nn.Linear(3, 1, bias=False), bf.MeanField(initial_std=1e-3))
    bf.fit(
        model,
        DataLoader(TensorDataset(x, y), NUM_DATA),
        epochs=600,
        likelihood=bf.GaussianRegression(NOISE_STD),
        beta=0.0,
        learning_rate=5e-2,
        progress=False,
    )
    solution = torch.linalg.lstsq(x, y).solution.T
    torch.testing.assert_close(model.weight_posterior.mean.detach(), solution, atol=2e-3, rtol=0)
