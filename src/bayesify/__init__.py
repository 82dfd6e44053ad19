"""Know how sure your network is.

From the network you have to one that knows what it does not know, and to a file:

    import bayesify as bf

    model = bf.convert(net, bf.MeanField(prior_std=1.0))
    print(bf.summary(model))
    bf.fit(model, train_loader, val_loader, epochs=20)
    prediction = bf.predict(model, x)
    table = bf.evaluate(model, test_loader, ood={"noise": noise_loader})
    small = bf.compress(model)
    bf.save(small, "model.safetensors")
"""

from bayesify.version import __version__
from bayesify.types import ConversionError, Loss
from bayesify.archive import ArchiveError
from bayesify.moments import Moments
from bayesify.conversion import (
    convert,
    convert_,
    revert,
    summary,
    kl,
    mean_weights,
    one_sample,
    Method,
)
from bayesify.training import (
    fit,
    elbo_loss,
    refresh_norms,
    Classification,
    CustomLikelihood,
    FitSettings,
    GaussianRegression,
    History,
    OneHotGaussian,
)
from bayesify.prediction import predict, correct_moments, Predictive
from bayesify.methods import (
    DeepEnsemble,
    Deterministic,
    FullCovariance,
    Laplace,
    MCDropout,
    MeanField,
    MomentPropagation,
    MonteCarloKL,
    PartialBayes,
    RigL,
    SparseSubspace,
    VariationalDropout,
    sensitivity,
)
from bayesify.evaluation import evaluate, Evaluation
from bayesify.compression import compress, sparsity
from bayesify.exporting import save, load, export, read_manifest, ExportError, Runtime
from bayesify.models import build_model
from bayesify.data import load_dataset

__all__ = [
    "ArchiveError",
    "Classification",
    "ConversionError",
    "CustomLikelihood",
    "DeepEnsemble",
    "Deterministic",
    "Evaluation",
    "ExportError",
    "FitSettings",
    "FullCovariance",
    "GaussianRegression",
    "History",
    "Laplace",
    "Loss",
    "MCDropout",
    "MeanField",
    "Method",
    "MomentPropagation",
    "Moments",
    "MonteCarloKL",
    "OneHotGaussian",
    "PartialBayes",
    "Predictive",
    "RigL",
    "Runtime",
    "SparseSubspace",
    "VariationalDropout",
    "__version__",
    "build_model",
    "compress",
    "convert",
    "convert_",
    "correct_moments",
    "elbo_loss",
    "evaluate",
    "export",
    "fit",
    "kl",
    "load",
    "load_dataset",
    "mean_weights",
    "one_sample",
    "predict",
    "read_manifest",
    "refresh_norms",
    "revert",
    "save",
    "sensitivity",
    "sparsity",
    "summary",
]
