"""Pairs whose KL is infinite are refused with the reason, before anything is changed."""

import copy

import pytest
import torch
from torch import nn

import bayesify as bf
from bayesify.distributions import (
    ChiSquaredPrior,
    DirichletPrior,
    Erlang,
    ErlangPrior,
    Exponential,
    ExponentialPrior,
    Gamma,
    GammaPrior,
    GeneralisedError,
    GeneralisedErrorPrior,
    Horseshoe,
    HorseshoePrior,
    InverseGamma,
    InverseGammaPrior,
    InverseGaussianPrior,
    Laplace,
    LaplacePrior,
    LogGamma,
    LogGammaPrior,
    Logistic,
    LogisticPrior,
    LogNormal,
    LogNormalPrior,
    LogUniformPrior,
    MultiplicativeNormal,
    Normal,
    NormalPrior,
    ParetoPrior,
    Radial,
    RadialPrior,
    Rayleigh,
    RayleighPrior,
    ScaleMixturePrior,
    StandardWald,
    StandardWaldPrior,
    StudentT,
    StudentTPrior,
    Weibull,
    WeibullPrior,
    divergence,
    divergence_problem,
)

ONE_OVER_SIZE = [InverseGammaPrior(), InverseGaussianPrior(), StandardWaldPrior()]
WHOLE_LINE = [
    Normal(),
    Laplace(),
    Logistic(),
    StudentT(),
    GeneralisedError(),
    LogGamma(),
    Horseshoe(),
    MultiplicativeNormal(),
    Radial(),
]
HALF_LINE = [
    Exponential(),
    Rayleigh(),
    Erlang(),
    StandardWald(),
    LogNormal(),
    Gamma(),
    Weibull(),
    InverseGamma(),
]
OF_SIZES = [
    ExponentialPrior(),
    GammaPrior(),
    ErlangPrior(),
    ChiSquaredPrior(),
    RayleighPrior(),
    WeibullPrior(),
    LogNormalPrior(),
    *ONE_OVER_SIZE,
]
VALUES = {"mean": torch.ones(2), "rho": torch.zeros(2), "logit_alpha": torch.zeros(2)}


def refusal(family, prior):
    """Return the reason, which `divergence` gives too, by every estimator."""
    reason = divergence_problem(family, prior)
    if reason is not None:
        parameters = {name: VALUES[name] for name in family.parameter_names}
        for estimator in ("auto", "closed", "direct"):
            with pytest.raises(ValueError, match=r"the KL between .* infinite") as raised:
                divergence(family, parameters, prior, estimator=estimator, num_samples=1)
            assert str(raised.value) == reason
    return reason


@pytest.mark.parametrize("prior", ONE_OVER_SIZE, ids=str)
@pytest.mark.parametrize(
    "family",
    [Exponential(), Gamma(), Gamma(0.99), Weibull(), Weibull(0.99), Erlang(1)],
    ids=str,
)
def test_priors_that_need_the_mean_of_one_over_size_refuse_density_at_zero(family, prior):
    reason = refusal(family, prior)
    assert reason is not None
    assert f"the {family.name!r} family and the {prior.name!r} prior" in reason
    assert "it needs the mean of |w|^-1" in reason
    assert ("raise its least_shape" in reason) == hasattr(family, "least_shape")


@pytest.mark.parametrize("prior", ONE_OVER_SIZE, ids=str)
@pytest.mark.parametrize(
    "family",
    [
        Gamma(1.0),
        Weibull(1.0),
        Erlang(2),
        Rayleigh(),
        StandardWald(),
        LogNormal(),
        InverseGamma(),
    ],
    ids=str,
)
def test_priors_that_need_the_mean_of_one_over_size_take_the_others(family, prior):
    assert refusal(family, prior) is None
    parameters = {name: VALUES[name] for name in family.parameter_names}
    assert torch.isfinite(divergence(family, parameters, prior))


