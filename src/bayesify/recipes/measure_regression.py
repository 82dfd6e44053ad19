"""A regression in one dimension: its bands, how often they hold, its errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from bayesify.conversion.posterior import posteriors
from bayesify.data.synthetic import truth_at
from bayesify.evaluation.regression import interval_coverage
from bayesify.prediction import predict
from bayesify.prediction.predictive import RegressionPredictive
from bayesify.recipes.measure import measures
from bayesify.recipes.run import Parts
from bayesify.types import device_of


@measures.register("regression")
def measure_regression(parts: Parts, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a network's bands on a curve, how often test points lie within, and its errors.

    Options are "num_samples", and "interval", where the bands are drawn.
    """
    num_samples = int(options.get("num_samples", 200))
    low, high = options.get("interval", (-0.2, 1.0))
    model, data = parts.model, parts.data.to("cpu")
    device = device_of(model)
    x = torch.linspace(low, high, 241)[:, None]
    bands = _regression(model, x.to(device), num_samples)
    # One network has no spread to tell of.
    epistemic = bands.epistemic.nan_to_num(0.0).clamp_min(0)
    inputs = data.test.inputs
    on_test = _regression(model, inputs.to(device), num_samples)
    targets = data.test.targets
    error = on_test.mean - targets
    return {
        "bands": {
            "x": x[:, 0].tolist(),
            "mean": bands.mean[:, 0].tolist(),
            "std": (bands.aleatoric + epistemic)[:, 0].sqrt().tolist(),
            "epistemic_std": epistemic[:, 0].sqrt().tolist(),
            "truth": truth_at(data.name, x)[:, 0].tolist(),
        },
        "train": {"x": data.train.inputs[:, 0].tolist(), "y": data.train.targets[:, 0].tolist()},
        "test": {"x": inputs[:, 0].tolist(), "y": targets[:, 0].tolist()},
        "coverage": {
            str(level): interval_coverage(on_test, targets, level)
            for level in (0.5, 0.8, 0.9, 0.95)
        },
        "rmse": float(error.square().mean().sqrt()),
        "nll": float(-on_test.log_prob(targets).mean()),
    }


def _regression(model: nn.Module, x: Tensor, num_samples: int) -> RegressionPredictive:
    # Whole functions are drawn: a noise of its own at every point would make a band jagged.
    by = "sample" if posteriors(model) else None
    found = predict(model, x, num_samples=num_samples, by=by, seed=0).to("cpu")
    assert isinstance(found, RegressionPredictive)
    return found
