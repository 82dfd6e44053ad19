"""Posterior families, priors and the divergences between them: mathematics on tensors."""

# Imported for their registrations.
from bayesify.distributions import (
    closed_form,  # noqa: F401
    direct,  # noqa: F401
    exact_monte_carlo,  # noqa: F401
    reparameterised,  # noqa: F401
)
from bayesify.distributions.dirichlet import DirichletPrior
from bayesify.distributions.divergence import chosen_estimator, divergence, divergence_problem
from bayesify.distributions.estimator import Estimator, estimators
from bayesify.distributions.exponential import Exponential, ExponentialPrior
from bayesify.distributions.family import Family, Parameters, Prior, families, priors
from bayesify.distributions.gamma import (
    ChiSquaredPrior,
    Erlang,
    ErlangPrior,
    Gamma,
    GammaPrior,
)
from bayesify.distributions.generalised_error import GeneralisedError, GeneralisedErrorPrior
from bayesify.distributions.horseshoe import Horseshoe, HorseshoePrior
from bayesify.distributions.inverse_gamma import InverseGamma, InverseGammaPrior
from bayesify.distributions.laplace import Laplace, LaplacePrior
from bayesify.distributions.log_gamma import LogGamma, LogGammaPrior
from bayesify.distributions.log_normal import LogNormal, LogNormalPrior
from bayesify.distributions.log_uniform import LogUniformPrior, log_uniform_kl
from bayesify.distributions.logistic import Logistic, LogisticPrior
from bayesify.distributions.multiplicative_normal import MultiplicativeNormal
from bayesify.distributions.normal import Normal, NormalPrior
from bayesify.distributions.parameterization_tuple import (
    ParameterizationTuple,
    num_statistics,
    parameterization_tuple,
)
from bayesify.distributions.pareto import ParetoPrior
from bayesify.distributions.radial import Radial, RadialPrior
from bayesify.distributions.rayleigh import Rayleigh, RayleighPrior
from bayesify.distributions.scale import inverse_softplus, log_softplus, softplus
from bayesify.distributions.scale_mixture import ScaleMixturePrior
from bayesify.distributions.student_t import StudentT, StudentTPrior
from bayesify.distributions.taylor import TaylorLog
from bayesify.distributions.wald import InverseGaussianPrior, StandardWald, StandardWaldPrior
from bayesify.distributions.weibull import Weibull, WeibullPrior

__all__ = [
    "ChiSquaredPrior",
    "DirichletPrior",
    "Erlang",
    "ErlangPrior",
    "Estimator",
    "Exponential",
    "ExponentialPrior",
    "Family",
    "Gamma",
    "GammaPrior",
    "GeneralisedError",
    "GeneralisedErrorPrior",
    "Horseshoe",
    "HorseshoePrior",
    "InverseGamma",
    "InverseGammaPrior",
    "InverseGaussianPrior",
    "Laplace",
    "LaplacePrior",
    "LogGamma",
    "LogGammaPrior",
    "LogNormal",
    "LogNormalPrior",
    "LogUniformPrior",
    "Logistic",
    "LogisticPrior",
    "MultiplicativeNormal",
    "Normal",
    "NormalPrior",
    "ParameterizationTuple",
    "Parameters",
    "ParetoPrior",
    "Prior",
    "Radial",
    "RadialPrior",
    "Rayleigh",
    "RayleighPrior",
    "ScaleMixturePrior",
    "StandardWald",
    "StandardWaldPrior",
    "StudentT",
    "StudentTPrior",
    "TaylorLog",
    "Weibull",
    "WeibullPrior",
    "chosen_estimator",
    "divergence",
    "divergence_problem",
    "estimators",
    "families",
    "inverse_softplus",
    "log_softplus",
    "log_uniform_kl",
    "num_statistics",
    "parameterization_tuple",
    "priors",
    "softplus",
]