@pytest.mark.parametrize(
    ("least_shape", "prior", "is_refused"),
    [
        (2.0, WeibullPrior(shape=3.0), True),
        (3.0, WeibullPrior(shape=3.0), False),
        (2.0, WeibullPrior(shape=2.0), False),
        (2.0, GeneralisedErrorPrior(power=4.0), True),
        (4.0, GeneralisedErrorPrior(power=4.0), False),
        (2.0, NormalPrior(), False),
        (2.0, RayleighPrior(), False),
        (2.0, ExponentialPrior(), False),
        (2.0, ChiSquaredPrior(), False),
    ],
    ids=str,
)
def test_inverse_gamma_has_the_moments_of_its_least_shape(least_shape, prior, is_refused):
    reason = refusal(InverseGamma(least_shape), prior)
    assert (reason is not None) == is_refused
    if reason:
        assert "raise its least_shape" in reason


@pytest.mark.parametrize("prior", OF_SIZES, ids=str)
@pytest.mark.parametrize("family", WHOLE_LINE, ids=str)
def test_families_of_the_whole_line_are_refused_by_priors_of_sizes(family, prior):
    reason = refusal(family, prior)
    assert reason is not None
    assert "is infinite: the prior covers one side of 0, the posterior both" in reason
    assert "take a family of the half line" in reason


@pytest.mark.parametrize("family", [*WHOLE_LINE, *HALF_LINE], ids=str)
def test_every_family_is_refused_by_pareto_and_dirichlet(family):
    assert "sizes above its minimum" in str(refusal(family, ParetoPrior()))
    assert "rows that sum to 1" in str(refusal(family, DirichletPrior()))


@pytest.mark.parametrize(
    ("family", "prior", "power"),
    [
        (StudentT(3.0), GeneralisedErrorPrior(power=4.0), "4"),
        (StudentT(4.0), GeneralisedErrorPrior(power=4.0), "4"),
        (StudentT(3.0), GeneralisedErrorPrior(power=3.0), "3"),
        (Horseshoe(), NormalPrior(), "2"),
        (Horseshoe(), ScaleMixturePrior(), "2"),
        (Horseshoe(), RadialPrior(), "2"),
        (Horseshoe(), GeneralisedErrorPrior(), "1.5"),
        (Horseshoe(), GeneralisedErrorPrior(power=1.0), "1"),
        (Horseshoe(), LaplacePrior(), "1"),
        (Horseshoe(), LogisticPrior(), "1"),
    ],
    ids=str,
)
def test_tails_too_heavy_for_a_prior_are_refused(family, prior, power):
    assert f"it needs the mean of |w|^{power}, which" in str(refusal(family, prior))


@pytest.mark.parametrize(
    ("family", "prior"),
    [
        (StudentT(4.5), GeneralisedErrorPrior(power=4.0)),
        (StudentT(2.1), NormalPrior()),
        (Horseshoe(), HorseshoePrior()),
        (Horseshoe(), StudentTPrior()),
        (Horseshoe(), LogUniformPrior()),
        (Horseshoe(), GeneralisedErrorPrior(power=0.5)),
        (Normal(), LogGammaPrior()),
        (Radial(), LogGammaPrior()),
        (LogGamma(), LogGammaPrior()),
        (Rayleigh(), LogGammaPrior()),
    ],
    ids=str,
)
def test_tails_a_prior_can_bear_are_taken(family, prior):
    assert refusal(family, prior) is None


@pytest.mark.parametrize(
    "family", [Laplace(), Logistic(), StudentT(), Horseshoe(), LogNormal(), Exponential()], ids=str
)
def test_a_prior_that_falls_as_an_exponential_refuses_slower_tails(family):
    assert "it needs the mean of exp(w)" in str(refusal(family, LogGammaPrior()))


