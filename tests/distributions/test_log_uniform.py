"""The exact KL to the log-uniform prior, against quadrature of the Dawson function."""

import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.special import dawsn

from bayesify.distributions import Normal, divergence
from bayesify.distributions.log_uniform import LogUniformPrior, log_uniform_kl
from bayesify.distributions.scale import inverse_softplus, log_softplus

LOG_ALPHA = np.linspace(-8, 8, 161)


def from_quadrature(log_alpha: float) -> float:
    x = math.sqrt(0.5 * math.exp(-log_alpha))
    return 2 * quad(dawsn, 0, x, epsabs=1e-13, epsrel=1e-13, limit=400)[0]


@pytest.mark.parametrize("mean", [1.0, -0.03, 40.0])
def test_kl_and_gradient_match_quadrature(mean: float) -> None:
    # float32 inputs; the reference is taken at the very numbers float32 holds.
    theta = torch.full((len(LOG_ALPHA),), mean, requires_grad=True)
    log_std = torch.tensor(0.5 * LOG_ALPHA + math.log(abs(mean)), dtype=torch.float32)
    log_std.requires_grad_()
    held = 2 * (log_std.detach().double() - theta.detach().double().abs().log())
    found = log_uniform_kl(theta, log_std)
    expected = np.array([from_quadrature(value) for value in held.tolist()])
    assert np.abs(found.detach().double().numpy() - expected).max() < 1e-6
    found.sum().backward()
    x = np.sqrt(0.5 * np.exp(-held.numpy()))
    slope = 2 * x * dawsn(x)
    assert np.abs(-log_std.grad.double().numpy() - slope).max() < 1e-6
    assert np.abs(mean * theta.grad.double().numpy() - slope).max() < 1e-6


def test_small_and_large_ends_keep_their_relative_precision() -> None:
    theta = torch.tensor([1e-12, 1e-6, 1e-3], requires_grad=True)
    log_std = torch.zeros(3)
    found = log_uniform_kl(theta, log_std)
    torch.testing.assert_close(found, theta.square() / 2, rtol=1e-5, atol=0)
    found.sum().backward()
    torch.testing.assert_close(theta.grad, theta.detach(), rtol=1e-5, atol=0)
    far = log_uniform_kl(torch.tensor(1.0), torch.tensor(-60.0))
    constant = 0.5 * (np.euler_gamma + math.log(2))
    assert far.item() == pytest.approx(60.0 + constant, rel=1e-6)


@pytest.mark.parametrize(
    ("mean", "log_std"), [(0.0, 0.0), (0.0, -80.0), (1e-30, 10.0), (1e30, -80.0), (-1.0, 80.0)]
)
def test_extremes_give_finite_values_and_gradients(mean: float, log_std: float) -> None:
    theta = torch.tensor(mean, requires_grad=True)
    scale = torch.tensor(log_std, requires_grad=True)
    value = log_uniform_kl(theta, scale)
    value.backward()
    assert all(torch.isfinite(entry) for entry in (value, theta.grad, scale.grad))
    assert value >= 0


def test_kl_differs_from_monte_carlo_by_one_constant() -> None:
    # E_q[log q − log p] is known up to the constant of the improper prior: the same for every pair.
    torch.manual_seed(0)
    pairs = torch.tensor([[0.5, 0.5], [2.0, 0.3], [0.1, 1.0]], dtype=torch.float64)
    mean, std = pairs.T
    family, prior = Normal(), LogUniformPrior()
    parameters = {"mean": mean, "rho": inverse_softplus(std)}
    draws = mean + std * torch.randn(400_000, 3, dtype=torch.float64)
    terms = family.log_prob(parameters, draws) - prior.log_prob(draws)
    gap = terms.mean(0) - log_uniform_kl(mean, log_softplus(parameters["rho"]))
    error = 4 * (terms.var(0) / len(draws)).sqrt()
    assert (gap - gap.mean()).abs().max() < error.max()


def test_gradcheck_in_float64() -> None:
    torch.manual_seed(0)
    mean = torch.randn(12, dtype=torch.float64, requires_grad=True)
    log_std = torch.randn(12, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(log_uniform_kl, (mean, log_std), atol=1e-6)


def test_shared_scales_count_for_every_weight() -> None:
    mean, rho = torch.randn(4, 3), torch.randn(4, 1)
    family, prior = Normal(), LogUniformPrior()
    tied = divergence(family, {"mean": mean, "rho": rho}, prior)
    spelled = divergence(family, {"mean": mean, "rho": rho.expand(4, 3)}, prior)
    torch.testing.assert_close(tied, spelled)
