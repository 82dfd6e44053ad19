import math

import pytest
import torch

from bayesify.evaluation.metric import Metric, metric, metrics, metrics_for
from bayesify.prediction.predictive import ClassificationAccumulator, RegressionPredictive


def classification():
    accumulator = ClassificationAccumulator()
    accumulator.update(torch.tensor([[[2.0, 0.0], [0.0, 2.0], [2.0, 0.0]]]))
    return accumulator.result("one sample")


@pytest.fixture
def registered_name():
    name = "error_rate_of_this_test"
    yield name
    metrics._entries.pop(name, None)


def test_a_new_metric_is_one_registration(registered_name):
    @metric(registered_name, tasks=("classification",), higher_is_better=False)
    def error_rate(predictive, targets):
        return (predictive.classes != targets).double().mean()

    assert metrics[registered_name] is error_rate
    assert isinstance(error_rate, Metric)
    assert registered_name in metrics_for("classification")
    assert registered_name not in metrics_for("regression")
    value = error_rate(classification(), torch.tensor([0, 1, 1]))
    assert isinstance(value, float)
    assert value == pytest.approx(1 / 3)


def test_metric_refuses_another_task_and_names_its_own():
    regression = RegressionPredictive.build(torch.zeros(2, 3), 1.0, "samples")
    with pytest.raises(ValueError, match="'ece' is defined for classification, got a regression"):
        metrics["ece"](regression, torch.zeros(3))
    with pytest.raises(ValueError, match=r"for regression there are: .*rmse"):
        metrics["ece"](regression, torch.zeros(3))


def test_unknown_metric_lists_the_known_ones():
    with pytest.raises(LookupError, match=r"unknown metric 'acuracy'. Did you mean 'accuracy'\?"):
        metrics["acuracy"]


def test_name_taken_twice_is_refused():
    with pytest.raises(ValueError, match="metric 'nll' is registered twice"):
        metric("nll", tasks=("custom",), higher_is_better=True)(lambda *_: math.nan)
