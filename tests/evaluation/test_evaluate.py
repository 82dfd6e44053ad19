import math

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, log_loss, roc_auc_score
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from bayesify.conversion import convert
from bayesify.evaluation import Evaluation, evaluate, metrics
from bayesify.evaluation.evaluate import summarise
from bayesify.evaluation.metric import Metric, metrics_for
from bayesify.evaluation.standard_metrics import DEFAULT_METRICS
from bayesify.methods import MeanField
from bayesify.prediction.predictive import (
    ClassificationAccumulator,
    CustomPredictive,
    Predictive,
    RegressionPredictive,
)
from bayesify.training import fit

MEASURES = ["auroc", "aupr", "fpr95"]


def classify(logits: Tensor) -> Predictive:
    accumulator = ClassificationAccumulator()
    accumulator.update(logits)
    return accumulator.result("8 weight samples")


def example(task: str, num: int = 90, seed: int = 0) -> tuple[Predictive, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    values = 3 * torch.randn(num, 3, generator=generator) + torch.randn(
        8, num, 3, generator=generator
    )
    if task == "classification":
        return classify(values), torch.randint(3, (num,), generator=generator)
    targets = torch.randn(num, 3, generator=generator)
    return RegressionPredictive.build(values, 0.5, "8 weight samples"), targets


def in_batches(pair: tuple[Predictive, Tensor], sizes: list[int]):
    start = 0
    for size in sizes:
        yield pair[0][start : start + size], pair[1][start : start + size]
        start += size


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_batches_do_not_change_the_result(task):
    data, ood = example(task), example(task, 50, seed=1)
    names = metrics_for(task)
    whole = summarise([data], {"other": [ood]}, names)
    split = summarise(in_batches(data, [40, 1, 0, 49]), {"other": in_batches(ood, [25, 25])}, names)
    assert list(whole) == names
    assert all(math.isfinite(value) for value in whole.values())
    # Regression terms are float32, whose last bit may depend on the place in a vector.
    assert dict(split) == pytest.approx(dict(whole), rel=2**-21)
    assert split.ood == {"other": pytest.approx(whole.ood["other"], abs=1e-12)}
    assert split.num_examples == whole.num_examples == 90


def test_classification_defaults_equal_sklearn():
    predictive, targets = example("classification")
    found = summarise([(predictive, targets)])
    assert isinstance(found, Evaluation)
    assert tuple(found) == DEFAULT_METRICS["classification"]
    assert found["accuracy"] == pytest.approx(accuracy_score(targets, predictive.classes))
    probs = predictive.probs.double()
    expected = log_loss(targets, probs / probs.sum(1, keepdim=True))
    assert found["nll"] == pytest.approx(expected, rel=1e-6)
    assert (found.task, found.num_samples, found.made_by) == (
        "classification",
        8,
        "8 weight samples",
    )
    assert found.seconds > 0
    assert found.ood == {}
    assert found.directions["accuracy"] is True
    assert found.directions["nll"] is False


def test_regression_defaults_are_computed():
    predictive, targets = example("regression")
    found = summarise([(predictive, targets)])
    assert tuple(found) == DEFAULT_METRICS["regression"]
    assert found["rmse"] == pytest.approx(((predictive.mean - targets) ** 2).mean().sqrt().item())


def test_ood_leads_with_entropy_and_names_the_rest():
    data, ood = example("classification"), example("classification", 50, seed=1)
    found = summarise([data], {"a": [ood], "b": [(ood[0], None)]}).ood
    others = [
        f"{score}_{m}" for score in ("max_probability", "mutual_information") for m in MEASURES
    ]
    assert list(found) == ["a", "b"]
    assert list(found["a"]) == MEASURES + others
    assert found["a"] == found["b"]
    truth = np.r_[np.zeros(90), np.ones(50)]
    for key, score in {
        "auroc": lambda p: p.entropy,
        "max_probability_auroc": lambda p: -p.probs.amax(1),
        "mutual_information_auroc": lambda p: p.mutual_information,
    }.items():
        expected = roc_auc_score(truth, torch.cat([score(data[0]), score(ood[0])]))
        assert found["a"][key] == pytest.approx(expected, abs=1e-6)


def test_ood_of_regression_leads_with_variance():
    found = summarise([example("regression")], {"a": [example("regression", 20, 1)]}).ood["a"]
    assert list(found) == MEASURES + [f"epistemic_{measure}" for measure in MEASURES]


def test_metrics_may_be_named_or_given():
    constant = Metric("constant", lambda *_: 7, ("classification",), None)
    found = summarise([example("classification")], metrics=["ece", constant])
    assert list(found) == ["ece", "constant"]
    assert found["constant"] == 7.0


def test_custom_predictions_take_custom_metrics():
    predictive = CustomPredictive(4, "samples", torch.ones(3, 2), torch.zeros(3, 2))
    spread = Metric("spread", lambda p, _: p.variance.mean(), ("custom",), False)
    assert summarise([(predictive, torch.zeros(3))], metrics=[spread])["spread"] == 0.0
    with pytest.raises(ValueError, match="no default for a custom prediction"):
        summarise([(predictive, torch.zeros(3))])
    with pytest.raises(ValueError, match="classification or regression, got custom"):
        summarise([(predictive, None)], {"a": [(predictive, None)]}, metrics=[])


def test_no_metrics_need_no_targets():
    predictive, _ = example("classification")
    found = summarise([(predictive, None)], {"a": [(predictive, None)]}, metrics=[])
    assert dict(found) == {}
    assert found.ood["a"]["auroc"] == 0.5


def test_empty_batches_give_nan():
    predictive, targets = example("classification", 0)
    found = summarise([(predictive, targets)])
    assert found.num_examples == 0
    assert all(math.isnan(value) for value in found.values())


def test_one_sample_gives_numbers_for_all_but_epistemic_parts():
    generator = torch.Generator().manual_seed(0)
    one = RegressionPredictive.build(torch.randn(1, 9, generator=generator), 1.0, "one sample")
    found = summarise([(one, torch.zeros(9))], {"a": [(one, None)]})
    assert all(math.isfinite(value) for value in found.values())
    assert math.isnan(found.ood["a"]["auroc"])


def test_mistakes_are_found_before_anything_is_predicted():
    def untouched():
        pytest.fail("the data were read")
        yield

    with pytest.raises(LookupError, match="unknown metric 'acc'"):
        summarise(untouched(), metrics=["acc"])
    with pytest.raises(TypeError, match=r"list of names, got the string 'nll': put it in \[\]"):
        summarise(untouched(), metrics="nll")


def test_metric_of_another_task_stops_at_the_first_batch():
    def once():
        yield example("classification")
        pytest.fail("a second batch was read")

    with pytest.raises(ValueError, match="'rmse' is defined for regression, got a classification"):
        summarise(once(), metrics=["rmse"])


def test_half_read_batches_are_closed_after_an_error():
    closed = []

    def batches():
        try:
            yield example("classification")
            yield example("classification")
        finally:
            closed.append(True)

    pairs = batches()  # held here, so that only an explicit close can end it
    with pytest.raises(ValueError, match="'rmse' is defined for regression"):
        summarise(pairs, metrics=["rmse"])
    assert closed == [True]


def fitted(outputs: int, likelihood: str, targets: Tensor) -> tuple[nn.Module, DataLoader]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, outputs))
    model = convert(net, MeanField())
    inputs = torch.randn(len(targets), 2)
    data = TensorDataset(inputs, targets)
    fit(model, DataLoader(data, 16), epochs=1, likelihood=likelihood)
    return model, DataLoader(data, 16)


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_evaluate_scores_a_fitted_model(task):
    targets = (
        torch.arange(40) % 3 if task == "classification" else torch.linspace(-1, 1, 40)[:, None]
    )
    model, loader = fitted(3 if task == "classification" else 1, task, targets)
    other = DataLoader(TensorDataset(9 * torch.randn(10, 2)), 5)
    model.train()
    found = evaluate(model, loader, ood={"far": other}, num_samples=6, progress=False)
    assert tuple(found) == DEFAULT_METRICS[task]
    assert found.num_examples == 40
    assert found.num_samples == 6
    assert "6" in found.made_by
    assert 0.0 <= found.ood["far"]["auroc"] <= 1.0
    assert model.training
    assert list(evaluate(model, loader, metrics=["nll"], by="mean", progress=False)) == ["nll"]


def test_unusable_batches_are_named():
    predictive, targets = example("classification")
    with pytest.raises(ValueError, match="batch 1 of data has no targets"):
        summarise([(predictive, targets), (predictive, None)])
    with pytest.raises(ValueError, match="batch 0 of data has 5 targets for 90 predictions"):
        summarise([(predictive, targets[:5])])
    with pytest.raises(ValueError, match="data gave no batches"):
        summarise([])
    with pytest.raises(ValueError, match=r"ood\['svhn'\] gave no batches"):
        summarise([(predictive, targets)], {"svhn": []})


def test_registry_is_reexported():
    assert "ece" in metrics
