"""Every family: its start from a trained tensor, storage in few bits, and its extremes."""

import math

import pytest
import torch

from bayesify.distributions import (
    ChiSquaredPrior,
    Erlang,
    ErlangPrior,
    Gamma,
    GeneralisedError,
    Horseshoe,
    InverseGamma,
    LaplacePrior,
    LogGamma,
    LogNormal,
    MultiplicativeNormal,
    NormalPrior,
    ScaleMixturePrior,
    StudentT,
    StudentTPrior,
    Weibull,
    divergence,
    divergence_problem,
    softplus,
)
from bayesify.distributions.family import as_family, as_prior, describe
from bayesify.distributions.scaling import Scaling
from bayesify.distributions.statistic import Power
from distributions.references import FAMILIES, PRIORS

EACH = pytest.mark.parametrize("family", FAMILIES, ids=str)
SCALED = [f for f in FAMILIES if len(f.parameter_names) == 2 and not isinstance(f, Horseshoe)]
TENSOR = torch.tensor([0.7, -0.02, -1.3, 0.4, 0.09])
# std / |mean| that a start can have: below alpha = 1/2, below the variance of a gamma of shape 0.3
# or of the least shape, above that of the least inverse gamma shape.
RATIOS = {
    "multiplicative_normal": [1e-3, 0.05, 0.7],
    "gamma": [1e-3, 0.05, 0.7, 1.8],
    "inverse_gamma": [1e-3, 0.05, 0.4, 0.55],
    "weibull": [0.003, 0.05, 0.7, 0.95],
}


def start(family, tensor=TENSOR, ratio=0.3, dtype=torch.float32):
    tensor = tensor.to(dtype)
    return family.initial(tensor, (tensor.abs() * ratio).to(dtype))


def finite(*tensors):
    return all(torch.isfinite(tensor).all() for tensor in tensors)


@EACH
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_start_has_the_mean_of_the_trained_tensor(family, dtype):
    values = start(family, dtype=dtype)
    assert tuple(values) == family.parameter_names
    assert torch.equal(family.mean(values), TENSOR.to(dtype))
    assert all(value.dtype == dtype for value in values.values())


@pytest.mark.parametrize(
    ("family", "ratio"),
    [(f, r) for f in SCALED for r in RATIOS.get(f.name, [1e-3, 0.05, 0.7, 5.0])],
    ids=str,
)
def test_start_has_the_asked_standard_deviation(family, ratio):
    # A shape above the least one has a spread below that of the least.
    ratio = min(ratio, {1.0: 0.85, 5.0: 0.5}.get(getattr(family, "least_shape", 0), math.inf))
    found = family.variance(start(family, ratio=ratio)).sqrt()
    allowed = 0.01 if isinstance(family, Weibull) else 1e-5
    # The size of rho grows with log std, or with the shape: it is stored to float32.
    torch.testing.assert_close(found, ratio * TENSOR.abs(), rtol=allowed, atol=0)


@pytest.mark.parametrize("family", [f for f in FAMILIES if isinstance(f, Scaling)], ids=str)
def test_one_parameter_families_have_a_spread_that_follows_the_mean(family):
    first, second = start(family, ratio=0.01), start(family, ratio=2.0)
    assert torch.equal(family.variance(first), family.variance(second))


def test_horseshoe_starts_with_the_asked_scale():
    values = start(Horseshoe(), ratio=0.2)
    torch.testing.assert_close(softplus(values["rho"]), 0.2 * TENSOR.abs())


@pytest.mark.parametrize("family", [f for f in FAMILIES if f.support == "half line"], ids=str)
def test_a_weight_of_zero_starts_on_a_side_at_the_standard_deviation(family):
    values = family.initial(torch.tensor([0.0, -0.0, -0.3]), torch.full((3,), 0.1))
    assert values["mean"].tolist() == pytest.approx([0.1, 0.1, -0.3])
    assert (family.draw(values).sign() == values["mean"].sign()).all()


