"""How good a regression is: close, likely, and as wide as it is wrong.

Every function takes a regression Predictive and targets of its shape. No examples: NaN.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bayesify.prediction.predictive import RegressionPredictive


def rmse(predictive: RegressionPredictive, targets: Tensor) -> float:
    """Return the root of the mean squared error of the predictive mean, over all outputs."""
    targets = predictive.match(targets).to(predictive.mean)
    return float((predictive.mean - targets).cpu().double().square().mean().sqrt())


def regression_nll(predictive: RegressionPredictive, targets: Tensor) -> float:
    """Return the mean over examples of -log density, joint over the outputs, in nats.

    NaN when the prediction has no variance: give the model a noise variance.
    """
    return float(-predictive.log_prob(targets).cpu().double().mean())


def interval_coverage(
    predictive: RegressionPredictive, targets: Tensor, level: float = 0.95
) -> float:
    """Return the share of outputs inside their own central interval; `level` if calibrated."""
    low, high = predictive.interval(level)
    targets = predictive.match(targets).to(predictive.mean)
    return float(((targets >= low) & (targets <= high)).cpu().double().mean())


def mean_interval_width(predictive: RegressionPredictive, level: float = 0.95) -> float:
    """Return the mean width of the central intervals; smaller is sharper."""
    low, high = predictive.interval(level)
    return float((high - low).cpu().double().mean())


def crps(predictive: RegressionPredictive, targets: Tensor) -> float:
    """Return the continuous ranked probability score, E|Y - y| - E|Y - Y'|/2, over all outputs.

    Y and Y' are independent draws of the predicted mixture; the expectations are exact.

    Reference: Grimit et al. (2006).
    """
    targets = predictive.match(targets).to(predictive.mean)
    means, variances = predictive.samples, predictive.component_variance
    distance = _mean_absolute(targets - means, variances).mean(0)
    # One row of pairs at a time: all T^2 pairs at once would not fit.
    spread = torch.stack(
        [
            _mean_absolute(mean - means, variance + variances).mean(0)
            for mean, variance in zip(means, variances, strict=True)
        ]
    ).mean(0)
    return float((distance - spread / 2).cpu().double().mean())


def _mean_absolute(mean: Tensor, variance: Tensor) -> Tensor:
    """E|Z| of Z ~ N(mean, variance)."""
    is_point = variance == 0
    std = variance.masked_fill(is_point, 1.0).sqrt()
    ratio = mean / std
    density = (-0.5 * ratio.square()).exp() / math.sqrt(2 * math.pi)
    spread = 2 * std * density + mean * torch.erf(ratio / math.sqrt(2.0))
    return torch.where(is_point, mean.abs(), spread)
