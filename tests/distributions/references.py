"""Densities by scipy and integrals by quadrature: formulas the library does not share."""

import math

import numpy as np
import torch
from scipy import integrate, special, stats

from bayesify.distributions import (
    ChiSquaredPrior,
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
)

FAMILIES = [
    Normal(),
    Laplace(),
    Logistic(),
    StudentT(),
    StudentT(degrees=11.0),
    GeneralisedError(),
    GeneralisedError(power=0.8),
    GeneralisedError(power=4.0),
    LogGamma(),
    LogGamma(shape=0.4),
    LogGamma(shape=6.0),
    Horseshoe(),
    MultiplicativeNormal(),
    Exponential(),
    Rayleigh(),
    Erlang(),
    Erlang(shape=2),
    StandardWald(),
    LogNormal(),
    Gamma(),
    Gamma(least_shape=1.0),
    Weibull(),
    Weibull(least_shape=1.0),
    InverseGamma(),
    InverseGamma(least_shape=5.0),
]
"""Every family of independent entries, with several options."""

PRIORS = [
    NormalPrior(),
    NormalPrior(mean=-0.4, std=0.3),
    LaplacePrior(),
    LaplacePrior(mean=0.25, std=0.6),
    LogisticPrior(mean=-0.2, std=1.4),
    StudentTPrior(mean=0.3, std=0.8, degrees=5.0),
    GeneralisedErrorPrior(std=0.7),
    GeneralisedErrorPrior(mean=0.2, std=1.3, power=4.0),
    LogGammaPrior(),
    LogGammaPrior(mean=0.3, std=1.7, shape=2.5),
    HorseshoePrior(scale=0.7),
    ScaleMixturePrior(narrow_std=0.05, share=0.3),
    LogUniformPrior(),
    ExponentialPrior(),
    ExponentialPrior(rate=2.5),
    GammaPrior(shape=0.6, rate=1.7),
    ErlangPrior(shape=3, rate=0.8),
    ChiSquaredPrior(),
    ChiSquaredPrior(degrees=5.0),
    RayleighPrior(),
    RayleighPrior(scale=0.4),
    WeibullPrior(shape=1.6, scale=0.8),
    WeibullPrior(shape=0.7, scale=1.5),
    LogNormalPrior(),
    LogNormalPrior(log_mean=-0.8, log_std=0.6),
    InverseGammaPrior(),
    InverseGammaPrior(shape=2.5, scale=0.3),
    InverseGaussianPrior(mean=0.7, shape=1.8),
    StandardWaldPrior(scale=0.6),
]
"""Every prior of independent entries that has a KL from one of them, with several options."""

SPREADS = {"gamma": 0.8, "weibull": 1.1, "inverse_gamma": 1.5, "multiplicative_normal": -1.0}
"""A rho at which the second parameter is neither small nor large; where there is none, -0.4."""


def points(family):
    """Return parameters of four entries: both sides of 0, near it and far, narrow and wide."""
    start = SPREADS.get(family.name, -0.4)
    mean = torch.tensor([0.7, -0.3, -1.2, 0.05], dtype=torch.float64)
    second = start + torch.tensor([0.0, -0.7, 0.6, 0.3], dtype=torch.float64)
    return dict(zip(family.parameter_names, (mean, second), strict=False))


def softplus(rho):
    return np.logaddexp(0.0, rho)


def family_law(family, mean, second=None):
    """Return the scipy law of w, or of |w| for a family of the half line; None if it has none."""
    size = np.abs(mean)
    positive = softplus(second) if second is not None else None
    match family:
        case Normal() | Radial():
            return stats.norm(mean, positive)
        case MultiplicativeNormal():
            return stats.norm(mean, size * np.sqrt(special.expit(second)))
        case Laplace() | Logistic() | StudentT() | GeneralisedError() | LogGamma():
            return _line_law(family, mean, positive)
        case Exponential():
            return stats.expon(scale=size)
        case Rayleigh():
            return stats.rayleigh(scale=size / math.sqrt(math.pi / 2))
        case Erlang():
            return stats.erlang(family.shape, scale=size / family.shape)
        case StandardWald():
            return stats.invgauss(1.0, scale=size)
        case LogNormal():
            return stats.lognorm(positive, scale=size * np.exp(-(positive**2) / 2))
    return _shaped_law(family, size, positive)


def _shaped_law(family, size, positive):
    match family:
        case Gamma():
            shape = family.least_shape + positive
            return stats.gamma(shape, scale=size / shape)
        case Weibull():
            shape = family.least_shape + positive
            return stats.weibull_min(shape, scale=size / special.gamma(1 + 1 / shape))
        case InverseGamma():
            shape = family.least_shape + positive
            return stats.invgamma(shape, scale=size * (shape - 1))
    return None


def _line_law(record, mean, std):
    """Return the scipy law of a family or a prior of the whole line with this mean and std."""
    match record:
        case Normal() | NormalPrior() | RadialPrior():
            return stats.norm(mean, std)
        case Laplace() | LaplacePrior():
            return stats.laplace(mean, std / math.sqrt(2))
        case Logistic() | LogisticPrior():
            return stats.logistic(mean, std * math.sqrt(3) / math.pi)
        case StudentT(degrees=degrees) | StudentTPrior(degrees=degrees):
            return stats.t(degrees, mean, std * math.sqrt((degrees - 2) / degrees))
        case GeneralisedError(power=power) | GeneralisedErrorPrior(power=power):
            unit = math.sqrt(special.gamma(1 / power) / special.gamma(3 / power))
            return stats.gennorm(power, mean, std * unit)
        case LogGamma(shape=shape) | LogGammaPrior(shape=shape):
            scale = std / math.sqrt(special.polygamma(1, shape))
            return stats.loggamma(shape, mean - scale * special.digamma(shape), scale)
    return None


