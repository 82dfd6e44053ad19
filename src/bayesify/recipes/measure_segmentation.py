"""A network that gives every pixel a class: overlap with the truth, and where it is unsure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesify.conversion.posterior import posteriors
from bayesify.data import loader
from bayesify.evaluation.detection import auroc
from bayesify.evaluation.evaluate import summarise
from bayesify.evaluation.scores import IGNORED_TARGET
from bayesify.evaluation.segmentation import class_iou
from bayesify.prediction import predict
from bayesify.prediction.predictive import ClassificationPredictive
from bayesify.recipes.measure import measures
from bayesify.recipes.measure_confidence import best_kl, mean_std
from bayesify.recipes.run import Parts
from bayesify.types import device_of

_SCORES = ("accuracy", "mean_iou", "nll", "brier", "ece")
_ENTROPY_DIGITS = 3
_PIXELS_SEED = 0


@dataclass(frozen=True)
class SegmentationOptions:
    """What is measured of a network that gives every pixel a class.

    Attributes:
        num_samples: Draws averaged for a prediction.
        batch_size: Images per pass; None takes as many as a training step had.
        num_pixels: How many pixels are asked whether uncertainty finds the wrong ones.
        maps: Which test images are kept as maps of classes and of entropy.
        map_step: Every so many rows and columns are kept of them.
    """

    num_samples: int = 5
    batch_size: int | None = None
    num_pixels: int = 1_000_000
    maps: tuple[int, ...] | list[int] = ()
    map_step: int = 2


@measures.register("segmentation")
def measure_segmentation(parts: Parts, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return scores over all pixels, how uncertainty tells wrong ones apart, and some maps."""
    chosen = SegmentationOptions(**options)
    found, targets = _predicted(parts, chosen), parts.data.test.targets.cpu()
    num_classes = found.probs.shape[1]
    names = parts.data.classes or tuple(map(str, range(num_classes)))
    overlap = class_iou(found.classes, targets, num_classes).tolist()
    sites = posteriors(parts.model)
    return {
        "scores": summarise([(found, targets)], metrics=_SCORES).to_dict()["metrics"],
        "class_iou": {name: _finite(value) for name, value in zip(names, overlap, strict=True)},
        "num_samples": found.num_samples,
        "wrong": _wrong(found, targets, chosen.num_pixels),
        "maps": [_map(found, targets, index, chosen.map_step) for index in chosen.maps],
        "kl": best_kl(parts.model),
        "mean_std": mean_std(parts.model),
        "weights": {
            "all": sum(site.shape.numel() for site in sites),
            "random": sum(site.num_random for site in sites),
        },
    }


def _predicted(parts: Parts, chosen: SegmentationOptions) -> ClassificationPredictive:
    is_half = parts.recipe.fit.get("precision") == "bf16-mixed"
    kind = device_of(parts.model).type
    with torch.autocast(kind, torch.bfloat16) if is_half else nullcontext():
        found = predict(
            parts.model,
            loader(parts.data.test, chosen.batch_size or parts.recipe.data["batch_size"]),
            num_samples=chosen.num_samples,
            seed=parts.recipe.seed,
            likelihood="classification",
        ).to("cpu")
    assert isinstance(found, ClassificationPredictive)
    return found


def _wrong(
    found: ClassificationPredictive, targets: Tensor, num_pixels: int
) -> dict[str, float | None]:
    """Return how well uncertainty finds pixels that are wrong, and its means on both sides."""
    is_labelled = targets != IGNORED_TARGET
    is_wrong = (found.classes != targets)[is_labelled]
    # The same ones for every network: all of them would be sorted for minutes.
    order = torch.randperm(len(is_wrong), generator=torch.Generator().manual_seed(_PIXELS_SEED))
    asked = order[:num_pixels]
    is_wrong = is_wrong[asked]
    values: dict[str, float | None] = {"share": _finite(float(is_wrong.float().mean()))}
    entropy = found.entropy[is_labelled][asked]
    knowledge = found.mutual_information[is_labelled][asked]
    for name, score in (("entropy", entropy), ("mutual_information", knowledge)):
        values[f"auroc_by_{name}"] = _finite(auroc(score[~is_wrong], score[is_wrong]))
    values["entropy_where_right"] = _finite(float(entropy[~is_wrong].mean()))
    values["entropy_where_wrong"] = _finite(float(entropy[is_wrong].mean()))
    return values


def _map(found: ClassificationPredictive, targets: Tensor, index: int, step: int) -> dict[str, Any]:
    """Return one image's classes, true and predicted, and entropy, row by row."""
    every = slice(None, None, step)
    return {
        "image": index,
        "targets": targets[index, every, every].tolist(),
        "classes": found.classes[index, every, every].tolist(),
        "entropy": [
            [round(value, _ENTROPY_DIGITS) for value in row]
            for row in found.entropy[index, every, every].tolist()
        ],
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