@pytest.mark.parametrize("family", SCALED, ids=str)
def test_entries_that_share_a_std_share_a_scale(family):
    tensor = torch.tensor([[0.5, -0.5, 0.5], [-0.2, 0.2, 0.2]])
    std = torch.tensor([[0.1], [0.02]])
    values = family.initial(tensor, std)
    assert values[family.parameter_names[1]].shape == (2, 1)
    found = family.variance(values).expand(2, 3).sqrt()
    torch.testing.assert_close(found, std.expand(2, 3), rtol=0.01, atol=0)
    draws = torch.stack([family.deviation(values) for _ in range(4)])
    assert draws.shape == (4, 2, 3)
    assert len(draws.unique()) == draws.numel()
    scalar = family.initial(tensor[0], torch.tensor(0.1))
    torch.testing.assert_close(family.variance(scalar).expand(3), torch.full((3,), 0.01))


@EACH
def test_bfloat16_storage_is_drawn_and_measured_in_float32(family):
    tensor = torch.randn(1000)
    values = start(family, tensor, dtype=torch.bfloat16)
    assert all(value.dtype == torch.bfloat16 for value in values.values())
    found = [family.deviation(values), family.variance(values), family.draw(values)]
    found.append(family.log_prob(values, found[-1]))
    assert all(each.dtype == torch.float32 for each in found)
    assert finite(found[0], found[2], found[3])
    assert not torch.equal(found[0], found[0].bfloat16().float())
    precise = {name: value.double() for name, value in values.items()}
    expected = family.variance(precise).float()
    torch.testing.assert_close(found[1], expected, rtol=1e-4, atol=1e-12)


def kl_and_gradients(family, values, prior, estimator):
    leaves = {name: value.clone().requires_grad_() for name, value in values.items()}
    found = divergence(family, leaves, prior, estimator=estimator, num_samples=2)
    return found, *torch.autograd.grad(found, list(leaves.values()), materialize_grads=True)


@EACH
@pytest.mark.parametrize("estimator", ["closed", "exact_mc", "repar", "streamed"])
def test_kl_and_gradients_are_finite_as_the_noise_vanishes(family, estimator):
    is_shape = family.name in ("gamma", "inverse_gamma", "weibull")
    # As wide as float32 goes; a shape is the larger, the less noise there is.
    rho = torch.tensor([20.0, 1e3, 1e6] if is_shape else [-200.0, -100.0, -60.0, -40.0, -16.0])
    mean = torch.tensor([1.0, -10.0, 1e-3, -1e-8, 1e-15])
    grid = torch.cartesian_prod(mean, rho).unbind(1)
    values = dict(zip(family.parameter_names, grid, strict=False))
    assert finite(family.deviation(values))
    for prior in PRIORS:
        if divergence_problem(family, prior, estimator) is None:
            found = kl_and_gradients(family, values, prior, estimator)
            assert finite(*found), (prior, found)


@EACH
def test_tiny_means_start_finite(family):
    sizes = torch.tensor([1e-6, 1e-18, 1e-21, 1e-30, 1e-37])
    tensor = torch.cat([sizes, -sizes])
    values = family.initial(tensor, torch.full_like(tensor, 0.1))
    draws = family.draw(values)
    variances = [] if isinstance(family, Horseshoe) else [family.variance(values)]
    assert finite(*values.values(), draws, family.deviation(values), *variances)
    assert finite(family.log_prob(values, draws))
    if family.support == "half line":
        assert (draws.sign() == tensor.sign()).all()
    for prior in (StudentTPrior(), NormalPrior(), LaplacePrior(), ChiSquaredPrior()):
        if divergence_problem(family, prior) is None:
            chosen = "streamed" if divergence_problem(family, prior, "closed") else "closed"
            assert finite(kl_and_gradients(family, values, prior, chosen)[0])


