"""The published fits against the exact KL: how far off, where, and what happens beyond."""

import math

import pytest
import torch

from bayesify.distributions import (
    LogUniformPrior,
    MultiplicativeNormal,
    Normal,
    divergence,
)
from bayesify.distributions.log_uniform import log_uniform_kl
from bayesify.distributions.log_uniform_fits import kingma_fit, molchanov_fit
from bayesify.distributions.scale import inverse_softplus

LOG_ALPHA = torch.linspace(-8, 8, 1601, dtype=torch.float64)


def exact(log_alpha: torch.Tensor) -> torch.Tensor:
    return log_uniform_kl(torch.ones_like(log_alpha), 0.5 * log_alpha)


def test_molchanov_fit_is_off_by_its_known_error() -> None:
    error = (molchanov_fit(LOG_ALPHA) - exact(LOG_ALPHA)).abs()
    assert error.max().item() == pytest.approx(0.0094, abs=1e-4)
    assert LOG_ALPHA[error.argmax()].item() == pytest.approx(-3.5, abs=0.1)


def test_kingma_cubic_holds_up_to_alpha_one_and_falls_without_bound_beyond() -> None:
    inside = LOG_ALPHA[LOG_ALPHA <= 0]
    assert (kingma_fit(inside) - exact(inside)).abs().max() < 0.036
    far = torch.tensor(math.log(20.0), dtype=torch.float64)
    assert kingma_fit(far) < -4000
    assert exact(far).item() == pytest.approx(0.025, abs=1e-3)


@pytest.mark.parametrize("fit", [molchanov_fit, kingma_fit])
def test_gradcheck_in_float64(fit) -> None:
    inputs = torch.linspace(-6, 0, 7, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(fit, inputs)


@pytest.mark.parametrize("kl", ["molchanov", "kingma"])
def test_multiplicative_divergence_is_near_the_exact_one(kl: str) -> None:
    parameters = {"mean": torch.randn(50), "logit_alpha": torch.linspace(-6, 3, 50)}
    family = MultiplicativeNormal()
    found = divergence(family, parameters, LogUniformPrior(kl))
    assert abs(found - divergence(family, parameters, LogUniformPrior())) < 0.036 * 50
    assert found != divergence(family, parameters, LogUniformPrior())


def test_additive_molchanov_divergence_is_finite_with_gradients_at_the_extremes() -> None:
    mean = torch.tensor([0.0, 1e-30, 1e6, -1.0], requires_grad=True)
    rho = torch.tensor([-80.0, 10.0, -80.0, 80.0], requires_grad=True)
    value = divergence(Normal(), {"mean": mean, "rho": rho}, LogUniformPrior("molchanov"))
    value.backward()
    assert all(torch.isfinite(entry).all() for entry in (value, mean.grad, rho.grad))


def test_additive_molchanov_divergence_matches_the_fit() -> None:
    mean, std = torch.tensor([0.5, -2.0]), torch.tensor([1.0, 0.3])
    parameters = {"mean": mean, "rho": inverse_softplus(std)}
    found = divergence(Normal(), parameters, LogUniformPrior("molchanov"))
    expected = molchanov_fit(2 * (std / mean.abs()).log()).sum()
    torch.testing.assert_close(found, expected)


def test_kingma_cubic_is_refused_for_additive_noise() -> None:
    parameters = {"mean": torch.ones(2), "rho": torch.ones(2)}
    with pytest.raises(ValueError, match="alpha <= 1 only"):
        divergence(Normal(), parameters, LogUniformPrior("kingma"))


def test_unknown_kl_is_named() -> None:
    with pytest.raises(ValueError, match="kl must be 'exact', 'molchanov' or 'kingma', got 'x'"):
        divergence(Normal(), {"mean": torch.ones(2), "rho": torch.ones(2)}, LogUniformPrior("x"))
