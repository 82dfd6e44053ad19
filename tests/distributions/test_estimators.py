"""Every way to average over draws: unbiased, of the variance of plain draws, with a flat graph."""

import math

import numpy as np
import pytest
import torch

from bayesify.distributions import (
    Gamma,
    GeneralisedErrorPrior,
    Horseshoe,
    InverseGamma,
    LogGammaPrior,
    Normal,
    NormalPrior,
    Radial,
    StudentT,
    StudentTPrior,
    divergence,
    divergence_problem,
)
from distributions.references import FAMILIES, PRIORS, kl_by_quadrature, points

DRAWING = ("exact_mc", "repar", "streamed")
# Of each type one, with tails light enough for a standard error to mean something.
TAME = {type(family): family for family in FAMILIES} | {
    StudentT: StudentT(degrees=11.0),
    Gamma: Gamma(least_shape=1.0),
}
SOME_PRIORS = {type(prior): prior for prior in PRIORS} | {
    GeneralisedErrorPrior: GeneralisedErrorPrior(std=0.7),
    LogGammaPrior: LogGammaPrior(mean=0.3, std=1.7, shape=2.5),
}
PAIRS = [
    (family, prior)
    for family in TAME.values()
    for prior in SOME_PRIORS.values()
    if divergence_problem(family, prior) is None
]
REPARAMETERISED = [
    (family, prior)
    for family in (*FAMILIES, Radial(), Radial((1, 3)))
    for prior in PRIORS
    if divergence_problem(family, prior, "repar") is None
]


def single(family, index=1):
    return {name: value[index : index + 1] for name, value in points(family).items()}


def repeated(family, count, index=1):
    return {name: value.expand(count).clone() for name, value in single(family, index).items()}


def value_and_gradients(family, parameters, prior, estimator, num_samples):
    leaves = {name: value.clone().requires_grad_() for name, value in parameters.items()}
    found = divergence(family, leaves, prior, estimator=estimator, num_samples=num_samples)
    gradients = torch.autograd.grad(found, list(leaves.values()), materialize_grads=True)
    return found.detach(), *gradients


def log_ratios(family, prior, *shape):
    """Return log q − log p at independent draws of one entry."""
    parameters = repeated(family, math.prod(shape))
    draws = family.draw(parameters)
    return (family.log_prob(parameters, draws) - prior.log_prob(draws)).view(shape)


def exact(family, prior):
    """Return the KL of one entry, by its closed form or by quadrature."""
    parameters = single(family)
    if divergence_problem(family, prior, "closed") is None:
        return divergence(family, parameters, prior, estimator="closed").item()
    return kl_by_quadrature(family, prior, *(value.numpy() for value in parameters.values())).item()


@pytest.mark.parametrize(("family", "prior"), PAIRS, ids=str)
def test_estimators_are_unbiased(family, prior):
    count, expected = 3000, exact(family, prior)
    spread = log_ratios(family, prior, 4000).std().item()
    parameters = repeated(family, count)
    for estimator in (*DRAWING, "direct"):
        if divergence_problem(family, prior, estimator):
            continue
        for num_samples in (1, 7):
            found = divergence(
                family, parameters, prior, estimator=estimator, num_samples=num_samples
            )
            error = spread / math.sqrt(count * num_samples)
            assert abs(found.item() / count - expected) < 4 * error + 1e-9, (estimator, num_samples)


def variance_and_error(values):
    """Return the variance of a sample, and its relative standard error."""
    deviation = values - values.mean()
    variance = deviation.square().mean()
    kurtosis = deviation.pow(4).mean() / variance.square().clamp_min(1e-300)
    return variance.item(), math.sqrt(max(kurtosis.item() - 1, 0) / values.numel())


def assert_same_variance(first, second):
    (one, of_one), (two, of_two) = variance_and_error(first), variance_and_error(second)
    if max(one, two) > 1e-16:  # else the draws cancel, in both alike
        assert abs(math.log(one / two)) < 4 * math.hypot(of_one, of_two), (one, two)


@pytest.mark.parametrize("num_samples", [1, 7])
@pytest.mark.parametrize("estimator", ["exact_mc", "repar"])
@pytest.mark.parametrize("family", TAME.values(), ids=str)
def test_variance_of_the_value_is_that_of_direct_draws(family, estimator, num_samples):
    covered = [p for f, p in PAIRS if f is family and not divergence_problem(f, p, estimator)]
    parameters, count = single(family), 300
    options = {"estimator": estimator, "num_samples": num_samples}
    for prior in covered[:1]:
        found = [divergence(family, parameters, prior, **options) for _ in range(count)]
        expected = log_ratios(family, prior, 20_000, num_samples).mean(1)
        assert_same_variance(torch.stack(found), expected)


@pytest.mark.parametrize(
    ("family", "prior"),
    [pair for pair in PAIRS if divergence_problem(*pair, "repar") is None],
    ids=str,
)
def test_variance_of_the_gradient_is_that_of_direct_draws(family, prior):
    parameters = repeated(family, 4000)
    expected = value_and_gradients(family, parameters, prior, "direct", 7)[1:]
    for estimator in DRAWING[:2]:
        if divergence_problem(family, prior, estimator) is None:
            found = value_and_gradients(family, parameters, prior, estimator, 7)[1:]
            for first, second in zip(found, expected, strict=True):
                assert_same_variance(first, second)


