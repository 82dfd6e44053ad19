import math

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve
from torch import Tensor

from bayesify.evaluation.detection import aupr, auroc, detect, fpr95
from bayesify.prediction.predictive import (
    ClassificationAccumulator,
    CustomPredictive,
    Predictive,
    RegressionPredictive,
)

MEASURES = [auroc, aupr, fpr95]
# torchmetrics sums in float32.
PRECISION = 1e-6


def scores(kind: str) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    familiar = torch.randn(300, generator=generator)
    ood = torch.randn(200, generator=generator) + 1
    if kind == "tied":
        return familiar.round(), ood.round()
    if kind == "far":  # a sigmoid would be 1 for nearly all of these
        return 30 + 3 * familiar, 30 + 3 * ood
    return familiar, ood


def stacked(familiar: Tensor, ood: Tensor) -> tuple[np.ndarray, np.ndarray]:
    truth = np.r_[np.zeros(len(familiar)), np.ones(len(ood))]
    return truth, torch.cat([familiar, ood]).numpy()


@pytest.mark.parametrize("kind", ["plain", "tied", "far"])
def test_areas_equal_sklearn(kind):
    familiar, ood = scores(kind)
    truth, values = stacked(familiar, ood)
    assert auroc(familiar, ood) == pytest.approx(roc_auc_score(truth, values), abs=PRECISION)
    expected = average_precision_score(truth, values)
    assert aupr(familiar, ood) == pytest.approx(expected, abs=PRECISION)


def test_auroc_counts_pairs_and_half_of_ties():
    familiar, ood = scores("tied")
    pairs = (ood[:, None] > familiar).double() + 0.5 * (ood[:, None] == familiar).double()
    assert auroc(familiar, ood) == pytest.approx(pairs.mean().item(), abs=PRECISION)


@pytest.mark.parametrize("kind", ["plain", "tied", "far"])
@pytest.mark.parametrize("num_ood", [1, 19, 20, 21, 100, 200])
def test_fpr95_equals_the_roc_curve_of_sklearn(kind, num_ood):
    familiar, ood = scores(kind)
    ood = ood[:num_ood]
    false_positive, true_positive, _ = roc_curve(*stacked(familiar, ood), drop_intermediate=False)
    expected = false_positive[true_positive >= 0.95 - 1e-12].min()
    assert fpr95(familiar, ood) == pytest.approx(expected, abs=1e-12)


def test_perfect_worst_and_useless_scores():
    low, high = torch.zeros(30), torch.ones(10)
    assert [measure(low, high) for measure in MEASURES] == [1.0, 1.0, 0.0]
    assert auroc(torch.ones(30), torch.zeros(10)) == 0.0
    assert fpr95(torch.ones(30), torch.zeros(10)) == 1.0
    useless = [measure(torch.full((30,), 5.0), torch.full((10,), 5.0)) for measure in MEASURES]
    assert useless == [0.5, 0.25, 1.0]


@pytest.mark.parametrize("measure", MEASURES)
def test_only_the_order_of_scores_matters(measure):
    familiar, ood = scores("plain")
    shuffled = familiar[torch.randperm(300, generator=torch.Generator().manual_seed(1))]
    expected = measure(familiar, ood)
    assert measure(shuffled, ood) == pytest.approx(expected, abs=PRECISION)
    monotone = measure(1e6 * familiar.double() ** 3, 1e6 * ood.double() ** 3)
    assert monotone == pytest.approx(expected, abs=PRECISION)


@pytest.mark.parametrize("measure", MEASURES)
def test_undefined_cases_give_nan(measure):
    some, none, broken = torch.rand(3), torch.zeros(0), torch.tensor([0.1, math.nan])
    for pair in [(some, none), (none, some), (none, none), (some, broken), (broken, some)]:
        assert math.isnan(measure(*pair))


@pytest.mark.parametrize("measure", MEASURES)
def test_low_precision_and_infinite_scores_work(measure):
    familiar, ood = scores("plain")
    low = measure(familiar.bfloat16(), ood.bfloat16())
    assert low == measure(familiar.bfloat16().float(), ood.bfloat16().float())
    infinite = torch.tensor([math.inf, math.inf, -math.inf])
    assert 0.0 <= measure(infinite, torch.tensor([1.0, math.inf])) <= 1.0


def classify(logits: Tensor) -> Predictive:
    accumulator = ClassificationAccumulator()
    accumulator.update(logits)
    return accumulator.result("samples")


def test_detect_uses_every_score_the_right_way_up():
    sure = 10 * torch.eye(3)[[0, 1, 2, 0]].expand(4, 4, 3)
    torn = 10 * torch.eye(3)[torch.tensor([[0, 1, 2], [1, 2, 0], [2, 0, 1], [0, 0, 1]])]
    found = detect(classify(sure), classify(torn))
    assert list(found) == ["entropy", "max_probability", "mutual_information"]
    for measures in found.values():
        assert measures == {"auroc": 1.0, "aupr": 1.0, "fpr95": 0.0}


def test_mutual_information_sees_what_entropy_cannot():
    # The familiar are ambiguous but agreed on, the ood certain but contradictory.
    ambiguous = torch.zeros(4, 5, 2)
    contradictory = 20 * torch.eye(2)[[0, 1, 0, 1]][:, None].expand(4, 6, 2)
    found = detect(classify(ambiguous), classify(contradictory))
    assert found["mutual_information"]["auroc"] == 1.0
    assert found["entropy"]["auroc"] < 0.6


def test_detect_takes_each_pixel_as_an_example():
    generator = torch.Generator().manual_seed(0)
    familiar = classify(3 * torch.randn(5, 4, 3, 6, 6, generator=generator))
    ood = classify(torch.randn(5, 2, 3, 6, 6, generator=generator))
    truth, values = stacked(familiar.entropy.flatten(), ood.entropy.flatten())
    expected = roc_auc_score(truth, values)
    assert detect(familiar, ood)["entropy"]["auroc"] == pytest.approx(expected, abs=PRECISION)


def test_detect_scores_regression_by_variance():
    generator = torch.Generator().manual_seed(0)
    narrow = RegressionPredictive.build(torch.randn(8, 20, generator=generator), 0.1, "samples")
    wide = RegressionPredictive.build(9 * torch.randn(8, 10, generator=generator), 0.1, "samples")
    found = detect(narrow, wide)
    assert list(found) == ["variance", "epistemic"]
    assert all(measures["auroc"] == 1.0 for measures in found.values())


def test_detect_refuses_other_tasks():
    custom = CustomPredictive(2, "samples", torch.zeros(2, 1), torch.zeros(2, 1))
    classes = classify(torch.zeros(2, 2, 3))
    with pytest.raises(ValueError, match="same task, classification, got custom"):
        detect(classes, custom)
    with pytest.raises(ValueError, match="classification and regression, got a custom"):
        detect(custom, custom)
