"""From a model and inputs to a prediction that knows how sure it is."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bayesify.batches import at_mean, batch_size, cut, in_short, split_batch, to_device
from bayesify.conversion.convert import Record, require_record
from bayesify.moments import Moments
from bayesify.prediction.by_covariance import covariant_outputs
from bayesify.prediction.by_linearisation import linearised
from bayesify.prediction.by_moments import predict_moments
from bayesify.prediction.correlated_outputs import check_num_outputs, of_correlated
from bayesify.prediction.draws import Draws
from bayesify.prediction.evaluation_mode import evaluating
from bayesify.prediction.predictive import (
    ClassificationAccumulator,
    CustomAccumulator,
    Predictive,
    RegressionAccumulator,
)
from bayesify.registry import unknown
from bayesify.training.likelihood import (
    Classification,
    GaussianRegression,
    Likelihood,
    as_likelihood,
)
from bayesify.types import device_of


def predict(  # noqa: PLR0913 - a verb's choices are keywords, each with a default
    model: nn.Module,
    data: Any,
    *,
    num_samples: int = 30,
    by: str | None = None,
    likelihood: Likelihood | str | None = None,
    batch_size: int = 256,
    memory_limit: int | None = None,
    num_outputs: int | None = None,
    seed: int | None = None,
    progress: bool | None = None,
) -> Predictive:
    """Predict with a converted model and say how sure it is.

    Args:
        model: A model from `convert`, usually trained with `fit`.
        data: A tensor, a mapping of keyword inputs, a tuple of positional inputs, or a loader: a
            DataLoader or a list of batches. `Moments(x, variance)` in the place of a tensor is an
            input known so well: "moments" and "covariance" carry its variance, "linearised" adds
            what it does to first order, ways that draw weights draw the input with them, and
            "mean" takes its mean.
        num_samples: Posterior draws to average.
        by: How randomness travels: one of the method's ways, such as "sample", "local", "mean",
            "moments" (one pass, nothing drawn), "covariance" (the same with a derivative per
            output, which knows what outputs and layers share) or "linearised" (such derivatives at
            the mean weights); None takes the way the model was trained.
        likelihood: What outputs mean, where `fit` did not settle it. A name that `fit` settled
            already keeps what it learned, such as the noise.
        batch_size: Examples per pass for inputs that are not a loader.
        memory_limit: Bytes that a chunk of draws, or of derivatives, may take.
        num_outputs: Of by="covariance" or "linearised" over many classes: how many logits of each
            example, the largest, have a derivative; the others count as certain. None takes all.
        seed: Seed of the draws; the global generators are left as they were.
        progress: Whether to show a bar over a loader's batches; None shows one in a terminal.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    batches = predict_batches(
        model,
        data if _is_loader(data) else _Batches(data, batch_size),
        num_samples=num_samples,
        by=by,
        likelihood=likelihood,
        memory_limit=memory_limit,
        num_outputs=num_outputs,
        seed=seed,
        progress=progress if _is_loader(data) else False,
    )
    parts = [predictive for predictive, _ in batches]
    if not parts:
        raise ValueError("data holds no batch to predict")
    return Predictive.cat(parts)


def predict_batches(  # noqa: PLR0913 - as of `predict`
    model: nn.Module,
    data: Iterable[Any],
    *,
    num_samples: int = 30,
    by: str | None = None,
    likelihood: Likelihood | str | None = None,
    memory_limit: int | None = None,
    num_outputs: int | None = None,
    seed: int | None = None,
    progress: bool | None = None,
) -> Iterator[tuple[Predictive, Tensor | None]]:
    """Yield the prediction and the targets of every batch of a loader."""
    record = require_record(model)
    meaning = _likelihood(record, likelihood)
    way = record.method.default_way() if by is None else by
    if way not in record.method.ways:
        kind = f"way to predict with {record.method.name}"
        raise ValueError(unknown(kind, way, record.method.ways))
    if num_samples < 1:
        raise ValueError(f"num_samples must be at least 1, got {num_samples}")
    _check_num_outputs(num_outputs, way)
    device = device_of(model)
    number = 1 if way == "mean" else record.method.num_draws(model, num_samples)
    with evaluating(model), _seeded(seed, device), record.method.sampling(model, way):
        draws = Draws(model, memory_limit, is_vectorised=record.method.can_be_vectorised)
        for batch in shown(data, "predicting", progress):
            inputs, targets = split_batch(to_device(batch, device))
            if way == "mean":
                inputs = at_mean(inputs)
            inputs = in_short(inputs, model)
            name = record.method.ways[way]
            if way == "moments":
                yield predict_moments(model, inputs, meaning, name), targets
                continue
            if way in _BY_DERIVATIVES:
                check_num_outputs(num_outputs, meaning)
                with torch.no_grad():
                    found = _BY_DERIVATIVES[way](model, inputs, memory_limit, num_outputs)
                    answer = of_correlated(found, meaning, way, name)
                yield answer, targets
                continue
            accumulator = _accumulator(meaning)
            for stack in draws.outputs(inputs, number):
                _update(accumulator, meaning, stack)
            made_by = name if number == 1 else f"{number} {name}, {draws.how}"
            yield accumulator.result(made_by), targets