@pytest.mark.parametrize(("family", "prior"), REPARAMETERISED, ids=str)
def test_repar_is_direct_over_the_same_noise(family, prior, monkeypatch):
    parameters, num_samples = points(family), 5
    cases = [parameters]
    if len(parameters) == 2 and not getattr(family, "sizes", None):
        mean, rho = parameters.values()
        cases.append({"mean": mean.view(2, 2), "rho": rho[:2].view(2, 1)})
    noises = [[family.standard_noise(case["mean"]) for _ in range(num_samples)] for case in cases]
    for case, noise in zip(cases, noises, strict=True):
        found = []
        for estimator in ("repar", "direct"):
            drawn = iter(noise)
            replacement = lambda self, like, drawn=drawn: next(drawn)  # noqa: E731
            monkeypatch.setattr(type(family), "standard_noise", replacement)
            found.append(value_and_gradients(family, case, prior, estimator, num_samples))
            assert next(drawn, None) is None
        for one, other in zip(*found, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("family", [*TAME.values(), Radial()], ids=str)
def test_streamed_is_direct_under_the_same_seed(family):
    for prior in SOME_PRIORS.values():
        if divergence_problem(family, prior):
            continue
        found = []
        for estimator in ("streamed", "direct"):
            torch.manual_seed(5)
            found.append(value_and_gradients(family, points(family), prior, estimator, 3))
        for one, other in zip(*found, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def num_nodes(tensor):
    """Return how many nodes its graph has."""
    seen, left = set(), [tensor.grad_fn]
    while left:
        node = left.pop()
        if node is not None and node not in seen:
            seen.add(node)
            left += [parent for parent, _ in node.next_functions]
    return len(seen)


@pytest.mark.parametrize("family", [*TAME.values(), Radial()], ids=str)
def test_graph_grows_with_the_draws_of_direct_alone(family):
    leaves = {name: value.requires_grad_() for name, value in points(family).items()}
    ways = {}
    for prior in SOME_PRIORS.values():
        for way in (*DRAWING, "direct"):
            if divergence_problem(family, prior, way) is None:
                ways.setdefault(way, prior)
    for way, prior in ways.items():
        one, ten, hundred = (
            num_nodes(divergence(family, leaves, prior, estimator=way, num_samples=count))
            for count in (1, 10, 100)
        )
        if way == "direct":
            assert ten - one == 9 * ((hundred - one) // 99) > 9
            assert (hundred - one) % 99 == 0
        else:
            assert one == ten == hundred


@pytest.mark.parametrize("estimator", DRAWING)
def test_bfloat16_parameters_lose_nothing_over_many_draws(estimator):
    parameters = {"mean": torch.randn(64).bfloat16(), "rho": torch.randn(64).bfloat16() - 1}
    found = []
    for dtype in (torch.bfloat16, torch.float32):
        torch.manual_seed(1)
        values = {name: value.to(dtype) for name, value in parameters.items()}
        found.append(value_and_gradients(Normal(), values, NormalPrior(0.2, 0.6), estimator, 600))
    value, *gradients = found[0]
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, found[1][0], rtol=1e-5, atol=1e-5)
    for gradient, expected in zip(gradients, found[1][1:], strict=True):
        assert gradient.dtype == torch.bfloat16
        # Rounded to 8 bits at the end; by repar also each of the three terms that gradients of
        # order 1 are sums of. A sum of 600 draws in 8 bits would lose half.
        allowed = 3 * 2**-8 if estimator == "repar" else 1e-3
        torch.testing.assert_close(gradient.float(), expected, rtol=2**-8, atol=allowed)


@pytest.mark.parametrize("estimator", DRAWING)
def test_a_frozen_scale_costs_nothing_and_no_gradient_gives_the_same_value(estimator):
    values = points(Normal())
    options = {"estimator": estimator, "num_samples": 3}
    torch.manual_seed(2)
    plain = divergence(Normal(), values, NormalPrior(0.2, 0.6), **options)
    assert not plain.requires_grad
    values["mean"].requires_grad_()
    torch.manual_seed(2)
    found = divergence(Normal(), values, NormalPrior(0.2, 0.6), **options)
    torch.testing.assert_close(found.detach(), plain)
    (3.0 * found).backward()
    assert values["rho"].grad is None
    torch.manual_seed(2)
    _, expected, _ = value_and_gradients(
        Normal(), points(Normal()), NormalPrior(0.2, 0.6), estimator, 3
    )
    torch.testing.assert_close(values["mean"].grad, 3.0 * expected)


def test_streamed_can_be_transformed():
    values, prior = points(Normal()), StudentTPrior()

    def of(rho):
        torch.manual_seed(4)
        parameters = {**values, "rho": rho}
        return divergence(Normal(), parameters, prior, estimator="streamed", num_samples=3)

    found = torch.func.grad(of)(values["rho"])
    rho = values["rho"].clone().requires_grad_()
    torch.testing.assert_close(found, torch.autograd.grad(of(rho), rho)[0])


@pytest.mark.parametrize("estimator", ["closed", *DRAWING, "direct"])
def test_no_entries_have_no_divergence(estimator):
    values = {"mean": torch.zeros(0), "rho": torch.zeros(0)}
    found = divergence(Normal(), values, NormalPrior(), estimator=estimator, num_samples=3)
    assert found == 0


@pytest.mark.parametrize("family", [Horseshoe(), InverseGamma(), Gamma()], ids=str)
def test_heavy_tails_are_averaged_to_the_kl_of_quadrature(family):
    # Log densities only: their averages have a variance where the weights themselves have none.
    prior, count = StudentTPrior(mean=0.3, std=0.8, degrees=5.0), 40_000
    expected = exact(family, prior)
    found = log_ratios(family, prior, count)
    assert abs(found.mean().item() - expected) < 4 * found.std().item() / np.sqrt(count)
