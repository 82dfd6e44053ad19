"""The Radial family: its draws, its density, its exact entropy and the KL from a Normal prior."""

import math

import mpmath
import numpy as np
import pytest
import torch
from scipy import integrate, special, stats

from bayesify.distributions import (
    LaplacePrior,
    LogNormalPrior,
    Normal,
    NormalPrior,
    Radial,
    RadialPrior,
    divergence,
    divergence_problem,
    inverse_softplus,
    softplus,
)
from bayesify.distributions.radial import radial_entropy

SIZES = [1, 2, 10, 1000]
# Nats by which the entropy falls short of a Normal's: what is left of the KL at its least.
LEAST_KL = {1: 0.0, 10: 4.43, 1000: 631.0}


def parameters(*shape, dtype=torch.float64):
    return {"mean": torch.randn(shape, dtype=dtype), "rho": torch.randn(shape, dtype=dtype) - 1.0}


def published_entropy(size, sigma):
    """Return the entropy in the published scale, sigma = std · √D, as a product of two laws.

    ½ − ½ log(2/π) + log A_D − (D − 1)(γ + log 2)/2 + Σ log sigma, A_D the area of the sphere.
    """
    log_area = math.log(2) + size / 2 * math.log(math.pi) - special.gammaln(size / 2)
    radius = 0.5 - 0.5 * math.log(2 / math.pi) - (size - 1) * (np.euler_gamma + math.log(2)) / 2
    return radius + log_area + torch.log(sigma).sum().item()


def groups(size, count, dtype=torch.float64):
    """Return a family of many tensors of one size, which one call draws independently."""
    return Radial((size,) * count), {
        "mean": torch.zeros(size * count, dtype=dtype),
        "rho": torch.full((size * count,), inverse_softplus(torch.tensor(1.0)).item(), dtype=dtype),
    }


@pytest.mark.parametrize("size", SIZES)
def test_entropy_is_the_exact_one(size):
    values = parameters(size)
    sigma = softplus(values["rho"]) * math.sqrt(size)
    found = Radial().entropy(values).item()
    assert math.isclose(found, published_entropy(size, sigma), rel_tol=1e-11, abs_tol=1e-11)


@pytest.mark.parametrize("size", [2, 10])
def test_entropy_is_the_average_of_the_log_density(size):
    count = 20_000
    family, values = groups(size, count)
    logs = family.noise_log_prob(family.standard_noise(values["mean"]))
    error = logs.std().item() / math.sqrt(count)
    assert abs(-logs.mean().item() - radial_entropy(size)) < 4 * error


@pytest.mark.parametrize("size", [10**6, 10**8])
def test_constants_of_a_large_layer_are_exact_in_float64(size):
    with mpmath.workdps(40):
        half = mpmath.mpf(size) / 2
        log_area = mpmath.log(2) + half * mpmath.log(mpmath.pi) - mpmath.loggamma(half)
        radius = mpmath.mpf(1) / 2 - mpmath.log(2 / mpmath.pi) / 2
        shrunk = (size - 1) * (mpmath.euler + mpmath.log(2)) / 2
        expected = radius + log_area - shrunk + half * mpmath.log(size)
    # Its parts are of the size of D log D; nothing is lost beyond their last digit.
    allowed = 4 * np.finfo(float).eps * size * math.log(size)
    assert abs(radial_entropy(size) - float(expected)) < allowed


def test_one_weight_is_normal():
    values, point = parameters(1), torch.randn(1, dtype=torch.float64)
    normal = Normal()
    torch.testing.assert_close(Radial().entropy(values), normal.entropy(values))
    found = Radial().log_prob(values, point)
    torch.testing.assert_close(found, normal.log_prob(values, point).sum())
    prior = NormalPrior(0.3, 0.7)
    found = divergence(Radial(), values, prior)
    torch.testing.assert_close(found, divergence(normal, values, prior), rtol=1e-12, atol=1e-12)


