"""Posterior families, priors and the divergences between them: mathematics on tensors."""

from bayesify.distributions.divergence import divergence, divergence_problem, divergences
from bayesify.distributions.family import Family, Parameters, Prior, families, priors
from bayesify.distributions.log_uniform import LogUniformPrior, log_uniform_kl
from bayesify.distributions.multiplicative_normal import MultiplicativeNormal
from bayesify.distributions.normal import Normal, NormalPrior
from bayesify.distributions.scale import inverse_softplus, log_softplus, softplus

__all__ = [
    "Family",
    "LogUniformPrior",
    "MultiplicativeNormal",
    "Normal",
    "NormalPrior",
    "Parameters",
    "Prior",
    "divergence",
    "divergence_problem",
    "divergences",
    "families",
    "inverse_softplus",
    "log_softplus",
    "log_uniform_kl",
    "priors",
    "softplus",
]
