"""A classifier and its confidence sets: which predictions the samples agree on, how often right."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from bayesify.conversion.kl import kl
from bayesify.conversion.posterior import posteriors
from bayesify.data import loader
from bayesify.distributions import divergence
from bayesify.evaluation.confidence_set import confidence_sets
from bayesify.evaluation.evaluate import summarise
from bayesify.prediction import predict
from bayesify.prediction.predictive import ClassificationPredictive
from bayesify.recipes.measure import measures
from bayesify.recipes.run import Parts

_SCORES = ("accuracy", "nll", "brier", "ece")
_KL_REPEATS = 10


@dataclass(frozen=True)
class ConfidenceOptions:
    """What is measured of a classifier's confidence.

    Attributes:
        num_samples: Draws of the weights, which vote and are averaged.
        levels: Shares of the draws that must agree on a class.
        by: How draws are made.
        batch_size: Examples per pass; None takes as many as a training step had, for which there
            was memory enough.
    """

    num_samples: int = 100
    levels: Sequence[float] = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
    by: str | None = None
    batch_size: int | None = None


@measures.register("confidence")
def measure_confidence(parts: Parts, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the scores and the confidence sets of one pass over the test set, and the KL."""
    chosen = ConfidenceOptions(**options)
    data = parts.data.test
    found = predict(
        parts.model,
        loader(data, chosen.batch_size or parts.recipe.data["batch_size"]),
        num_samples=chosen.num_samples,
        by=chosen.by if posteriors(parts.model) else None,
        seed=parts.recipe.seed,
    ).to("cpu")
    assert isinstance(found, ClassificationPredictive)
    targets = data.targets.cpu()
    sets = confidence_sets(found, targets, chosen.levels)
    scores = summarise([(found, targets)], metrics=_SCORES).to_dict()
    return {
        "scores": scores["metrics"],
        "num_samples": found.num_samples,
        "sets": {
            "level": [each.level for each in sets],
            "accuracy": [_finite(each.accuracy) for each in sets],
            "size": [_finite(each.size) for each in sets],
        },
        "kl": best_kl(parts.model),
        "kl_estimate_std": kl_estimate_std(parts.model),
        "mean_std": mean_std(parts.model),
    }


@torch.no_grad()
def best_kl(model: nn.Module) -> float | None:
    """Return the KL in nats by the best way there is, whichever way it was trained with."""
    sites = [site for site in posteriors(model) if site.num_random]
    terms = [divergence(site.family, site.random_parameters(), site.prior) for site in sites]
    return _finite(math.fsum(map(float, terms)))


@torch.no_grad()
def kl_estimate_std(model: nn.Module, repeats: int = _KL_REPEATS) -> float | None:
    """Return the std, over repeats, of the KL as training estimates it: 0 where that is exact."""
    estimates = [float(kl(model)) for _ in range(repeats)]
    return statistics.stdev(estimates) if all(map(math.isfinite, estimates)) else None


@torch.no_grad()
def mean_std(model: nn.Module) -> float | None:
    """Return the standard deviation of a random weight, averaged over all of them, or None."""
    sites = [site for site in posteriors(model) if site.num_random]
    if not sites:
        return None
    # A std that entries share stands for equally many of them.
    means = [
        float(site.family.variance(site.random_parameters()).sqrt().double().mean())
        for site in sites
    ]
    total = sum(mean * site.num_random for mean, site in zip(means, sites, strict=True))
    return _finite(total / sum(site.num_random for site in sites))


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
