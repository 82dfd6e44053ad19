"""Posterior families, priors and the divergences between them: mathematics on tensors."""

from bayesify.distributions.divergence import divergence, divergence_problem, divergences
from bayesify.distributions.family import Family, Parameters, Prior, families, priors
from bayesify.distributions.normal import Normal, NormalPrior
from bayesify.distributions.scale import inverse_softplus, log_softplus, softplus

__all__ = [
    "Family",
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
    "priors",
    "softplus",
]