_BY_DERIVATIVES = {"linearised": linearised, "covariance": covariant_outputs}

Accumulator = ClassificationAccumulator | RegressionAccumulator | CustomAccumulator


def _accumulator(likelihood: Likelihood) -> Accumulator:
    if isinstance(likelihood, Classification):
        return ClassificationAccumulator(likelihood.class_axis or 1)
    if isinstance(likelihood, GaussianRegression):
        return RegressionAccumulator()
    return CustomAccumulator()


@torch.no_grad()
def _update(accumulator: Accumulator, likelihood: Likelihood, stack: Tensor) -> None:
    if isinstance(accumulator, RegressionAccumulator):
        assert isinstance(likelihood, GaussianRegression)
        accumulator.update(*likelihood.split(stack))
    else:
        accumulator.update(stack)


def _likelihood(record: Record, chosen: Likelihood | str | None) -> Likelihood:
    settled = record.likelihood
    if isinstance(settled, Likelihood) and chosen in (None, settled.task):
        return settled
    if chosen is not None:
        return as_likelihood(chosen, None)
    raise ValueError(
        "likelihood must be given: this model was not trained by fit, so what its outputs mean is "
        "unknown; pass likelihood='classification' or likelihood='regression'"
    )


def _check_num_outputs(number: int | None, way: str) -> None:
    if number is None:
        return
    if way not in _BY_DERIVATIVES:
        raise ValueError(
            f"num_outputs is an option of by='covariance' and by='linearised', got "
            f"num_outputs={number} with by={way!r}; leave it out, or pass one of those"
        )
    if number < 1:
        raise ValueError(f"num_outputs must be at least 1, got {number}")


class _Batches:
    """Inputs that are not a loader, cut into batches."""

    def __init__(self, inputs: Any, size: int) -> None:
        try:
            self.count = batch_size(inputs)
        except TypeError:
            raise TypeError(
                "data must be a tensor, a mapping or tuple of tensors, or a loader, got "
                f"{type(inputs).__name__}; wrap a data set in a DataLoader, an array in "
                "torch.as_tensor"
            ) from None
        self.inputs, self.size = inputs, size

    def __iter__(self) -> Iterator[Any]:
        for start in range(0, max(self.count, 1), self.size):
            # A pair of positional inputs must not read as (inputs, targets).
            yield (cut(self.inputs, self.count, start, start + self.size),)


def _is_loader(data: Any) -> bool:
    if isinstance(data, list):
        return len(data) > 0 and not any(isinstance(entry, (Tensor, Moments)) for entry in data)
    is_inputs = isinstance(data, (Tensor, Moments, Mapping, Sequence, np.ndarray))
    return isinstance(data, Iterable) and not is_inputs


@contextmanager
def _seeded(seed: int | None, device: torch.device) -> Iterator[None]:
    if seed is None:
        yield
        return
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        # Only the generators that are put back: torch.manual_seed would seed every device's.
        torch.default_generator.manual_seed(seed)
        for index in devices:
            torch.cuda.default_generators[index.index or 0].manual_seed(seed)
        yield


def shown(data: Iterable[Any], doing: str, progress: bool | None) -> Iterable[Any]:
    """Return the batches of a loader, with a bar that says what is done with them.

    Args:
        data: A loader.
        doing: What the bar says.
        progress: Whether to show it; None shows it in a terminal.
    """
    if not (sys.stderr.isatty() if progress is None else progress):
        return data
    from rich.console import Console
    from rich.progress import track

    return track(data, doing, console=Console(stderr=True), transient=True)