def test_density_of_two_weights_integrates_to_one():
    values = parameters(2)
    mean, std = values["mean"], softplus(values["rho"])

    def along_a_ray(radius, angle):
        direction = torch.tensor([math.cos(angle), math.sin(angle)], dtype=torch.float64)
        value = mean + std * direction * radius
        return Radial().log_prob(values, value).exp().item() * radius * std.prod().item()

    found, _ = integrate.dblquad(along_a_ray, 0, 2 * math.pi, 0, 20, epsabs=1e-6)
    assert abs(found - 1) < 1e-6


@pytest.mark.parametrize("size", [2, 10, 1000])
def test_draws_have_the_stated_radius_direction_and_variance(size):
    count = 4000 if size < 1000 else 400
    family, values = groups(size, count)
    noise = family.standard_noise(values["mean"]).view(count, size)
    radii = noise.norm(dim=1) / math.sqrt(size)
    assert stats.kstest(radii.numpy(), stats.halfnorm.cdf).pvalue > 1e-3
    # The share of one entry in the square of a uniform direction is a beta number.
    share = (noise[:, 0] / noise.norm(dim=1)).square()
    assert stats.kstest(share.numpy(), stats.beta(0.5, (size - 1) / 2).cdf).pvalue > 1e-3
    squares = noise.square().mean(1)  # E = 1, from one radius for all entries: variance 2
    assert abs(squares.mean().item() - 1) < 4 * math.sqrt(2 / count)
    assert abs(noise.mean().item()) < 4 / math.sqrt(noise.numel())


@pytest.mark.parametrize("shape", [(7,), (4, 5), (2, 3, 2)])
def test_one_tensor_of_any_shape_has_one_radius(shape):
    values = parameters(*shape)
    noise = torch.stack([Radial().noise(values) for _ in range(2000)])
    radii = noise.flatten(1).norm(dim=1) / math.sqrt(math.prod(shape))
    assert stats.kstest(radii.numpy(), stats.halfnorm.cdf).pvalue > 1e-3


