"""Every registered metric: range, perfect score, extremes, and agreement with its function."""

import math

import pytest
import torch
from torch import Tensor

from bayesify.evaluation import regression, scores
from bayesify.evaluation.confidence_set import confidence_sets
from bayesify.evaluation.metric import metrics, metrics_for
from bayesify.evaluation.segmentation import mean_iou
from bayesify.evaluation.standard_metrics import DEFAULT_METRICS
from bayesify.prediction.predictive import (
    ClassificationAccumulator,
    ClassificationPredictive,
    Predictive,
    RegressionPredictive,
)

CLASSIFICATION = metrics_for("classification")
REGRESSION = metrics_for("regression")


def classify(logits: Tensor) -> ClassificationPredictive:
    accumulator = ClassificationAccumulator()
    accumulator.update(logits)
    return accumulator.result("samples")


def example(task: str, num: int = 40) -> tuple[Predictive, Tensor]:
    generator = torch.Generator().manual_seed(0)
    values = 2 * torch.randn(6, num, 4, generator=generator)
    if task == "classification":
        return classify(values), torch.randint(4, (num,), generator=generator)
    targets = torch.randn(num, 4, generator=generator)
    return RegressionPredictive.build(values, 0.5, "samples"), targets


def perfect(task: str) -> tuple[Predictive, Tensor]:
    targets = torch.arange(30) % 3
    if task == "classification":
        return classify((200 * torch.eye(3)[targets]).expand(5, 30, 3)), targets
    # Small enough to be sharp: log sqrt(2 pi 1e-6) = -5.99.
    return RegressionPredictive.build(targets.float().expand(5, 30), 1e-6, "samples"), targets


BEST = {
    "accuracy": 1.0,
    "brier": 0.0,
    "ece": 0.0,
    "marginal_calibration_error": 0.0,
    "selective_accuracy": 1.0,
    "area_under_risk_coverage": 0.0,
    "confidence_set_accuracy": 1.0,
    "confidence_set_size": 1.0,
    "mean_iou": 1.0,
    "rmse": 0.0,
    "coverage": 1.0,
}


@pytest.mark.parametrize("name", CLASSIFICATION)
def test_perfect_classification_scores_best(name):
    assert metrics[name](*perfect("classification")) == BEST.get(name, 0.0)


@pytest.mark.parametrize("name", REGRESSION)
def test_perfect_regression_scores_best(name):
    best = {"nll": 0.5 * math.log(2 * math.pi * 1e-6), "interval_width": 2 * 1.959964e-3}
    best["crps"] = 1e-3 * (math.sqrt(2) - 1) / math.sqrt(math.pi)
    expected = best.get(name, BEST.get(name))
    assert metrics[name](*perfect("regression")) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_better_predictions_score_better(task):
    good, targets = perfect(task)
    bad = good[torch.arange(30).roll(1)]
    for name in metrics_for(task):
        higher = metrics[name].higher_is_better
        if higher is None or name in ("confidence_set_size", "interval_width"):
            continue
        difference = metrics[name](good, targets) - metrics[name](bad, targets)
        assert difference > 0 if higher else difference < 0


@pytest.mark.parametrize("name", CLASSIFICATION)
def test_pixels_score_as_examples_without_the_unlabelled(name):
    generator = torch.Generator().manual_seed(1)
    shared = 3 * torch.randn(3, 4, 6, generator=generator)
    logits = shared + torch.randn(5, 3, 4, 6, generator=generator)
    targets = torch.randint(4, (3, 6), generator=generator)
    targets[0, 2] = targets[2, 5] = -100
    rows, labels = logits.movedim(3, 2).flatten(1, 2), targets.flatten()
    flat = metrics[name](classify(rows[:, labels >= 0]), labels[labels >= 0])
    assert math.isfinite(flat)
    assert metrics[name](classify(logits), targets) == pytest.approx(flat, rel=1e-6)


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_no_examples_give_nan_and_one_a_number(task):
    predictive, targets = example(task)
    for name in metrics_for(task):
        assert math.isnan(metrics[name](predictive[:0], targets[:0]))
        value = metrics[name](predictive[:1], targets[:1])
        assert math.isfinite(value) or name == "confidence_set_accuracy"


@pytest.mark.parametrize("name", CLASSIFICATION)
def test_extreme_logits_score_finitely(name):
    logits = torch.tensor([[[1e4, -1e4, 0.0], [-math.inf, 0.0, -math.inf], [1.0, 2.0, 3.0]]])
    for dtype in (torch.float32, torch.bfloat16):
        assert math.isfinite(metrics[name](classify(logits.to(dtype)), torch.tensor([1, 0, 2])))


def test_names_mean_their_functions():
    predictive, targets = example("classification")
    for name, function in {
        "accuracy": scores.accuracy,
        "nll": scores.negative_log_likelihood,
        "brier": scores.brier,
        "ece": scores.expected_calibration_error,
        "marginal_calibration_error": scores.marginal_calibration_error,
        "selective_accuracy": scores.selective_accuracy,
        "area_under_risk_coverage": scores.area_under_risk_coverage,
    }.items():
        assert metrics[name](predictive, targets) == function(predictive.probs, targets)
    assert metrics["mean_iou"](predictive, targets) == mean_iou(predictive.classes, targets, 4)
    agreed = classify(torch.eye(4)[targets].expand(3, 40, 4))[:20]
    torn = classify(torch.eye(4)[torch.stack([targets, targets, (targets + 1) % 4])])[20:]
    mixed = Predictive.cat([agreed, torn])
    assert metrics["confidence_set_size"](mixed, targets) == 0.5
    assert metrics["confidence_set_accuracy"](mixed, targets) == 1.0
    [found] = confidence_sets(mixed, targets)
    assert (found.accuracy, found.size) == (1.0, 0.5)


def test_names_mean_their_functions_for_regression():
    predictive, targets = example("regression")
    assert isinstance(predictive, RegressionPredictive)
    for name, function in {
        "rmse": regression.rmse,
        "nll": regression.regression_nll,
        "crps": regression.crps,
        "coverage": regression.interval_coverage,
    }.items():
        assert metrics[name](predictive, targets) == function(predictive, targets)
    low, high = predictive.interval(0.95)
    expected = (high - low).mean().item()
    assert metrics["interval_width"](predictive, targets) == pytest.approx(expected, rel=1e-6)


def test_defaults_are_registered_for_their_task():
    assert set(DEFAULT_METRICS) == {"classification", "regression", "custom"}
    for task, names in DEFAULT_METRICS.items():
        assert set(names) <= set(metrics_for(task))
