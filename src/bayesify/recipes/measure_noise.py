"""What noise at the input does to a classifier, what pruning does, and how well it is explained."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from bayesify.compression import compress
from bayesify.conversion.convert import convert, revert
from bayesify.conversion.posterior import posteriors
from bayesify.data import TensorData, loader
from bayesify.data.noisy import noisy
from bayesify.evaluation.evaluate import summarise
from bayesify.evaluation.explanation import explanation_quality
from bayesify.methods import MeanField
from bayesify.prediction import predict
from bayesify.prediction.predictive import ClassificationPredictive
from bayesify.recipes.measure import measures
from bayesify.recipes.measure_confidence import mean_std
from bayesify.recipes.run import Parts
from bayesify.training import GaussianRegression
from bayesify.types import device_of

_SCORES = ("accuracy", "nll", "ece")
_NO_WIDTH = 1e-6


@dataclass(frozen=True)
class NoiseOptions:
    """What is measured of a classifier under noise.

    Attributes:
        decibels: Signal-to-noise ratios of the noise that is added to the test inputs.
        keep: Shares of the weights to keep, those of largest |mean| in the whole network.
        num_explained: How many test examples are explained, where captum is installed.
        num_samples: Draws averaged, of a network that predicts by draws.
        by: How it predicts; None takes the method's own way.
        batch_size: Examples per pass; None takes as many as a training step had.
        num_images: How many test examples, the first, are taken; None for all.
    """

    decibels: Sequence[float] = (-6.0, -3.0, 1.0, 5.0, 10.0, 20.0, 40.0)
    keep: Sequence[float] = ()
    num_explained: int = 0
    num_samples: int = 20
    by: str | None = None
    batch_size: int | None = None
    num_images: int | None = None


@measures.register("noise")
def measure_noise(parts: Parts, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return scores and output variances against noise, scores against pruning, explanations."""
    chosen = NoiseOptions(**options)
    data = parts.data.test
    if chosen.num_images is not None:
        data = data.select(torch.arange(min(chosen.num_images, len(data))))
    return {
        "scores": _scores(parts, parts.model, data, chosen),
        "noisy": [
            {"decibels": decibels, **_under(parts, noisy(data, decibels), chosen)}
            for decibels in chosen.decibels
        ],
        "pruned": [
            {"keep": share, **_scores(parts, _pruned(parts.model, share), data, chosen)}
            for share in chosen.keep
        ],
        "explained": _explained(parts, chosen) if chosen.num_explained else None,
        "mean_std": mean_std(parts.model),
    }


def _scores(
    parts: Parts, model: nn.Module, data: TensorData, chosen: NoiseOptions
) -> dict[str, float]:
    return _scored(_predicted(parts, model, data, chosen), data)


def _scored(found: ClassificationPredictive, data: TensorData) -> dict[str, float]:
    return summarise([(found, data.targets.cpu())], metrics=_SCORES).to_dict()["metrics"]


def _under(parts: Parts, data: TensorData, chosen: NoiseOptions) -> dict[str, float | None]:
    """Return the scores, and mean variances of the predicted class: of its logit and of its share.

    The papers' networks end in a softmax, so theirs is the second. It is small where a class is
    certain, whatever its logit does, and the first is not.
    """
    found = _predicted(parts, parts.model, data, chosen)
    scores = _scored(found, data)
    if not any(site.num_random for site in posteriors(parts.model)):
        return {**scores, "class_variance": None, "probability_variance": None}
    # Read as numbers the outputs are the logits, and their spread over weights the variance.
    logits = _predicted(parts, parts.model, data, chosen, GaussianRegression(1.0))
    rows = torch.arange(len(data))
    return {
        **scores,
        "class_variance": float(logits.epistemic[rows, logits.mean.argmax(1)].mean()),
        "probability_variance": float(found.variance[rows, found.classes].mean()),
    }


def _predicted(
    parts: Parts,
    model: nn.Module,
    data: TensorData,
    chosen: NoiseOptions,
    likelihood: Any = "classification",
) -> Any:
    is_random = any(site.num_random for site in posteriors(model))
    return predict(
        model,
        loader(data, chosen.batch_size or parts.recipe.data["batch_size"]),
        num_samples=chosen.num_samples,
        by=chosen.by if is_random else None,
        seed=parts.recipe.seed,
        likelihood=likelihood,
    ).to("cpu")


def _pruned(model: nn.Module, share: float) -> nn.Module:
    if not posteriors(model):
        # A plain network is pruned as the mean of a posterior of no width.
        plain = revert(model)
        model = convert(plain, MeanField(initial_std=_NO_WIDTH)).to(device_of(model)).eval()
    return compress(model, by="magnitude", keep=share, shrink=False)


def _explained(parts: Parts, chosen: NoiseOptions) -> dict[str, float] | None:
    if find_spec("captum") is None:
        # What was trained is not lost for it: where captum is, the run can be measured again.
        warnings.warn("explanations are left out: captum is not installed", stacklevel=2)
        return None
    number = min(chosen.num_explained, len(parts.data.test))
    inputs, _ = parts.data.test.__getitems__(list(range(number)))
    at_once = max(chosen.batch_size or parts.recipe.data["batch_size"], number)
    inputs = inputs.to(device_of(parts.model))
    found = explanation_quality(parts.model, inputs, batch_size=at_once)
    return {
        "infidelity": float(found.infidelity.mean()),
        "sensitivity": float(found.sensitivity.mean()),
    }