def _half_line_law(prior):
    match prior:
        case ExponentialPrior():
            return stats.expon(scale=1 / prior.rate)
        case GammaPrior():
            return stats.gamma(prior.shape, scale=1 / prior.rate)
        case ChiSquaredPrior():
            return stats.chi2(prior.degrees)
        case RayleighPrior():
            return stats.rayleigh(scale=prior.scale)
        case WeibullPrior():
            return stats.weibull_min(prior.shape, scale=prior.scale)
        case LogNormalPrior():
            return stats.lognorm(prior.log_std, scale=math.exp(prior.log_mean))
        case InverseGammaPrior():
            return stats.invgamma(prior.shape, scale=prior.scale)
        case InverseGaussianPrior():
            return stats.invgauss(prior.mean / prior.shape, scale=prior.shape)
        case StandardWaldPrior():
            return stats.invgauss(1.0, scale=prior.scale)
    return None


def horseshoe_log_density(noise):
    """Return log ∫ N(x; 0, λ²) 2 / (π (1 + λ²)) dλ, by the exponential integral."""
    half = np.maximum(noise**2 / 2, 1e-300)
    # Beyond 100 exp overflows, and a few terms of the asymptotic series reach float64.
    near = np.exp(np.minimum(half, 100.0)) * special.exp1(np.minimum(half, 100.0))
    far = sum(special.factorial(k) * (-1 / np.maximum(half, 100.0)) ** k for k in range(11)) / half
    return np.log(np.where(half < 100, near, far)) - 0.5 * math.log(2 * math.pi**3)


def log_density(family, w, mean, second=None):
    """Return log q(w), w on the side of the mean."""
    if isinstance(family, Horseshoe):
        scale = softplus(second)
        return horseshoe_log_density((w - mean) / scale) - np.log(scale)
    law = family_law(family, mean, second)
    return law.logpdf(np.abs(w) if family.support == "half line" else w)


def prior_log_density(prior, w):
    """Return log p(w); a prior of the half line is one of |w|."""
    match prior:
        case HorseshoePrior():
            return horseshoe_log_density(w / prior.scale) - math.log(prior.scale)
        case ScaleMixturePrior():
            wide = stats.norm.logpdf(w, scale=prior.wide_std) + math.log(prior.share)
            narrow = stats.norm.logpdf(w, scale=prior.narrow_std) + math.log(1 - prior.share)
            return np.logaddexp(wide, narrow)
        case LogUniformPrior():
            # The constant at which N(0, 1) has no divergence: E log|w| = −(γ + log 2) / 2.
            at_zero = -0.5 * (np.euler_gamma + math.log(2))
            return at_zero - 0.5 * math.log(2 * math.pi * math.e) - np.log(np.abs(w))
    law = _half_line_law(prior)
    if law is not None:
        return law.logpdf(np.abs(w))
    return _line_law(prior, prior.mean, prior.std).logpdf(w)


def breaks(family, prior, mean, second=None):
    """Return where the integral of one entry is cut: kinks, the body, and the ends of the line."""
    law = family_law(family, mean, second)
    if law is None:
        body = mean + softplus(second) * np.array([-30.0, -1.0, 0.0, 1.0, 30.0])
    else:
        body = law.ppf([1e-9, 1e-3, 0.5, 1 - 1e-3, 1 - 1e-9])
    ends = (-np.inf, np.inf)
    if family.support == "half line":
        body, ends = np.sign(mean) * body, ((0.0, np.inf) if mean > 0 else (-np.inf, 0.0))
    kinks = [0.0, mean, getattr(prior, "mean", 0.0)]
    inside = [x for x in (*body, *kinks) if ends[0] < x < ends[1]]
    return np.unique([*ends, *inside])


def kl_by_quadrature(family, prior, *parameters):
    """Return KL(q ‖ p) of entries of these parameters, arrays of one shape, one number each."""
    rows, lower, upper = [], [], []
    for index, row in enumerate(zip(*parameters, strict=True)):
        cut = breaks(family, prior, *row)
        rows += [index] * (len(cut) - 1)
        lower += list(cut[:-1])
        upper += list(cut[1:])
    columns = [np.asarray(parameter)[rows] for parameter in parameters]

    def integrand(w, *values):
        with np.errstate(all="ignore"):
            log_q = log_density(family, w, *values)
            terms = np.exp(log_q) * (log_q - prior_log_density(prior, w))
        return np.where(log_q > -650, terms, 0.0)

    # The pieces add up to a KL of order 1: what each leaves out is measured against that. At its
    # first levels the error estimate can be fooled.
    found = integrate.tanhsinh(
        integrand, lower, upper, args=tuple(columns), minlevel=5, rtol=1e-9, atol=1e-9
    )
    assert found.success.all(), (family, prior, found.status, found.error)
    return np.bincount(rows, weights=found.integral)