@pytest.mark.parametrize("family", [Gamma(), InverseGamma(), Weibull(), LogNormal()], ids=str)
@pytest.mark.parametrize("ratio", [1e-3, 1e-2, 0.1])
def test_float32_is_enough_for_narrow_laws(family, ratio):
    values = start(family, ratio=ratio)
    precise = {name: value.double() for name, value in values.items()}
    for prior in (NormalPrior(0.3, 0.7), ChiSquaredPrior(5.0)):
        found = kl_and_gradients(family, values, prior, "closed")
        expected = kl_and_gradients(family, precise, prior, "closed")
        # Five terms of a few nats each, and gradients of 1 / mean: rounding of these, no more.
        torch.testing.assert_close(found[0].double(), expected[0], rtol=1e-5, atol=1e-5)
        for slope, wanted in zip(found[1:], expected[1:], strict=True):
            torch.testing.assert_close(slope.double(), wanted, rtol=1e-3, atol=1e-9)
    variance = family.variance(values).double()
    torch.testing.assert_close(variance, family.variance(precise), rtol=1e-5, atol=0)


@pytest.mark.parametrize("family", [Gamma(1.0), Weibull(1.0), InverseGamma(3.0)], ids=str)
def test_shape_stays_above_the_least_in_float32(family):
    values = {"mean": torch.tensor([0.5]), "rho": torch.tensor([-200.0])}
    power = 3.0 if isinstance(family, InverseGamma) else -1.0
    assert finite(family.expected(Power(power), values))


@EACH
def test_family_survives_a_json_round_trip(family):
    assert as_family(describe(family)) == family


@pytest.mark.parametrize("prior", PRIORS, ids=str)
def test_prior_survives_a_json_round_trip(prior):
    assert as_prior(describe(prior)) == prior
    assert prior.problem() is None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: StudentT(degrees=2.0), r"degrees must be finite and above 2, got 2\.0"),
        (lambda: StudentT(degrees=math.inf), "degrees must be finite and above 2, got inf"),
        (lambda: GeneralisedError(power=0.0), r"power must be positive and finite, got 0\.0"),
        (lambda: GeneralisedError(power=math.nan), "power must be positive and finite, got nan"),
        (lambda: LogGamma(shape=-1.0), r"shape must be positive and finite, got -1\.0"),
        (lambda: Erlang(shape=0), "shape must be a whole number >= 1, got 0"),
        (lambda: Erlang(shape=2.5), r"shape must be a whole number >= 1, got 2\.5"),
        (lambda: Erlang(shape=True), "shape must be a whole number >= 1, got True"),
        (lambda: Gamma(least_shape=-0.1), r"least_shape must be finite and >= 0, got -0\.1"),
        (lambda: Weibull(least_shape=math.nan), "least_shape must be finite and >= 0, got nan"),
        (lambda: InverseGamma(least_shape=1.0), r"least_shape must be finite and >= 2, got 1\.0"),
    ],
)
def test_an_impossible_option_of_a_family_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("prior", "problem"),
    [
        (ErlangPrior(shape=1.5), "the prior's shape must be a whole number, got 1.5"),
        (ErlangPrior(shape=math.nan), "the prior's shape must be positive and finite, got nan"),
        (ErlangPrior(shape=math.inf), "the prior's shape must be positive and finite, got inf"),
        (StudentTPrior(degrees=2.0), "the prior's degrees must be finite and above 2, got 2.0"),
        (StudentTPrior(degrees=math.nan), "the prior's degrees must be finite, got nan"),
        (ScaleMixturePrior(share=1.0), "the prior's share must lie in (0, 1), got 1.0"),
        (ScaleMixturePrior(narrow_std=0.0), "the prior's narrow_std must be positive and finite"),
        (ChiSquaredPrior(degrees=-1.0), "the prior's degrees must be positive and finite"),
    ],
)
def test_an_impossible_option_of_a_prior_is_refused(prior, problem):
    found = prior.problem()
    assert found is not None
    assert found.startswith(problem)
    assert divergence_problem(MultiplicativeNormal(), prior) == found


def test_unknown_names_and_options_are_refused():
    with pytest.raises(LookupError, match=r"unknown family 'gama'\. Did you mean 'gamma'"):
        as_family("gama")
    with pytest.raises(TypeError, match="unknown option of the family 'student_t' 'degree'"):
        as_family({"name": "student_t", "degree": 5})
    with pytest.raises(TypeError, match="prior must be a name, a table of a name and options"):
        as_prior(3.0)  # pyright: ignore[reportArgumentType]