@pytest.mark.parametrize(
    ("family", "prior", "estimator", "message"),
    [
        (Laplace(), LaplacePrior(), "exact_mc", "no 'exact_mc' KL is known between the 'laplace'"),
        (Laplace(), LaplacePrior(), "repar", "does not cover .* does not part"),
        (Gamma(), GammaPrior(), "repar", "the 'gamma' family has no noise of a fixed law"),
        (Normal(), HorseshoePrior(), "repar", "the prior's log density is no sum of powers"),
        (Normal(), HorseshoePrior(), "closed", "no closed form is known"),
        (StudentT(), StudentTPrior(), "closed", "no closed form is known"),
    ],
    ids=str,
)
def test_an_estimator_a_pair_does_not_have_is_refused(family, prior, estimator, message):
    with pytest.raises(ValueError, match=message):
        divergence(family, VALUES, prior, estimator=estimator)
    assert divergence_problem(family, prior) is None


@pytest.mark.parametrize(
    ("family", "kl", "estimator"),
    [
        (Normal(), "kingma", "auto"),
        (Normal(), "kingma", "closed"),
        (Normal(), "molchanov", "streamed"),
        (Laplace(), "molchanov", "auto"),
        (MultiplicativeNormal(), "kingma", "direct"),
    ],
)
def test_a_published_fit_is_refused_where_it_does_not_hold(family, kl, estimator):
    assert divergence_problem(family, LogUniformPrior(kl), estimator) is not None
    with pytest.raises(ValueError, match=kl):
        divergence(family, VALUES, LogUniformPrior(kl), estimator=estimator)
    with pytest.raises(ValueError, match=kl):
        bf.MonteCarloKL(family=family, prior=LogUniformPrior(kl), estimator=estimator)


@pytest.mark.parametrize("name", ["exact", "Closed", ""])
def test_an_unknown_estimator_is_an_error_that_lists_the_known(name):
    for call in (
        lambda: divergence(Normal(), VALUES, NormalPrior(), estimator=name),
        lambda: bf.MonteCarloKL(estimator=name),
    ):
        with pytest.raises(
            (ValueError, LookupError), match=f"unknown estimator {name!r}"
        ) as raised:
            call()
        assert all(known in str(raised.value) for known in ("closed", "exact_mc", "streamed"))


@pytest.mark.parametrize("count", [0, -1, True, 1.5, "10", None])
def test_a_number_of_samples_that_is_none_is_an_error(count):
    for call in (
        lambda: divergence(Normal(), VALUES, NormalPrior(), num_samples=count),
        lambda: bf.MonteCarloKL(num_samples=count),
    ):
        with pytest.raises((ValueError, TypeError), match="num_samples must be a whole number"):
            call()


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def infinite_at_the_last(path, shape):
    return ExponentialPrior() if path.startswith("2") else NormalPrior()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"family": "normal", "prior": "exponential"}, "one side of 0"),
        ({"family": "gamma", "prior": "inverse_gamma"}, "raise its least_shape"),
        ({"family": "horseshoe", "prior": "normal"}, "mean of |w|^2"),
        ({"family": "normal", "prior": infinite_at_the_last}, "one side of 0"),
        ({"family": "laplace", "prior": "laplace", "estimator": "repar"}, "does not part"),
        ({"family": "normal", "prior": {"name": "normal", "std": -1.0}}, "must be positive"),
    ],
)
def test_a_refused_conversion_leaves_the_model_as_it_was(options, message):
    net = model()
    before, modules = copy.deepcopy(net.state_dict()), dict(net.named_modules())
    with pytest.raises(ValueError) as raised:  # noqa: PT011
        bf.convert(net, bf.MonteCarloKL(**options))
    assert message in str(raised.value)
    assert dict(net.named_modules()) == modules
    assert net.state_dict().keys() == before.keys()
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert type(net[0]) is nn.Linear
    bf.convert(net, bf.MonteCarloKL(family="normal", prior="normal"))
