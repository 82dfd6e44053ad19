"""The metrics that come with the library, by name, and which of them a table shows by default."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from bayesify.evaluation.confidence_set import confidence_sets
from bayesify.evaluation.metric import metric
from bayesify.evaluation.regression import (
    crps,
    interval_coverage,
    mean_interval_width,
    regression_nll,
    rmse,
)
from bayesify.evaluation.scores import (
    accuracy,
    area_under_risk_coverage,
    brier,
    expected_calibration_error,
    flatten_positions,
    marginal_calibration_error,
    negative_log_likelihood,
    selective_accuracy,
)
from bayesify.evaluation.segmentation import mean_iou
from bayesify.prediction.predictive import (
    ClassificationPredictive,
    Predictive,
    RegressionPredictive,
    Task,
)

DEFAULT_METRICS: dict[Task, tuple[str, ...]] = {
    "classification": (
        "accuracy",
        "nll",
        "brier",
        "ece",
        "marginal_calibration_error",
        "selective_accuracy",
        "confidence_set_accuracy",
        "confidence_set_size",
    ),
    "regression": ("rmse", "nll", "coverage", "interval_width"),
    "custom": (),
}


@metric("nll", tasks=("classification", "regression"), higher_is_better=False)
def nll(predictive: Predictive, targets: Tensor) -> float:
    """Return the mean of -log of the averaged prediction at the targets, in nats."""
    if isinstance(predictive, RegressionPredictive):
        return regression_nll(predictive, targets)
    return negative_log_likelihood(*flatten_positions(predictive.probs, targets))


def _register_score(
    name: str, score: Callable[[Tensor, Tensor], float], *, higher_is_better: bool
) -> None:
    """Register a function of probabilities and class indices."""

    def of_predictive(predictive: ClassificationPredictive, targets: Tensor) -> float:
        return score(*flatten_positions(predictive.probs, targets))

    metric(name, tasks=("classification",), higher_is_better=higher_is_better)(of_predictive)


_register_score("accuracy", accuracy, higher_is_better=True)
_register_score("brier", brier, higher_is_better=False)
_register_score("ece", expected_calibration_error, higher_is_better=False)
_register_score("marginal_calibration_error", marginal_calibration_error, higher_is_better=False)
_register_score("selective_accuracy", selective_accuracy, higher_is_better=True)
_register_score("area_under_risk_coverage", area_under_risk_coverage, higher_is_better=False)


@metric("confidence_set_accuracy", tasks=("classification",), higher_is_better=True)
def confidence_set_accuracy(predictive: ClassificationPredictive, targets: Tensor) -> float:
    """Return the accuracy where every sample agrees."""
    return confidence_sets(predictive, targets)[0].accuracy


@metric("confidence_set_size", tasks=("classification",), higher_is_better=True)
def confidence_set_size(predictive: ClassificationPredictive, targets: Tensor) -> float:
    """Return the share of examples on which every sample agrees."""
    return confidence_sets(predictive, targets)[0].size


@metric("mean_iou", tasks=("classification",), higher_is_better=True)
def mean_iou_of_classes(predictive: ClassificationPredictive, targets: Tensor) -> float:
    """Return the mean over classes of intersection over union; for a class at every pixel."""
    return mean_iou(predictive.classes, targets, predictive.probs.shape[1])


metric("rmse", tasks=("regression",), higher_is_better=False)(rmse)
metric("crps", tasks=("regression",), higher_is_better=False)(crps)
# 0.95 is best: a coverage above it is as wrong as one below.
metric("coverage", tasks=("regression",), higher_is_better=None)(interval_coverage)


@metric("interval_width", tasks=("regression",), higher_is_better=False)
def interval_width(predictive: RegressionPredictive, targets: Tensor) -> float:  # noqa: ARG001
    """Return the mean width of the 95 % intervals."""
    return mean_interval_width(predictive)
