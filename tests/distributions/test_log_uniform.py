"""The exact KL to the log-uniform prior, against quadrature of the Dawson function."""

import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.special import dawsn

from bayesify.distributions import MultiplicativeNormal, Normal, divergence
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


def kl_of(family, parameters):
    return divergence(family, parameters, LogUniformPrior())


@pytest.mark.parametrize("mean", [1.0, -0.03, 40.0])
def test_kl_from_rho_and_its_gradient_match_quadrature(mean: float) -> None:
    std = torch.tensor(np.exp(0.5 * LOG_ALPHA) * abs(mean))
    # float32 inputs; the reference is taken at the very numbers float32 holds.
    rho = inverse_softplus(std).float()
    theta = torch.full_like(rho, mean)
    log_std, slope_of_rho = _log_std_and_slope(rho)
    held = (2 * (log_std - theta.double().abs().log())).numpy()
    expected = np.array([from_quadrature(value) for value in held])
    x = np.sqrt(0.5 * np.exp(-held))
    slope = 2 * x * dawsn(x)
    for index in range(len(rho)):
        inputs = [theta[index].clone().requires_grad_(), rho[index].clone().requires_grad_()]
        value = kl_of(Normal(), dict(zip(("mean", "rho"), inputs, strict=True)))
        of_mean, of_rho = torch.autograd.grad(value, inputs)
        assert abs(value.item() - expected[index]) < 1e-6
        assert abs(mean * of_mean.item() - slope[index]) < 1e-6
        assert abs(of_rho.item() + slope[index] * slope_of_rho[index]) < 1e-6


def _log_std_and_slope(rho: torch.Tensor) -> tuple[torch.Tensor, list[float]]:
    exact = rho.double().requires_grad_()
    log_std = log_softplus(exact)
    (slope,) = torch.autograd.grad(log_std.sum(), exact)
    return log_std.detach(), slope.tolist()


def test_kl_from_a_logit_and_its_gradient_match_quadrature() -> None:
    logit = torch.linspace(-8, 8, 81, requires_grad=True)
    log_alpha = torch.nn.functional.logsigmoid(logit.detach().double())
    parts = [
        kl_of(MultiplicativeNormal(), {"mean": torch.ones(()), "logit_alpha": entry})
        for entry in logit
    ]
    expected = [from_quadrature(value) for value in log_alpha.tolist()]
    assert (
        max(abs(part.item() - wanted) for part, wanted in zip(parts, expected, strict=True)) < 1e-6
    )
    (gradient,) = torch.autograd.grad(sum(parts), logit)
    x = np.sqrt(0.5 * np.exp(-log_alpha.numpy()))
    slope = -x * dawsn(x) * torch.sigmoid(-logit.detach().double()).numpy()
    assert np.abs(gradient.double().numpy() - slope).max() < 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("mean", [0.0, 1e-38, -1e-6, 1.0, 1e30])
@pytest.mark.parametrize("rho", [-1e4, -200.0, -95.0, -60.0, 0.0, 90.0, 1e30])
def test_any_mean_and_rho_give_finite_values_and_gradients(mean, rho, dtype) -> None:
    inputs = [torch.tensor([value], dtype=dtype, requires_grad=True) for value in (mean, rho)]
    value = kl_of(Normal(), {"mean": inputs[0], "rho": inputs[1]})
    of_mean, of_rho = torch.autograd.grad(value, inputs)
    assert all(torch.isfinite(entry).all() for entry in (value, of_mean, of_rho))
    assert value >= 0
    if mean in (1.0, 1e30) and rho < -20:
        # Noise that is small beside the mean: the KL is log(|mean| / std) and a constant.
        torch.testing.assert_close(of_mean * mean, torch.ones_like(of_mean))
        torch.testing.assert_close(of_rho, -torch.ones_like(of_rho))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_any_logit_gives_finite_values_and_gradients(dtype) -> None:
    logit = torch.tensor([-1e4, -100.0, 0.0, 100.0, 1e4], dtype=dtype, requires_grad=True)
    value = kl_of(MultiplicativeNormal(), {"mean": torch.ones(5), "logit_alpha": logit})
    (gradient,) = torch.autograd.grad(value, logit)
    assert torch.isfinite(value)
    torch.testing.assert_close(gradient[:2], torch.full((2,), -0.5, dtype=dtype))
    assert gradient[3:].abs().max() < 1e-40


@pytest.mark.parametrize("tied", [False, True])
def test_fused_kl_passes_gradcheck_and_has_the_gradient_of_its_parts(tied) -> None:
    torch.manual_seed(0)
    mean = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    shape = (4, 1) if tied else (4, 3)
    rho = torch.randn(shape, dtype=torch.float64, requires_grad=True)

    def fused(mean, rho):
        return kl_of(Normal(), {"mean": mean, "rho": rho})

    assert torch.autograd.gradcheck(fused, (mean, rho), atol=1e-6)
    parts = log_uniform_kl(mean, log_softplus(rho)).sum()
    torch.testing.assert_close(fused(mean, rho), parts, rtol=1e-10, atol=1e-10)
    found = torch.autograd.grad(fused(mean, rho), (mean, rho))
    expected = torch.autograd.grad(parts, (mean, rho))
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def test_fused_kl_of_a_logit_passes_gradcheck() -> None:
    logit = torch.randn(12, dtype=torch.float64, requires_grad=True)

    def fused(logit):
        return kl_of(MultiplicativeNormal(), {"mean": torch.ones(12), "logit_alpha": logit})

    assert torch.autograd.gradcheck(fused, (logit,), atol=1e-6)


@pytest.mark.parametrize("family", [Normal(), MultiplicativeNormal()], ids=lambda each: each.name)
def test_kl_can_be_transformed(family) -> None:
    names = family.parameter_names
    stack = [torch.randn(3, 5, dtype=torch.float64, requires_grad=True) for _ in names]

    def value(*inputs):
        return kl_of(family, dict(zip(names, inputs, strict=True)))

    found = torch.func.vmap(value)(*stack)
    expected = torch.stack([value(*row) for row in zip(*stack, strict=True)])
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    slope = torch.func.grad(value, argnums=1)(*(each.detach()[0] for each in stack))
    wanted = torch.autograd.grad(expected[0], stack[1])[0][0]
    torch.testing.assert_close(slope, wanted, rtol=1e-10, atol=1e-10)


def test_kl_of_many_weights_is_the_sum_over_its_blocks() -> None:
    mean, rho = torch.randn(3, 30_000), torch.randn(3, 30_000) - 3
    mean.requires_grad_()
    whole = kl_of(Normal(), {"mean": mean, "rho": rho})
    parts = log_uniform_kl(mean.detach().double(), log_softplus(rho.double())).sum()
    assert whole.item() == pytest.approx(parts.item(), rel=1e-6)
    (found,) = torch.autograd.grad(whole, mean)
    alone = mean.detach()[2].requires_grad_()
    kl_of(Normal(), {"mean": alone, "rho": rho[2]}).backward()
    torch.testing.assert_close(found[2], alone.grad)
