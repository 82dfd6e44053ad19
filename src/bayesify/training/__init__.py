"""Stage 2: train."""

from bayesify.training.fit import fit
from bayesify.training.history import History
from bayesify.training.likelihood import Classification, CustomLikelihood, GaussianRegression
from bayesify.training.norm_statistics import refresh_norms
from bayesify.training.objective import elbo_loss
from bayesify.training.one_hot_gaussian import OneHotGaussian
from bayesify.training.settings import FitSettings

__all__ = [
    "Classification",
    "CustomLikelihood",
    "FitSettings",
    "GaussianRegression",
    "History",
    "OneHotGaussian",
    "elbo_loss",
    "fit",
    "refresh_norms",
]
