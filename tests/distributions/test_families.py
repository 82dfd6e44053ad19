"""Every family: its density against scipy's, its draws against its density and its moments."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from bayesify.distributions import Horseshoe, Radial, families
from distributions.references import (
    FAMILIES,
    family_law,
    horseshoe_log_density,
    log_density,
    points,
)

NUM_DRAWS = 20_000
EACH = pytest.mark.parametrize("family", FAMILIES, ids=str)
WITH_MOMENTS = [family for family in FAMILIES if not isinstance(family, Horseshoe)]
TWO_PARAMETERS = [family for family in FAMILIES if len(family.parameter_names) == 2]


def single(family, index):
    """Return the parameters of one of the test points."""
    return {name: value[index : index + 1] for name, value in points(family).items()}


def repeated(parameters, count=NUM_DRAWS):
    return {name: value.expand(count).clone() for name, value in parameters.items()}


def plain(parameters):
    return [value.item() for value in parameters.values()]


def density(family, parameters):
    """Return the density as a function of arrays."""

    def of(value):
        with np.errstate(all="ignore"):
            return family.log_prob(parameters, torch.from_numpy(np.asarray(value))).exp().numpy()

    return of


def pieces(family, parameters):
    """Return the line, or the half the family lives on, cut at the mean and in the body."""
    mean = parameters["mean"].item()
    ends = [-np.inf, np.inf] if family.support == "line" else [0.0, math.copysign(np.inf, mean)]
    return np.sort(
        [*ends, mean, *([mean - 1, mean + 1] if family.support == "line" else [3 * mean])]
    )


def integral(function, family, parameters):
    cut = pieces(family, parameters)
    found = integrate.tanhsinh(function, cut[:-1], cut[1:], minlevel=5, rtol=1e-9, atol=1e-10)
    assert found.success.all()
    return found.integral.sum()


def test_every_registered_family_is_checked():
    checked = {family.name for family in FAMILIES} | {Radial.name}
    assert checked == set(families)


@EACH
def test_log_prob_integrates_to_one(family):
    for index in range(4):
        parameters = single(family, index)
        assert abs(integral(density(family, parameters), family, parameters) - 1) < 1e-7


@EACH
def test_log_prob_is_that_of_scipy(family):
    parameters = points(family)
    sizes = np.array([0.01, 0.2, 0.9, 2.5, 7.0])[:, None]
    values = sizes * np.sign(parameters["mean"].numpy())
    expected = log_density(family, values, *(value.numpy() for value in parameters.values()))
    found = family.log_prob(parameters, torch.from_numpy(values))
    # trigamma is right to 1e-9 in torch, and an exponent of the log-gamma law turns on it.
    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-9)


@EACH
def test_log_prob_is_minus_infinity_on_the_other_side_of_a_half_line(family):
    parameters = points(family)
    found = family.log_prob(parameters, -parameters["mean"])
    assert torch.isneginf(found).all() == (family.support == "half line")


@pytest.mark.parametrize("value", [1e-4, 0.3, 2.0, 9.0])
def test_horseshoe_density_is_the_mixture_over_half_cauchy_scales(value):
    def of(scale):
        return stats.norm.pdf(value, scale=scale) * stats.halfcauchy.pdf(scale)

    cut = np.array([0.0, value / 10, value, 10 * value, np.inf])
    found = integrate.tanhsinh(of, cut[:-1], cut[1:]).integral.sum()
    assert math.isclose(found, math.exp(horseshoe_log_density(np.array(value))), rel_tol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_horseshoe_density_is_right_where_series_and_fraction_meet_and_far_out(dtype):
    noise = torch.tensor([1e-15, 1e-6, 1.99999, 2.0, 2.00001, 15.0, 1e4, 1e15], dtype=dtype)
    noise.requires_grad_()
    found = Horseshoe().noise_log_prob(noise)
    expected = horseshoe_log_density(noise.detach().double().numpy())
    np.testing.assert_allclose(
        found.detach(), expected, rtol=4e-6 if dtype.itemsize == 4 else 1e-12
    )
    (slope,) = torch.autograd.grad(found.sum(), noise)
    step = 1e-6 * noise.detach().double().numpy()
    ahead, behind = (
        horseshoe_log_density(noise.detach().double().numpy() + s) for s in (step, -step)
    )
    np.testing.assert_allclose(slope, (ahead - behind) / (2 * step), rtol=1e-4)


@EACH
@pytest.mark.parametrize("index", range(3))
def test_draws_follow_the_law_of_log_prob(family, index):
    parameters = single(family, index)
    draws = family.draw(repeated(parameters, 4000)).numpy()
    mean = parameters["mean"].item()
    # Distances on a logarithmic grid: the density may be infinite at 0, or at the mean.
    grid = np.linspace(-90, 40, 40_001)
    of = density(family, parameters)
    if family.support == "half line":
        masses = of(math.copysign(1, mean) * np.exp(grid)) * np.exp(grid)
        below = integrate.cumulative_trapezoid(masses, grid, initial=0)
        shares = np.interp(np.log(np.abs(draws)), grid, below)
    else:
        sides = [of(mean + side * np.exp(grid)) * np.exp(grid) for side in (1, -1)]
        above, under = (integrate.cumulative_trapezoid(side, grid, initial=0) for side in sides)
        distance = np.log(np.abs(draws - mean))
        upper, lower = np.interp(distance, grid, above), np.interp(distance, grid, under)
        shares = under[-1] + np.where(draws > mean, upper, -lower)
    assert stats.kstest(shares, "uniform").pvalue > 1e-3


@pytest.mark.parametrize("family", WITH_MOMENTS, ids=str)
@pytest.mark.parametrize("index", range(3))
def test_mean_and_variance_are_those_of_scipy_and_of_the_draws(family, index):
    parameters = single(family, index)
    law = family_law(family, *plain(parameters))
    side = math.copysign(1, parameters["mean"].item()) if family.support == "half line" else 1
    assert math.isclose(family.mean(parameters).item(), side * law.mean(), rel_tol=1e-9)
    assert math.isclose(family.variance(parameters).item(), law.var(), rel_tol=1e-9)
    deviation = family.deviation(repeated(parameters)).numpy()
    variance = law.var()
    assert abs(deviation.mean()) < 4 * math.sqrt(variance / NUM_DRAWS)
    kurtosis = float(law.stats("k"))
    if 0 < kurtosis + 3 < 50:  # with heavier tails the draws tell little of the variance
        allowed = 4 * variance * math.sqrt((kurtosis + 2) / NUM_DRAWS)
        assert abs((deviation**2).mean() - variance) < allowed


@EACH
def test_draws_and_deviations_are_the_same_numbers_with_the_same_gradients(family):
    leaves = {k: v.requires_grad_() for k, v in repeated(single(family, 1), 500).items()}
    ways = (family.draw, lambda p: family.mean(p) + family.deviation(p))
    found = []
    for way in ways:
        torch.manual_seed(3)
        draws = way(leaves)
        found.append([draws, *torch.autograd.grad(draws.sum(), list(leaves.values()))])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)
    if family.support == "half line":
        assert (found[0][0] < 0).all()


def test_horseshoe_has_no_variance():
    assert torch.isinf(Horseshoe().variance(points(Horseshoe()))).all()
    assert not Horseshoe().has_moment(1)


def slopes(family, parameters, function):
    """Return the average of the gradient of a function of many draws, and its standard error."""
    leaves = {name: value.requires_grad_() for name, value in repeated(parameters).items()}
    found = torch.autograd.grad(function(family.draw(leaves)).sum(), list(leaves.values()))
    return [(each.mean().item(), each.std().item() / math.sqrt(NUM_DRAWS)) for each in found]


@EACH
@pytest.mark.parametrize("index", [0, 1])
def test_gradient_of_draws_is_the_derivative_of_the_average(family, index):
    parameters = single(family, index)

    def expected(name, step):
        moved = {**parameters, name: parameters[name] + step}
        of = density(family, moved)
        return integral(lambda w: of(w) * np.log1p(w**2), family, moved)

    found = slopes(family, parameters, lambda w: torch.log1p(w.square()))
    for name, (slope, error) in zip(parameters, found, strict=True):
        wanted = (expected(name, 1e-4) - expected(name, -1e-4)) / 2e-4
        assert abs(slope - wanted) < 4 * error + 1e-6, (name, slope, wanted, error)


@pytest.mark.parametrize("family", WITH_MOMENTS, ids=str)
def test_gradient_of_squared_draws_is_that_of_the_second_moment(family):
    parameters = single(family, 1)
    kurtosis = float(family_law(family, *plain(parameters)).stats("k"))
    if not 0 < kurtosis + 3 < 50:
        assert not family.has_moment(4) or kurtosis > 47
        return
    leaves = {name: value.clone().requires_grad_() for name, value in parameters.items()}
    second = family.mean(leaves).square() + family.variance(leaves)
    expected = torch.autograd.grad(second.sum(), list(leaves.values()))
    found = slopes(family, parameters, torch.square)
    for wanted, (slope, error) in zip(expected, found, strict=True):
        assert abs(slope - wanted.item()) < 4 * error


@EACH
def test_a_frozen_parameter_leaves_the_gradient_of_the_others(family):
    first, *_ = parameters = points(family)
    leaves = {**parameters, first: parameters[first].requires_grad_()}
    (gradient,) = torch.autograd.grad(family.draw(leaves).sum(), leaves[first])
    assert (gradient != 0).all()
