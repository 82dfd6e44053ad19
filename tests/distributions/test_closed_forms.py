"""Every closed form against quadrature of scipy's densities, value and gradient."""

import numpy as np
import pytest
import torch

from bayesify.distributions import (
    GeneralisedErrorPrior,
    LogUniformPrior,
    MultiplicativeNormal,
    Normal,
    NormalPrior,
    divergence,
    divergence_problem,
    families,
    priors,
)
from distributions.references import FAMILIES, PRIORS, kl_by_quadrature, points

STEP = 1e-3
PAIRS = [
    (family, prior)
    for family in FAMILIES
    for prior in PRIORS
    if divergence_problem(family, prior, "closed") is None
]


def closed(family, parameters, prior):
    return divergence(family, parameters, prior, estimator="closed")


def entries(parameters):
    """Return the parameters of every single entry."""
    names, columns = list(parameters), zip(*parameters.values(), strict=True)
    return [dict(zip(names, (value.reshape(1) for value in row), strict=True)) for row in columns]


def moved(parameters):
    """Return arrays of all entries as they are, then with each parameter a step up and down."""
    plain = {name: value.numpy() for name, value in parameters.items()}
    tables = [plain]
    for name in parameters:
        for sign in (1, -1):
            tables.append({**plain, name: plain[name] + sign * steps(parameters)[name]})
    return [np.concatenate([table[name] for table in tables]) for name in parameters]


def steps(parameters):
    """Return a step for every entry: of a mean, a share of it, as its logarithm may matter."""
    mean, *others = parameters
    size = parameters[mean].detach().abs().numpy()
    return {mean: STEP * size, **{name: np.full_like(size, STEP) for name in others}}


@pytest.mark.parametrize(("family", "prior"), PAIRS, ids=str)
def test_closed_form_and_its_gradient_are_those_of_quadrature(family, prior):
    parameters = points(family)
    found = [closed(family, entry, prior).item() for entry in entries(parameters)]
    leaves = {name: value.requires_grad_() for name, value in parameters.items()}
    total = closed(family, leaves, prior)
    gradients = torch.autograd.grad(total, list(leaves.values()), materialize_grads=True)
    with torch.no_grad():
        expected = kl_by_quadrature(family, prior, *moved(parameters)).reshape(-1, len(found))
    np.testing.assert_allclose(found, expected[0], rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(total.item(), expected[0].sum(), rtol=1e-5)
    for index, (gradient, step) in enumerate(zip(gradients, steps(leaves).values(), strict=True)):
        slope = (expected[1 + 2 * index] - expected[2 + 2 * index]) / (2 * step)
        # A central difference is right to a step squared, a slope near 0 to that of the others.
        allowed = 1e-4 * np.abs(slope) + 1e-5 * max(1.0, np.abs(slope).max())
        assert (np.abs(gradient.numpy() - slope) < allowed).all(), (gradient, slope)


def test_the_checked_pairs_are_all_that_have_a_closed_form():
    checked = {(family.name, prior.name) for family, prior in PAIRS}
    for family_name in families:
        for prior_name in priors:
            family, prior = families[family_name](), priors[prior_name]()
            if family.is_elementwise and divergence_problem(family, prior, "closed") is None:
                assert (family_name, prior_name) in checked


def priors_of(family):
    return [prior for other, prior in PAIRS if other is family]


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_closed_form_in_float32_is_that_of_float64(family):
    parameters = points(family)
    for prior in priors_of(family):
        expected = closed(family, parameters, prior)
        found = closed(family, {k: v.float() for k, v in parameters.items()}, prior)
        assert found.dtype == torch.float32
        # Terms of opposite sign, up to hundreds of nats of a narrow prior, may cancel in part.
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_a_shared_scale_counts_once_for_every_entry(family):
    first, *others = family.parameter_names
    parameters = points(family)
    mean = parameters[first].view(2, 2)
    tied = {name: parameters[name][:2].view(2, 1).requires_grad_() for name in others}
    spread = {name: value.expand(2, 2) for name, value in tied.items()}
    for prior in priors_of(family):
        found, expected = (closed(family, {first: mean, **each}, prior) for each in (tied, spread))
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
        for value in tied.values():
            slopes = [torch.autograd.grad(each, value) for each in (found, expected)]
            torch.testing.assert_close(*slopes)


@pytest.mark.parametrize("family", [Normal(), *FAMILIES[1:6]], ids=str)
def test_generalised_error_prior_of_power_two_is_the_normal_prior(family):
    parameters = points(family)
    expected = closed(family, parameters, NormalPrior(0.3, 0.7))
    found = closed(family, parameters, GeneralisedErrorPrior(0.3, 0.7, power=2.0))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)


def test_multiplicative_and_additive_noise_agree_where_they_are_the_same_law():
    values = points(MultiplicativeNormal())
    std = values["mean"].abs() * torch.sigmoid(values["logit_alpha"]).sqrt()
    found = closed(MultiplicativeNormal(), values, LogUniformPrior())
    additive = Normal().initial(values["mean"], std)
    torch.testing.assert_close(
        found, closed(Normal(), additive, LogUniformPrior()), rtol=1e-9, atol=0
    )
