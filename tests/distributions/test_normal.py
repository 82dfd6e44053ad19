import math

import pytest
import torch
from torch.distributions import Normal as Reference
from torch.distributions import kl_divergence

from bayesify.distributions import Normal, NormalPrior, divergence, softplus
from bayesify.distributions.family import as_family, as_prior, describe

FAMILY = Normal()


def parameters(*shape, dtype=torch.float64, tied=False):
    rho_shape = (shape[0], *([1] * (len(shape) - 1))) if tied else shape
    return {
        "mean": torch.randn(shape, dtype=dtype),
        "rho": torch.randn(rho_shape, dtype=dtype) - 2.0,
    }


def normal(mean, std):
    # From plain numbers torch would make it float32.
    return Reference(*torch.tensor([mean, std], dtype=torch.float64))


def reference(values):
    return Reference(values["mean"].double(), softplus(values["rho"].double()))


def test_log_prob_is_that_of_torch():
    values, points = parameters(5, 3), torch.randn(5, 3, dtype=torch.float64)
    torch.testing.assert_close(
        FAMILY.log_prob(values, points), reference(values).log_prob(points), rtol=1e-12, atol=1e-12
    )


def test_log_prob_of_half_precision_parameters_is_worked_out_in_float32():
    values, points = parameters(400, dtype=torch.bfloat16), torch.randn(400).bfloat16()
    result = FAMILY.log_prob(values, points)
    assert result.dtype == torch.float32
    expected = reference(values).log_prob(points.double())
    torch.testing.assert_close(result.double(), expected, rtol=1e-5, atol=1e-5)


def test_deviation_has_zero_mean_and_the_stated_variance():
    values = parameters(4, 3)
    num_draws = 20_000
    draws = torch.stack([FAMILY.deviation(values) for _ in range(num_draws)])
    variance = FAMILY.variance(values)
    assert (draws.mean(0).abs() < 4 * (variance / num_draws).sqrt()).all()
    error = (draws.var(0) - variance).abs()
    assert (error < 4 * variance * math.sqrt(2 / (num_draws - 1))).all()


def test_deviation_is_reparameterised():
    values = {name: value.requires_grad_() for name, value in parameters(6).items()}
    torch.manual_seed(1)
    deviation = FAMILY.deviation(values)
    torch.manual_seed(1)
    noise = torch.randn(6, dtype=torch.float64)
    expected = noise * torch.sigmoid(values["rho"])
    (gradient,) = torch.autograd.grad(deviation.sum(), values["rho"])
    torch.testing.assert_close(gradient, expected.detach())


def test_deviation_of_bfloat16_parameters_is_drawn_in_float32():
    values = parameters(1000, dtype=torch.bfloat16)
    deviation = FAMILY.deviation(values)
    assert deviation.dtype == torch.float32
    assert not torch.equal(deviation, deviation.bfloat16().float())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("std", [1e-6, 0.01, 1.0, 30.0])
def test_initial_parameters_have_the_asked_mean_and_std(dtype, std):
    tensor = torch.randn(7).to(dtype)
    values = FAMILY.initial(tensor, torch.full((7,), std, dtype=dtype))
    assert torch.equal(FAMILY.mean(values), tensor)
    assert values["rho"].dtype == dtype
    # rho is stored with a relative error of half a unit: an absolute one of std's logarithm.
    rho_error = torch.finfo(dtype).eps * max(abs(math.log(std)), 1.0) * max(1.0, std)
    expected = torch.full((7,), std, dtype=torch.float64)
    result = FAMILY.variance(values).double().sqrt()
    torch.testing.assert_close(result, expected, rtol=2 * rho_error, atol=0)


def test_prior_log_prob_is_that_of_torch():
    points = torch.randn(9, dtype=torch.float64)
    prior = NormalPrior(mean=0.3, std=0.7)
    expected = normal(0.3, 0.7).log_prob(points)
    torch.testing.assert_close(prior.log_prob(points), expected, rtol=1e-12, atol=1e-12)
    assert prior.log_prob(points.bfloat16()).dtype == torch.float32


@pytest.mark.parametrize("tied", [False, True])
def test_kl_is_that_of_torch(tied):
    values, prior = parameters(6, 4, tied=tied), NormalPrior(mean=0.2, std=0.6)
    expected = kl_divergence(reference(values), normal(0.2, 0.6)).sum()
    result = divergence(FAMILY, values, prior)
    torch.testing.assert_close(result, expected, rtol=1e-12, atol=0)


def test_kl_agrees_with_monte_carlo():
    values, prior = parameters(6), NormalPrior(mean=-0.1, std=1.3)
    num_draws = 40_000
    draws = values["mean"] + torch.stack([FAMILY.deviation(values) for _ in range(num_draws)])
    ratios = (FAMILY.log_prob(values, draws) - prior.log_prob(draws)).sum(-1)
    error = (ratios.mean() - divergence(FAMILY, values, prior)).abs()
    assert error < 4 * ratios.std() / math.sqrt(num_draws)


