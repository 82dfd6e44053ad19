"""The removal criteria against Monte Carlo, their order, and their extremes."""

import pytest
import torch

from bayesify.distributions.importance import (
    importance,
    importances,
    log_expected_exponential,
    magnitude_snr,
)

MEAN = torch.tensor([0.0, 0.02, -0.3, 1.0, -2.0])
STD = torch.tensor([0.5, 0.4, 0.1, 0.7, 0.2])


@pytest.fixture(scope="module")
def draws() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(400_000, 5, generator=generator, dtype=torch.float64)
    return (MEAN + STD * noise).abs()


def test_expected_magnitude_is_the_mean_of_the_size(draws: torch.Tensor) -> None:
    error = draws.std(0) / 400_000**0.5
    found = importance("expected_magnitude", MEAN, STD)
    assert ((found - draws.mean(0)).abs() < 4 * error).all()


def test_the_exponential_rules_are_those_of_draws(draws: torch.Tensor) -> None:
    grown = draws.exp()
    error = grown.std(0) / 400_000**0.5
    found = importance("expected_exponential", MEAN, STD).exp()
    assert ((found - grown.mean(0)).abs() < 4 * error).all()
    ratio = importance("exponential_snr", MEAN, STD)
    torch.testing.assert_close(ratio, grown.mean(0) / grown.std(0), rtol=0.01, atol=0)


def test_the_size_has_the_stated_signal_to_noise(draws: torch.Tensor) -> None:
    found = magnitude_snr(MEAN, STD)
    torch.testing.assert_close(found, draws.mean(0) / draws.std(0), rtol=0.01, atol=0)
    assert magnitude_snr(torch.zeros(1), torch.ones(1)).item() == pytest.approx(1.3236, abs=1e-4)


def test_the_two_ratios_order_weights_alike() -> None:
    ratio = torch.logspace(-1.5, 3, 400, dtype=torch.float64)
    assert (magnitude_snr(ratio, torch.ones_like(ratio)).diff() > 0).all()
    mean, std = torch.randn(500, generator=torch.Generator().manual_seed(0)), torch.rand(500) + 0.01
    first, second = (importance(name, mean, std) for name in ("snr", "magnitude_snr"))
    assert torch.equal(first.argsort(), second.argsort())


@pytest.mark.parametrize("name", list(importances))
def test_extremes_are_numbers(name: str) -> None:
    mean = torch.tensor([0.0, 0.0, 1e-30, 5.0, 300.0, -1e4, 1e-3])
    std = torch.tensor([0.0, 1e-8, 1e-20, 1e-12, 40.0, 1e-3, 1e3])
    found = importance(name, mean, std)
    assert found.dtype == torch.float64
    assert not found.isnan().any()
    assert found[0] <= found.min()


def test_the_logarithm_survives_where_the_number_would_not() -> None:
    found = log_expected_exponential(torch.tensor([2000.0]).double(), torch.ones(1).double(), 1.0)
    assert found.item() == pytest.approx(2000.5)
