"""A classifier before and after pruning: its scores, a random control, its smaller file."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bayesify.compression import compress, sparsity
from bayesify.conversion.convert import convert, require_record
from bayesify.conversion.posterior import posteriors
from bayesify.data import TensorData, loader
from bayesify.evaluation import evaluate
from bayesify.evaluation.scores import reliability
from bayesify.exporting import load, save
from bayesify.methods import Deterministic
from bayesify.prediction import predict
from bayesify.prediction.draws import Draws
from bayesify.prediction.predictive import ClassificationPredictive
from bayesify.recipes.measure import measures
from bayesify.recipes.run import Parts
from bayesify.types import device_of

_SCORES = ("accuracy", "nll", "brier", "ece")
_BATCH = 2000


@dataclass(frozen=True)
class PruningOptions:
    """What is measured of a classifier before and after pruning.

    Attributes:
        num_samples: Draws averaged for a prediction.
        ratios: Values of |mean| / std to prune at.
        keep: Shares of the weights to keep, by |mean| / std and by |mean|.
        repeats: How often the error against the number of draws is measured; 0 for not at all.
        by: How draws are made.
    """

    num_samples: int = 200
    ratios: Sequence[float] = (0.83,)
    keep: Sequence[float] = ()
    repeats: int = 10
    by: str | None = None


@measures.register("pruning")
def measure_pruning(parts: Parts, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a classifier's scores not pruned, pruned, and pruned at random, on the test set."""
    chosen = PruningOptions(**options)
    model, data = parts.model, parts.data.test
    found: dict[str, Any] = {"not_pruned": _scores(model, data, chosen)}
    if parts.plain is not None:
        plain = convert(parts.plain, Deterministic()).to(device_of(model))
        require_record(plain).likelihood = require_record(model).likelihood
        found["plain"] = _scores(plain, data, chosen)
    if chosen.repeats:
        found["error_by_samples"] = error_by_samples(model, data, chosen)
    found["reliability"] = _reliability(model, data, chosen)
    rules: list[dict[str, Any]] = [
        {"by": "snr", "threshold": float(ratio)} for ratio in chosen.ratios
    ]
    rules += [{"by": by, "keep": share} for share in chosen.keep for by in ("snr", "magnitude")]
    # A network without a posterior has nothing to prune by.
    found["prunings"] = [_pruned(parts, rule, chosen) for rule in rules if posteriors(model)]
    return found


def _pruned(parts: Parts, rule: dict[str, Any], chosen: PruningOptions) -> dict[str, Any]:
    model, data = parts.model, parts.data.test
    pruned = compress(model, **rule, shrink=False)
    control = compress(model, by="random", like=pruned, shrink=False)
    table = sparsity(pruned)
    return {
        **rule,
        "removed": table.removed,
        "sparsity": table.by_path,
        "principled": _scores(pruned, data, chosen),
        "random": _scores(control, data, chosen),
        **_shrunk(parts, rule, chosen),
    }


def _shrunk(parts: Parts, rule: dict[str, Any], chosen: PruningOptions) -> dict[str, Any]:
    """Return what the really smaller network looks like, and its file against the dense one."""
    small = compress(parts.model, **rule)
    name, options = parts.recipe.model["name"], parts.recipe.options("model")
    with tempfile.TemporaryDirectory() as folder:
        dense, compact = Path(folder) / "dense", Path(folder) / "compact"
        for model, path in ((parts.model, dense), (small, compact)):
            save(model, path, architecture=name, options=options)
        inputs, _ = next(iter(loader(parts.data.test, 32)))
        device = device_of(small)
        again = load(compact).to(device)
        draws = [
            predict(model, inputs.to(device), num_samples=8, seed=0) for model in (small, again)
        ]
        return {
            "shape_after": _shape_of(small),
            "scores_after_shrinking": _scores(small, parts.data.test, chosen),
            "dense_bytes": dense.stat().st_size,
            "file_bytes": compact.stat().st_size,
            "file_ratio": compact.stat().st_size / dense.stat().st_size,
            "loads_identical": bool(torch.equal(_probs(draws[0]), _probs(draws[1]))),
        }


def _shape_of(model: nn.Module) -> str:
    shapes = [site.shape for site in posteriors(model)]
    widths = [shape[1] for shape in shapes if len(shape) > 1] + [shapes[-1][0]]
    return "-".join(map(str, widths))


def error_by_samples(
    model: nn.Module, data: TensorData, chosen: PruningOptions
) -> dict[str, list[float]]:
    """Return mean and std, over repeats, of the error with 1, 2, ... draws averaged."""
    method = require_record(model).method
    device = device_of(model)
    curves = []
    with torch.no_grad(), method.sampling(model.eval(), chosen.by or method.default_way()):
        draws = Draws(model)
        for _ in range(chosen.repeats):
            wrong = torch.zeros(chosen.num_samples, device=device)
            for inputs, targets in loader(data, _BATCH):
                wrong += _wrong_after_each(draws, inputs.to(device), targets.to(device), chosen)
            curves.append(wrong / len(data))
    every = torch.stack(curves)
    spread = every.std(0) if len(curves) > 1 else torch.zeros_like(every[0])
    return {
        "num_samples": list(range(1, chosen.num_samples + 1)),
        "mean": every.mean(0).tolist(),
        "std": spread.tolist(),
    }


def _wrong_after_each(
    draws: Draws, inputs: Tensor, targets: Tensor, chosen: PruningOptions
) -> Tensor:
    total, counts = torch.zeros((), device=inputs.device), []
    for stack in draws.outputs(inputs, chosen.num_samples):
        for output in stack.softmax(-1):
            total = total + output
            counts.append((total.argmax(-1) != targets).sum())
    # A network without a posterior has one prediction, however often it is asked.
    return torch.stack(counts + counts[-1:] * (chosen.num_samples - len(counts))).float()


def _scores(model: nn.Module, data: TensorData, chosen: PruningOptions) -> dict[str, float]:
    found = evaluate(
        model,
        loader(data, _BATCH),
        num_samples=chosen.num_samples,
        by=chosen.by if posteriors(model) else None,
        metrics=_SCORES,
        progress=None,
    )
    return {name: found[name] for name in _SCORES}


def _reliability(model: nn.Module, data: TensorData, chosen: PruningOptions) -> dict[str, Any]:
    by = chosen.by if posteriors(model) else None
    found = predict(model, loader(data, _BATCH), num_samples=chosen.num_samples, by=by)
    bins = reliability(_probs(found).cpu(), data.targets.cpu())
    counts = bins.count.tolist()
    shown = {
        name: [value if count else None for value, count in zip(values, counts, strict=True)]
        for name, values in (
            ("confidence", bins.confidence.tolist()),
            ("accuracy", bins.accuracy.tolist()),
        )
    }
    return {**shown, "count": counts}


def _probs(found: Any) -> Tensor:
    assert isinstance(found, ClassificationPredictive)
    return found.probs
