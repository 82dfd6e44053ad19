"""Score a model on a data set, and on how well it tells other data sets apart from it."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from bayesify.evaluation.detection import detect, ood_scores
from bayesify.evaluation.evaluation import Evaluation
from bayesify.evaluation.metric import Metric
from bayesify.evaluation.metric import metrics as registered
from bayesify.evaluation.standard_metrics import DEFAULT_METRICS
from bayesify.prediction.predict import predict_batches
from bayesify.prediction.predictive import Predictive, Task

Pairs = Iterable[tuple[Predictive, Tensor | None]]


def evaluate(
    model: nn.Module,
    data: Iterable[Any],
    *,
    ood: Mapping[str, Iterable[Any]] | None = None,
    num_samples: int = 30,
    by: str | None = None,
    metrics: Sequence[str | Metric] | None = None,
    progress: bool | None = True,
) -> Evaluation:
    """Predict every batch of a loader and return one table of metrics.

    Args:
        model: A converted model, or any that `predict` takes.
        data: Batches of (inputs, targets).
        ood: Loaders of out-of-distribution data by name; their targets are not used.
        num_samples: Posterior samples per prediction.
        by: How to predict; None leaves the choice to the model's method.
        metrics: Names of registered metrics, or metrics; None for the task's defaults.
        progress: Whether to show a progress bar; None shows one in a terminal.
    """

    def pairs(loader: Iterable[Any]) -> Pairs:
        return predict_batches(model, loader, num_samples=num_samples, by=by, progress=progress)

    chosen = _look_up(metrics)
    return summarise(
        pairs(data), {name: pairs(loader) for name, loader in (ood or {}).items()}, chosen
    )


def summarise(
    pairs: Pairs,
    ood_pairs: Mapping[str, Pairs] | None = None,
    metrics: Sequence[str | Metric] | None = None,
) -> Evaluation:
    """Return the metrics of (predictive, targets) batches, and of ood batches against them."""
    started = time.perf_counter()
    chosen = _look_up(metrics)
    ood_pairs = ood_pairs or {}
    predictives: list[Predictive] = []
    targets: list[Tensor] = []
    with _closed(pairs):
        for predictive, target in pairs:
            if not predictives:
                chosen = _for_task(predictive.task, chosen, has_ood=bool(ood_pairs))
            if chosen:
                targets.append(_check_targets(len(predictives), predictive, target))
            predictives.append(predictive.to("cpu"))
    predictive = _join("data", predictives)
    target = torch.cat(targets) if targets else torch.empty(0)
    return Evaluation(
        task=predictive.task,
        scores={each.name: each(predictive, target) for each in chosen or ()},
        directions={each.name: each.higher_is_better for each in chosen or ()},
        ood={name: _detect(name, predictive, batches) for name, batches in ood_pairs.items()},
        num_examples=len(predictive),
        num_samples=predictive.num_samples,
        made_by=predictive.made_by,
        seconds=time.perf_counter() - started,
    )


@contextmanager
def _closed(pairs: Pairs) -> Iterator[None]:
    """Finish a generator that an error left half-read, which gives the model back its mode."""
    try:
        yield
    finally:
        if isinstance(pairs, Generator):
            pairs.close()


def _look_up(metrics: Sequence[str | Metric] | None) -> list[Metric] | None:
    if isinstance(metrics, str):
        raise TypeError(
            f"metrics must be a list of names, got the string {metrics!r}: put it in []"
        )
    if metrics is None:
        return None
    return [each if isinstance(each, Metric) else registered[each] for each in metrics]


def _for_task(task: Task, chosen: list[Metric] | None, *, has_ood: bool) -> list[Metric]:
    if chosen is None:
        chosen = [registered[name] for name in DEFAULT_METRICS[task]]
        if not chosen:
            raise ValueError(
                f"metrics has no default for a {task} prediction: pass a list, [] for none"
            )
    for each in chosen:
        each.check_task(task)
    if has_ood and task not in ood_scores:
        raise ValueError(f"ood needs a task with ood scores, {' or '.join(ood_scores)}, got {task}")
    return chosen


def _check_targets(number: int, predictive: Predictive, targets: Tensor | None) -> Tensor:
    if targets is None:
        raise ValueError(
            f"batch {number} of data has no targets, which metrics need: let the loader yield "
            "(inputs, targets)"
        )
    if len(targets) != len(predictive):
        raise ValueError(
            f"batch {number} of data has {len(targets)} targets for {len(predictive)} predictions"
        )
    return targets.detach().cpu()


def _join(name: str, predictives: list[Predictive]) -> Predictive:
    if not predictives:
        raise ValueError(f"{name} gave no batches: an iterator can be used once only")
    return Predictive.cat(predictives)


def _detect(name: str, familiar: Predictive, pairs: Pairs) -> dict[str, float]:
    with _closed(pairs):
        ood = _join(f"ood[{name!r}]", [predictive.to("cpu") for predictive, _ in pairs])
    leading = next(iter(ood_scores[familiar.task]))
    return {
        measure if score == leading else f"{score}_{measure}": value
        for score, measures in detect(familiar, ood).items()
        for measure, value in measures.items()
    }
