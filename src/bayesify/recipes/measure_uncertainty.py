"""A classifier's uncertainty: on its own data, on spoiled ones, on strangers; and what it costs."""

from __future__ import annotations

import copy
import math
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bayesify.compression import compress, count_flops
from bayesify.conversion.convert import convert
from bayesify.conversion.posterior import posteriors
from bayesify.data import TensorData, load_dataset, loader
from bayesify.data.corruption import STANDARD, corrupted
from bayesify.data.fitted import fitted
from bayesify.data.rotated import rotated
from bayesify.evaluation.detection import detect
from bayesify.evaluation.evaluate import summarise
from bayesify.exporting import load, save
from bayesify.methods import Deterministic, MeanField
from bayesify.models.catalogue import models
from bayesify.prediction import predict
from bayesify.prediction.predictive import ClassificationPredictive
from bayesify.recipes.measure import measures
from bayesify.recipes.measure_confidence import best_kl, mean_std
from bayesify.recipes.ood import make_ood, ood_variants
from bayesify.recipes.run import Parts
from bayesify.training import refresh_norms
from bayesify.types import device_of

_SCORES = ("accuracy", "nll", "brier", "ece", "marginal_calibration_error")
_INITIAL_STD = 0.01
_HALVES_SEED = 0
_NORM_BATCHES = 100
_STORED = {"dense": torch.float32, "float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class UncertaintyOptions:
    """What is measured of a classifier's uncertainty.

    Attributes:
        num_samples: Draws averaged for a prediction.
        by: How draws are made.
        batch_size: Examples per pass; None takes as many as a training step had.
        ood: Data sets of strangers (their test parts), or variants of the own test set.
        corruptions: Ways to spoil the test images, or one; "standard" stands for the usual
            fifteen.
        severities: How badly, from 1 to 5.
        num_corrupted: How many test examples are spoiled; None for all.
        rotations: Degrees by which to turn the test images.
        norm_batches: Batches of training data over which batch norms are measured anew before
            anything else; 0 leaves the running averages of training, which few draws made.
        halves: Whether to score two halves of the test set apart, and the plain network a run began
            from beside: the first half for choices, where no other examples are left that the
            network was not trained on, and the second for what comes of them.
        keep: Shares of the weights to keep when the trained network is pruned by |mean| / std,
            its batch norms then measured anew on training data.
        files: Whether to measure the files of the model, and what bfloat16 changes.
        flops: Whether to count multiplications.
    """

    num_samples: int = 30
    by: str | None = None
    batch_size: int | None = None
    ood: Sequence[str] = ()
    corruptions: Sequence[str] | str = ()
    severities: Sequence[int] = (1, 2, 3, 4, 5)
    num_corrupted: int | None = None
    rotations: Sequence[float] = ()
    norm_batches: int = 0
    halves: bool = False
    keep: Sequence[float] = ()
    files: bool = False
    flops: bool = False


@measures.register("uncertainty")
def measure_uncertainty(parts: Parts, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a classifier's scores, how it takes spoiled and strange data, and what it costs."""
    chosen = UncertaintyOptions(**options)
    model, data = parts.model, parts.data.test
    if chosen.norm_batches:
        _refresh(parts, model, chosen.norm_batches)
    own = _predicted(parts, model, data, chosen)
    found: dict[str, Any] = {
        "scores": _scores(own, data),
        "num_samples": own.num_samples,
        "ood": {name: _detected(parts, own, name, chosen) for name in chosen.ood},
        "corrupted": _corrupted(parts, chosen),
        "rotated": [_rotated(parts, angle, chosen) for angle in chosen.rotations],
        "pruned": [_pruned(parts, share, chosen) for share in chosen.keep],
        "kl": best_kl(model),
        "mean_std": mean_std(model),
        "weights": _weights(model),
    }
    if chosen.halves:
        found["halves"] = _halves(own, data)
        if parts.plain is not None:
            plain = convert(parts.plain, Deterministic()).to(device_of(model))
            found["plain_halves"] = _halves(_predicted(parts, plain, data, chosen), data)
    if chosen.files:
        found["files"] = _files(parts, chosen)
    if chosen.flops:
        found["flops"] = _flops(parts)
    return found


def _predicted(
    parts: Parts, model: nn.Module, data: TensorData, chosen: UncertaintyOptions
) -> ClassificationPredictive:
    with _precision(parts):
        found = predict(
            model,
            loader(data, chosen.batch_size or parts.recipe.data["batch_size"]),
            num_samples=chosen.num_samples,
            # Where nothing is random there is one way to predict only.
            by=chosen.by if any(site.num_random for site in posteriors(model)) else None,
            seed=parts.recipe.seed,
            likelihood="classification",
        ).to("cpu")
    assert isinstance(found, ClassificationPredictive)
    return found


def _precision(parts: Parts) -> AbstractContextManager[Any]:
    """Predict at the precision the network was trained at."""
    if parts.recipe.fit.get("precision") != "bf16-mixed":
        return nullcontext()
    return torch.autocast(device_of(parts.model).type, torch.bfloat16)


def _scores(found: ClassificationPredictive, data: TensorData) -> dict[str, float]:
    return summarise([(found, data.targets.cpu())], metrics=_SCORES).to_dict()["metrics"]


def _halves(found: ClassificationPredictive, data: TensorData) -> dict[str, dict[str, float]]:
    """Return the scores of two halves of the examples, the same ones in every run."""
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(_HALVES_SEED))
    first, second = order.tensor_split(2)
    halves = {"first": first, "second": second}
    targets = data.targets.cpu()
    return {
        name: summarise([(found[where], targets[where])], metrics=_SCORES).to_dict()["metrics"]
        for name, where in halves.items()
    }


def _detected(
    parts: Parts, own: ClassificationPredictive, name: str, chosen: UncertaintyOptions
) -> dict[str, dict[str, float | None]]:
    data = parts.data.test
    if name in ood_variants:
        strange = make_ood(data.to("cpu"), name, seed=parts.recipe.seed)
    else:
        others = load_dataset(name, parts.recipe.data.get("root")).test
        strange = fitted(others, parts.data.input_shape).with_transform(data.transform)
    strange = strange.to(data.inputs.device)
    found = detect(own, _predicted(parts, parts.model, strange, chosen))
    # A network that diverged has no such measures, and JSON no word for them.
    return {
        score: {name: value if math.isfinite(value) else None for name, value in each.items()}
        for score, each in found.items()
    }


def _corrupted(parts: Parts, chosen: UncertaintyOptions) -> dict[str, list[dict[str, float]]]:
    names = chosen.corruptions
    if isinstance(names, str):
        names = STANDARD if names == "standard" else (names,)
    data = parts.data.test
    if chosen.num_corrupted is not None:
        data = data.select(torch.arange(min(chosen.num_corrupted, len(data))))
    table: dict[str, list[dict[str, float]]] = {}
    for name in names:
        table[name] = []
        for severity in chosen.severities:
            spoiled = corrupted(data, name, severity, seed=parts.recipe.seed)
            scores = _scores(_predicted(parts, parts.model, spoiled, chosen), spoiled)
            table[name].append({"severity": severity, **scores})
    return table


def _rotated(parts: Parts, angle: float, chosen: UncertaintyOptions) -> dict[str, float]:
    turned = rotated(parts.data.test, angle)
    found = _predicted(parts, parts.model, turned, chosen)
    entropy = float(found.entropy.mean())
    return {"degrees": angle, **_scores(found, turned), "entropy": entropy}


def _pruned(parts: Parts, share: float, chosen: UncertaintyOptions) -> dict[str, Any]:
    small = compress(parts.model, by="snr", keep=share, shrink=False)
    # Statistics of the whole network would be unfair to what is left of it.
    _refresh(parts, small, chosen.norm_batches or _NORM_BATCHES)
    found = _predicted(parts, small, parts.data.test, chosen)
    return {"keep": share, "scores": _scores(found, parts.data.test)}


def _refresh(parts: Parts, model: nn.Module, num_batches: int) -> None:
    with _precision(parts):
        refresh_norms(model, parts.train, num_batches=num_batches)


def _weights(model: nn.Module) -> dict[str, int]:
    sites = posteriors(model)
    return {
        "all": sum(site.shape.numel() for site in sites),
        "live": sum(site.num_live for site in sites),
        "random": sum(site.num_random for site in sites),
    }


def _files(parts: Parts, chosen: UncertaintyOptions) -> dict[str, Any]:
    """Return the size of the file, in float32 and bfloat16, of a dense one, and what is lost."""
    model = copy.deepcopy(parts.model).cpu()
    name, options = parts.recipe.model["name"], parts.recipe.options("model")
    # A scale that followed from the drawn weights would have more digits or fewer in the file.
    dense = convert(models[name](**options), MeanField(initial_std=_INITIAL_STD))
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        for what, each in (("dense", dense), ("float32", model), ("bfloat16", model)):
            save(each.to(_STORED[what]), path, architecture=name, options=options)
            found[f"{what}_bytes"] = path.stat().st_size
        again = load(path).float().to(device_of(parts.model))
        scores = _scores(_predicted(parts, again, parts.data.test, chosen), parts.data.test)
    for what in ("float32", "bfloat16"):
        found[f"{what}_ratio"] = found[f"{what}_bytes"] / found["dense_bytes"]
    return {**found, "bfloat16_scores": scores}


def _flops(parts: Parts) -> dict[str, float]:
    inputs, _ = next(iter(loader(parts.data.test, 1)))
    counted = count_flops(parts.model, inputs.to(device_of(parts.model)))
    method = parts.recipe.make_method()
    interval = getattr(method, "interval", None)
    return {
        "inference": counted.inference,
        "dense_inference": counted.dense_inference,
        "training": counted.average_training(interval) if interval else counted.training,
        "dense_training": counted.dense_training,
    }
