"""Methods: each file names its choice of where × what × how × objective."""

from bayesify.methods.deep_ensemble import DeepEnsemble
from bayesify.methods.deterministic import Deterministic
from bayesify.methods.full_covariance import FullCovariance
from bayesify.methods.laplace import Laplace
from bayesify.methods.mc_dropout import MCDropout
from bayesify.methods.mean_field import MeanField
from bayesify.methods.moment_propagation import MomentPropagation
from bayesify.methods.monte_carlo_kl import MonteCarloKL
from bayesify.methods.partial_bayes import PartialBayes
from bayesify.methods.rigl import RigL
from bayesify.methods.sensitivity import sensitivity
from bayesify.methods.sparse_subspace import SparseSubspace
from bayesify.methods.variational_dropout import VariationalDropout

__all__ = [
    "DeepEnsemble",
    "Deterministic",
    "FullCovariance",
    "Laplace",
    "MCDropout",
    "MeanField",
    "MomentPropagation",
    "MonteCarloKL",
    "PartialBayes",
    "RigL",
    "SparseSubspace",
    "VariationalDropout",
    "sensitivity",
]