def test_joined_tensors_have_the_density_and_kl_of_their_parts():
    sizes, values = (3, 1, 5), parameters(9)
    joined, point = Radial().joined(sizes), torch.randn(9, dtype=torch.float64)
    columns = zip(*(value.split(sizes) for value in values.values()), strict=True)
    parts = [dict(zip(values, each, strict=True)) for each in columns]
    pieces = zip(parts, point.split(sizes), strict=True)
    expected = sum(Radial().log_prob(part, piece) for part, piece in pieces)
    torch.testing.assert_close(joined.log_prob(values, point), expected)
    expected = sum(Radial().entropy(part) for part in parts)
    torch.testing.assert_close(joined.entropy(values), expected, rtol=1e-12, atol=1e-12)
    prior = NormalPrior(0.1, 0.6)
    expected = sum(divergence(Radial(), part, prior) for part in parts)
    torch.testing.assert_close(divergence(joined, values, prior), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("size", [1, 2, 10, 200])
@pytest.mark.parametrize("prior", [NormalPrior(), NormalPrior(0.4, 0.6)], ids=str)
def test_closed_kl_is_the_average_over_draws(size, prior):
    count = 4000 if size < 200 else 500
    one = parameters(size)
    family = Radial((size,) * count)
    values = {name: value.repeat(count) for name, value in one.items()}
    draws = family.draw(values).view(count, size)
    noise = ((draws - one["mean"]) / softplus(one["rho"])).flatten()
    logs = family.noise_log_prob(noise) - softplus(one["rho"]).log().sum()
    ratios = logs - prior.log_prob(draws).sum(1)
    expected = divergence(Radial(), one, prior, estimator="closed").item()
    assert abs(ratios.mean().item() - expected) < 4 * ratios.std().item() / math.sqrt(count)


def test_closed_kl_is_that_of_the_averages():
    values = parameters(10)
    entropy = Radial().entropy(values)
    variance = softplus(values["rho"]).square()
    offset = (values["mean"] - 0.4).square()
    cross = 0.5 * (math.log(2 * math.pi * 0.36) + (offset + variance) / 0.36).sum()
    found = divergence(Radial(), values, NormalPrior(0.4, 0.6))
    torch.testing.assert_close(found, cross - entropy, rtol=1e-12, atol=0)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("prior_std", [1.0, 0.2])
def test_kl_is_least_where_std_is_that_of_the_prior(size, prior_std):
    rho = inverse_softplus(torch.full((size,), prior_std, dtype=torch.float64)).requires_grad_()
    values = {"mean": torch.zeros_like(rho), "rho": rho}
    found = divergence(Radial(), values, NormalPrior(std=prior_std))
    (slope,) = torch.autograd.grad(found, rho)
    assert slope.abs().max() < 1e-12
    if size in LEAST_KL:
        assert abs(found.item() - LEAST_KL[size]) < max(0.005, 1e-3 * LEAST_KL[size])
    for factor in (0.9, 1.1):
        other = {**values, "rho": inverse_softplus(softplus(rho) * factor)}
        assert divergence(Radial(), other, NormalPrior(std=prior_std)) > found


def test_least_kl_tends_to_635_thousandths_of_a_nat_per_weight():
    values = {"mean": torch.zeros(10**6), "rho": inverse_softplus(torch.ones(10**6))}
    found = divergence(Radial(), values, NormalPrior())
    assert found.dtype == torch.float32
    assert abs(found.item() / 10**6 - 0.635) < 5e-4


def test_normal_entropy_constant_would_be_too_large_by_the_stated_nats():
    # In the published scale: the entropy of a Normal of that scale, less the exact one.
    for size, excess, digit in ((10, 15.9, 0.05), (1000, 4085, 0.5)):
        gaussian = size * Normal().noise_entropy()
        assert abs(gaussian - published_entropy(size, torch.ones(size)) - excess) < digit


@pytest.mark.parametrize("estimator", ["repar", "streamed", "direct"])
@pytest.mark.parametrize("sizes", [None, (4, 7, 9)])
def test_estimators_are_unbiased_for_the_whole_group(estimator, sizes):
    family, values, prior = Radial(sizes), parameters(20), NormalPrior(0.2, 0.8)
    expected = divergence(family, values, prior).item()
    found = torch.stack(
        [divergence(family, values, prior, estimator=estimator, num_samples=4) for _ in range(400)]
    )
    assert abs(found.mean().item() - expected) < 4 * found.std().item() / 20


def test_radial_prior_of_the_same_law_is_at_distance_zero():
    std = torch.full((6,), 0.7, dtype=torch.float64)
    values = Radial().initial(torch.full_like(std, 0.2), std)
    found = divergence(Radial(), values, RadialPrior(0.2, 0.7), num_samples=3)
    assert abs(found.item()) < 1e-12


def test_a_scale_may_be_shared():
    values = parameters(4, 3)
    values["rho"] = values["rho"][:, :1]
    spread = {**values, "rho": values["rho"].expand(4, 3)}
    prior, point = NormalPrior(0.1, 0.5), torch.randn(4, 3, dtype=torch.float64)
    family = Radial()
    torch.testing.assert_close(family.log_prob(values, point), family.log_prob(spread, point))
    found, expected = (divergence(family, each, prior) for each in (values, spread))
    torch.testing.assert_close(found, expected)


def test_a_kl_found_in_inference_mode_does_not_stand_in_the_way_of_a_gradient():
    values, prior = parameters(11), LaplacePrior()
    with torch.inference_mode():
        divergence(Radial((5, 6)), values, prior, num_samples=2)
        divergence(Radial(), values, prior, num_samples=2)
    values["rho"].requires_grad_()
    for family in (Radial((5, 6)), Radial()):
        divergence(family, values, prior, estimator="direct", num_samples=2).backward()


def test_pairs_with_no_finite_kl_are_refused():
    assert "one side of 0" in str(divergence_problem(Radial(), LogNormalPrior()))
