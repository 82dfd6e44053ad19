"""A factor on the variance behind every layer, fitted once against sampling.

Moments take the outputs of a layer as uncorrelated. They are not where one weight serves many
positions or tokens, and the variance after pooling or attention comes out too small. One number
per module mends most of it: the median, over the outputs of some examples, of the variance over
sampled weights by the propagated one, with the modules before it corrected already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from bayesify.batches import at_mean, call_model, drawn, in_short, split_batch, to_device
from bayesify.conversion.convert import require_record
from bayesify.conversion.scope import forward_by
from bayesify.moments import Moments
from bayesify.prediction.evaluation_mode import evaluating
from bayesify.types import device_of

_FEWEST_SAMPLES = 2
# A ratio of variances is known from this part of the mean on; smaller ones are rounding.
_LEAST_SHARE = 1e-6


@torch.no_grad()
def correct_moments(model: nn.Module, data: Any, num_samples: int = 200) -> dict[str, float]:
    """Fit the factors of a model, keep them with it, and return them by the names of modules.

    From then on `predict(model, x, by="moments")` uses them, and `save` writes them. Fit them
    again after further training.

    Args:
        model: A converted model, trained.
        data: A batch of inputs, or a loader of which the first batch is taken: some tens of
            examples are enough, of the kind the model will meet.
        num_samples: Draws of the weights that the variance of each output is found from.
    """
    if num_samples < _FEWEST_SAMPLES:
        raise ValueError(f"num_samples must be at least {_FEWEST_SAMPLES}, got {num_samples}")
    record = require_record(model)
    inputs = in_short(_first_batch(data, device_of(model)), model)
    with evaluating(model):
        found = _sampled_variances(model, inputs, num_samples)
        factors: dict[str, float] = {}

        def fit(name: str, output: Any) -> Any:
            return _fitted(name, output, found, factors)

        with _changing_outputs(model, fit), record.method.sampling(model, "moments"):
            call_model(model, inputs)
    record.moment_factors = factors
    return factors


@contextmanager
def corrected(model: nn.Module, factors: Mapping[str, float] | None) -> Iterator[None]:
    """Open a context in which factors by the names of modules are applied, where there are any."""
    if not factors:
        yield
        return
    with _changing_outputs(model, lambda name, output: _scaled(output, factors.get(name, 1.0))):
        yield


def _first_batch(data: Any, device: torch.device) -> Any:
    if isinstance(data, (Tensor, Moments, Mapping, tuple)):
        return to_device(data, device)
    inputs, _ = split_batch(to_device(next(iter(data)), device))
    return inputs


class _Spread:
    """The variance over draws of one module's output, about its output at the mean weights."""

    def __init__(self, centre: Tensor) -> None:
        self.centre = centre
        self.total = torch.zeros_like(centre, dtype=torch.float64)
        self.squares = torch.zeros_like(centre, dtype=torch.float64)
        self.count = 0

    def add(self, value: Tensor) -> None:
        deviation = value.double() - self.centre.double()
        self.total += deviation
        self.squares += deviation.square()
        self.count += 1

    def variance(self) -> Tensor:
        mean = self.total / self.count
        return (self.squares / self.count - mean.square()) * (self.count / (self.count - 1))


def _sampled_variances(model: nn.Module, inputs: Any, num_samples: int) -> dict[str, Tensor]:
    spreads: dict[str, _Spread] = {}

    def begin(name: str, output: Any) -> Any:
        if isinstance(output, Tensor) and output.is_floating_point() and name not in spreads:
            spreads[name] = _Spread(output)
        return output

    def add(name: str, output: Any) -> Any:
        spread = spreads.get(name)
        if spread is not None and spread.centre.shape == getattr(output, "shape", None):
            spread.add(output)
        return output

    with _changing_outputs(model, begin), forward_by(model, "mean"):
        call_model(model, at_mean(inputs))
    with _changing_outputs(model, add), forward_by(model, "sample"):
        for _ in range(num_samples):
            call_model(model, drawn(inputs))
    return {
        name: spread.variance() for name, spread in spreads.items() if spread.count == num_samples
    }


def _fitted(name: str, output: Any, found: Mapping[str, Tensor], factors: dict[str, float]) -> Any:
    if not isinstance(output, Moments) or output.is_certain or name not in found:
        return output
    if name not in factors:  # a module that is called twice keeps its first factor
        propagated, sampled = output.variance.double(), found[name]
        is_known = propagated > _LEAST_SHARE * propagated.mean()
        ratio = (sampled[is_known] / propagated[is_known]).median() if is_known.any() else None
        factors[name] = 1.0 if ratio is None or not ratio > 0 else float(ratio)
    return _scaled(output, factors[name])


def _scaled(output: Any, factor: float) -> Any:
    if not isinstance(output, Moments) or output.is_certain:
        return output
    mean, variance = output.pair()
    return Moments(mean, variance * factor)


@contextmanager
def _changing_outputs(model: nn.Module, change: Callable[[str, Any], Any]) -> Iterator[None]:
    """Let every module's output pass through a function of the module's name and the output."""

    def hook_of(name: str) -> Any:
        return lambda _module, _inputs, output: change(name, output)

    handles = [
        module.register_forward_hook(hook_of(name)) for name, module in model.named_modules()
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
