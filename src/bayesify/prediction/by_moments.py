"""A prediction from one pass: the mean and the variance of the outputs, and nothing drawn.

Weights go in as means and variances and the network's own forward carries both (`moments`). Class
probabilities are an average over logits, which a mean and a variance describe: 256 points of a
Sobol sequence take it to two or three digits, the same points for every example.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from bayesify.batches import call_model, output_tensor
from bayesify.conversion.convert import require_record
from bayesify.moments import Moments, precise_dtype
from bayesify.prediction.moment_correction import corrected
from bayesify.prediction.predictive import (
    ClassificationAccumulator,
    CustomPredictive,
    Predictive,
    RegressionPredictive,
)
from bayesify.training.likelihood import Classification, GaussianRegression, Likelihood

NUM_POINTS = 256
# Points whose probabilities are held at once.
_CHUNK = 32


@torch.no_grad()
def predict_moments(
    model: nn.Module, inputs: Any, likelihood: Likelihood, made_by: str
) -> Predictive:
    """Predict a batch with a model whose posteriors give moments now.

    Args:
        model: The model, in evaluation mode.
        inputs: Inputs, as the model takes them.
        likelihood: What its outputs mean.
        made_by: How it is made, in words.
    """
    factors = require_record(model).moment_factors
    if factors:
        made_by = f"{made_by}, corrected by module"
    with corrected(model, factors):
        output = output_tensor(call_model(model, inputs), (Tensor, Moments))
    mean, variance = output.pair() if isinstance(output, Moments) else (output, None)
    mean = mean.to(precise_dtype(mean.dtype))
    variance = torch.zeros_like(mean) if variance is None else variance.to(mean.dtype)
    if isinstance(likelihood, Classification):
        axis = likelihood.class_axis or 1
        return of_logits(mean, axis, lambda points: variance.sqrt() * points, made_by)
    return of_values(mean, variance, likelihood, made_by)


def of_logits(
    mean: Tensor, class_axis: int, spread: Callable[[Tensor], Tensor], made_by: str
) -> Predictive:
    """Read classes off normal logits: their mean, and what a standard normal point adds to it."""
    accumulator = ClassificationAccumulator(class_axis)
    for points in logit_points(mean, class_axis).split(_CHUNK):
        accumulator.update(mean + spread(points))
    return accumulator.result(made_by)


def of_values(mean: Tensor, variance: Tensor, likelihood: Likelihood, made_by: str) -> Predictive:
    """Read off what is not classes: numbers with noise, or outputs as they are."""
    if isinstance(likelihood, GaussianRegression):
        value, noise = likelihood.split(mean)
        # The noise, where a network gives it, is read at its mean.
        spread, _ = likelihood.split(variance)
        rows = (value[None], noise[None] if isinstance(noise, Tensor) and noise.ndim else noise)
        return RegressionPredictive.build(*rows, made_by, propagated_variance=spread[None])
    return CustomPredictive(0, made_by, mean, variance)


def logit_points(logits: Tensor, class_axis: int) -> Tensor:
    """Return standard Normal points, shaped to be added to logits: (points, 1, ..., C, ...)."""
    axis = class_axis % logits.ndim
    points = _sobol(logits.shape[axis]).to(logits)
    sizes = [1] * logits.ndim
    sizes[axis] = -1
    return points.view(NUM_POINTS, *sizes)


@lru_cache(maxsize=8)
@torch.inference_mode(False)  # what is kept must serve everywhere
def _sobol(num_classes: int) -> Tensor:
    if num_classes > torch.quasirandom.SobolEngine.MAXDIM:
        generator = torch.Generator().manual_seed(0)
        return torch.randn(NUM_POINTS, num_classes, generator=generator, dtype=torch.float64)
    engine = torch.quasirandom.SobolEngine(num_classes, scramble=True, seed=0)
    uniform = engine.draw(NUM_POINTS, dtype=torch.float64)
    # Scrambled points can round to 0 or 1, which no Normal number is.
    return torch.special.ndtri(uniform.clamp(1e-9, 1 - 1e-9))