@pytest.mark.parametrize("tied", [False, True])
def test_kl_gradient_is_that_of_the_reference(tied):
    values = parameters(5, 3, tied=tied)
    prior = NormalPrior(mean=0.2, std=0.6)
    inputs = [value.requires_grad_() for value in values.values()]
    result = torch.autograd.grad(divergence(FAMILY, values, prior), inputs)
    expected = torch.autograd.grad(kl_divergence(reference(values), normal(0.2, 0.6)).sum(), inputs)
    for actual, wanted in zip(result, expected, strict=True):
        torch.testing.assert_close(actual, wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("rho", [-60.0, -36.0, -2.0, 3.0, 39.0, 45.0])
def test_kl_passes_gradcheck(rho):
    mean = torch.randn(4, dtype=torch.float64, requires_grad=True)
    # Wide scales under a wide prior: finite differences see no cancellation.
    prior = NormalPrior(std=max(1.0, rho))
    rhos = torch.full((4,), rho, dtype=torch.float64, requires_grad=True)

    def of(mean, rho):
        return divergence(FAMILY, {"mean": mean, "rho": rho}, prior)

    assert torch.autograd.gradcheck(of, (mean, rhos))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_kl_and_its_gradient_are_finite_for_every_finite_rho(dtype):
    rho = torch.tensor([-1e4, -200.0, -104.0, -16.0, 0.0, 50.0], dtype=dtype, requires_grad=True)
    mean = torch.zeros(6, dtype=dtype, requires_grad=True)
    value = divergence(FAMILY, {"mean": mean, "rho": rho}, NormalPrior())
    value.backward()
    assert torch.isfinite(value)
    assert torch.isfinite(rho.grad).all()
    assert torch.isfinite(mean.grad).all()
    # Far below, KL = −rho + ...: its gradient is −1, never 0 or infinite.
    torch.testing.assert_close(rho.grad[:2], -torch.ones(2, dtype=dtype))


def test_kl_of_half_precision_parameters_is_accumulated_in_float32():
    values = parameters(300, 200, dtype=torch.bfloat16)
    result = divergence(FAMILY, values, NormalPrior())
    assert result.dtype == torch.float32
    expected = kl_divergence(reference(values), normal(0.0, 1.0)).sum()
    torch.testing.assert_close(result.double(), expected, rtol=1e-6, atol=0)


def test_kl_near_the_prior_loses_nothing_to_cancellation():
    num_weights = 200_000
    std = 1.001 * torch.ones(num_weights)
    values = FAMILY.initial(torch.zeros(num_weights), std)
    expected = kl_divergence(reference(values), normal(0.0, 1.0)).sum()
    result = divergence(FAMILY, values, NormalPrior())
    # Each entry is right to float32 resolution of 1; their sum is about 0.2 nats.
    assert abs(result.double() - expected) < num_weights * torch.finfo(torch.float32).eps / 4


def test_kl_under_a_tiny_prior_stays_finite():
    values = FAMILY.initial(torch.zeros(3), torch.full((3,), 1e-20))
    assert torch.isfinite(divergence(FAMILY, values, NormalPrior(std=1e-20)))


def test_kl_of_no_entries_is_zero():
    values = {"mean": torch.zeros(0), "rho": torch.zeros(0)}
    assert divergence(FAMILY, values, NormalPrior()) == 0


@pytest.mark.parametrize(
    ("prior", "problem"),
    [
        (NormalPrior(std=0.0), "the prior's std must be positive and finite, got 0.0"),
        (NormalPrior(std=-1.0), "the prior's std must be positive and finite, got -1.0"),
        (NormalPrior(std=math.inf), "the prior's std must be positive and finite, got inf"),
        (NormalPrior(mean=math.nan), "the prior's mean must be finite, got nan"),
        (NormalPrior(), None),
    ],
)
def test_prior_says_what_is_wrong_with_its_numbers(prior, problem):
    assert prior.problem() == problem


def test_family_and_prior_survive_a_json_round_trip():
    prior = NormalPrior(mean=0.1, std=0.2)
    assert describe(prior) == {"name": "normal", "mean": 0.1, "std": 0.2}
    assert as_prior(describe(prior)) == prior
    assert as_family(describe(FAMILY)) == FAMILY


@pytest.mark.parametrize("tied", [False, True])
def test_kl_has_second_derivatives(tied):
    mean = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    rho = torch.randn((4, 1) if tied else (4, 3), dtype=torch.float64, requires_grad=True)

    def of(mean, rho):
        return divergence(FAMILY, {"mean": mean, "rho": rho}, NormalPrior(mean=0.2, std=0.6))

    assert torch.autograd.gradgradcheck(of, (mean, rho))


def test_kl_can_be_transformed():
    values = {name: torch.stack([each, each + 1]) for name, each in parameters(5, 3).items()}
    prior = NormalPrior(mean=0.2, std=0.6)

    def of(mean, rho):
        return divergence(FAMILY, {"mean": mean, "rho": rho}, prior)

    found = torch.func.vmap(of)(values["mean"], values["rho"])
    expected = torch.stack([of(*row) for row in zip(*values.values(), strict=True)])
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
    slope = torch.func.grad(of, argnums=1)(values["mean"][0], values["rho"][0])
    rho = values["rho"][0].clone().requires_grad_()
    torch.testing.assert_close(slope, torch.autograd.grad(of(values["mean"][0], rho), rho)[0])


def test_a_frozen_scale_leaves_the_gradient_of_the_mean():
    mean, rho = torch.randn(5, requires_grad=True), torch.randn(5)
    divergence(Normal(), {"mean": mean, "rho": rho}, NormalPrior(0.5, 2.0)).backward()
    torch.testing.assert_close(mean.grad, (mean.detach() - 0.5) / 4.0)
