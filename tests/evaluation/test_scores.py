import bisect
import itertools
import math

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, log_loss
from torch import Tensor
from torchmetrics.functional.classification import multiclass_calibration_error

from bayesify.evaluation.scores import (
    accuracy,
    area_under_risk_coverage,
    brier,
    expected_calibration_error,
    flatten_positions,
    marginal_calibration_error,
    negative_log_likelihood,
    reliability,
    selective_accuracy,
)

SCORES = [
    accuracy,
    negative_log_likelihood,
    brier,
    expected_calibration_error,
    marginal_calibration_error,
    selective_accuracy,
    area_under_risk_coverage,
]


def example(num: int = 400, num_classes: int = 5, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(num, num_classes, generator=generator)
    targets = torch.multinomial((logits / 2).softmax(1), 1, generator=generator).squeeze(1)
    return logits.softmax(1), targets


def sure_of(classes: list[int], num_classes: int = 3) -> Tensor:
    return torch.eye(num_classes)[classes]


def test_accuracy_and_nll_equal_sklearn():
    probs, targets = example()
    assert accuracy(probs, targets) == accuracy_score(targets, probs.argmax(1))
    # sklearn renormalises in float64, which moves the log by a float32 rounding error.
    expected = log_loss(targets, probs.double() / probs.double().sum(1, keepdim=True))
    assert negative_log_likelihood(probs, targets) == pytest.approx(expected, rel=1e-6)


def test_nll_of_impossible_target_is_large_and_finite():
    found = negative_log_likelihood(sure_of([0]), torch.tensor([1]))
    assert found == pytest.approx(-math.log(torch.finfo(torch.float32).tiny), rel=1e-9)


def test_brier_equals_its_definition():
    probs, targets = example()
    expected = np.mean(
        [
            sum((p[c] - (y == c)) ** 2 for c in range(5))
            for p, y in zip(probs.double().numpy(), targets.numpy(), strict=True)
        ]
    )
    assert brier(probs, targets) == pytest.approx(expected, rel=1e-6)


def test_perfect_and_worst_predictions_reach_the_ends():
    right, wrong, targets = sure_of([0, 1, 2] * 6), sure_of([1, 2, 0] * 6), torch.arange(18) % 3
    assert [score(right, targets) for score in SCORES] == [1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0]
    assert accuracy(wrong, targets) == selective_accuracy(wrong, targets) == 0.0
    assert brier(wrong, targets) == 2.0
    assert expected_calibration_error(wrong, targets) == 1.0
    assert area_under_risk_coverage(wrong, targets) == 1.0
    # Bins are p = 0 (12 of 18, a class present in half) and p = 1 (6, never): E_k is
    # 12/18 (1/4 - 1/44) + 6/18 for every class.
    expected = math.sqrt(12 / 18 * (1 / 4 - 1 / 44) + 6 / 18)
    assert marginal_calibration_error(wrong, targets) == pytest.approx(expected, rel=1e-12)


def brute_force_ece(probs: Tensor, targets: Tensor, num_bins: int) -> float:
    rows = [(p.max(), float(p.argmax() == y)) for p, y in zip(probs.numpy(), targets, strict=True)]
    edges = np.array([b / num_bins for b in range(num_bins + 1)]).astype(probs.numpy().dtype)
    error = 0.0
    for low, high in itertools.pairwise(edges):
        inside = [row for row in rows if low < row[0] <= high]
        if inside:
            confidence = np.mean([float(row[0]) for row in inside])
            error += len(inside) / len(rows) * abs(np.mean([r[1] for r in inside]) - confidence)
    return error


@pytest.mark.parametrize("num_bins", [1, 7, 15])
def test_ece_equals_its_definition_and_torchmetrics_off_the_edges(num_bins):
    probs, targets = example()
    found = expected_calibration_error(probs, targets, num_bins)
    assert found == pytest.approx(brute_force_ece(probs, targets, num_bins), abs=1e-12)
    library = multiclass_calibration_error(probs, targets, 5, num_bins, norm="l1")
    assert found == pytest.approx(library.item(), abs=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ece_on_bin_edges_closes_bins_on_the_right(dtype):
    confidence = (torch.arange(8, 16, dtype=torch.float64) / 15).to(dtype)
    probs = torch.stack([confidence, 1 - confidence], 1)
    counts = reliability(probs, torch.zeros(8, dtype=torch.long)).count
    assert counts.tolist() == [0] * 7 + [1] * 8
    targets = torch.tensor([0, 1] * 4)
    expected = brute_force_ece(probs, targets, 15)
    assert expected_calibration_error(probs, targets) == pytest.approx(expected, abs=1e-12)


def test_ece_puts_certainty_in_the_last_bin():
    probs = torch.tensor([[1.0, 0.0], [0.95, 0.05]])
    targets = torch.tensor([1, 0])
    assert expected_calibration_error(probs, targets) == pytest.approx(0.475, abs=1e-7)
    # The reason for not using it: p = 1 in a bin of its own, where the gaps do not cancel.
    assert multiclass_calibration_error(probs, targets, 2, 15).item() == pytest.approx(0.525)


def test_reliability_averages_inside_bins():
    probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.4, 0.6]])
    bins = reliability(probs, torch.tensor([0, 1, 1]), num_bins=4)
    assert bins.count.tolist() == [0, 0, 1, 2]
    np.testing.assert_allclose(bins.confidence, [math.nan, math.nan, 0.6, 0.85], rtol=1e-6)
    np.testing.assert_allclose(bins.accuracy, [math.nan, math.nan, 1.0, 0.5])


def brute_force_marginal(probs: Tensor, targets: Tensor, num_bins: int = 15) -> float:
    errors = []
    for k in range(probs.shape[1]):
        p = [float(value) for value in probs[:, k]]
        parts = [list(part) for part in np.array_split(sorted(p), min(num_bins, len(p)))]
        edges = [(low[-1] + high[0]) / 2 for low, high in itertools.pairwise(parts)]
        edges = sorted({*edges, 1.0})
        bins = [[] for _ in edges]
        for value, y in zip(p, targets.tolist(), strict=True):
            bins[bisect.bisect_left(edges, value)].append((value, float(y == k)))
        error = 0.0
        for inside in bins:
            if len(inside) >= 2:
                pbar, tbar = np.mean(inside, axis=0)
                bias = tbar * (1 - tbar) / (len(inside) - 1)
                error += len(inside) / len(p) * ((pbar - tbar) ** 2 - bias)
        errors.append(max(0.0, error))
    return math.sqrt(np.mean(errors))


@pytest.mark.parametrize(("num", "num_classes"), [(400, 5), (31, 3), (15, 2), (7, 4), (2, 2)])
def test_marginal_calibration_error_equals_its_definition(num, num_classes):
    probs, targets = example(num, num_classes)
    expected = brute_force_marginal(probs, targets)
    assert marginal_calibration_error(probs, targets) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("num_values", [2, 5, 12])
def test_marginal_calibration_error_of_repeated_values_equals_its_definition(num_values):
    generator = torch.Generator().manual_seed(num_values)
    first = torch.randint(num_values, (200,), generator=generator) / (num_values - 1)
    probs = torch.stack([first, 1 - first], 1)
    targets = torch.randint(2, (200,), generator=generator)
    expected = brute_force_marginal(probs, targets)
    assert expected > 0.1
    assert marginal_calibration_error(probs, targets) == pytest.approx(expected, abs=1e-12)


def test_marginal_calibration_error_is_never_negative_under_the_root():
    # One example per bin has no debiased estimate; calibrated data clips at 0 now and then.
    assert marginal_calibration_error(torch.tensor([[0.7, 0.3]]), torch.tensor([0])) == 0.0
    for seed in range(5):
        assert marginal_calibration_error(*example(40, 2, seed)) >= 0.0


def test_probability_above_one_by_rounding_is_binned():
    probs = torch.tensor([[1.0000001, 0.0], [1.0, 0.0], [0.3, 0.7]])
    targets = torch.tensor([0, 0, 1])
    for score in SCORES:
        assert math.isfinite(score(probs, targets))


def test_certainty_and_certainty_by_rounding_share_a_bin():
    first = torch.tensor([1.0] * 20 + [1.0 + 2**-23] * 20)
    probs = torch.stack([first, torch.zeros(40)], 1)
    targets = torch.tensor([0] * 20 + [1] * 20)
    # One bin per class with a gap of 1/2; the error is 1/4 less the bias 1/4 / 39.
    expected = math.sqrt(0.25 - 0.25 / 39)
    assert marginal_calibration_error(probs, targets) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("coverage", [0.05, 0.5, 0.9, 1.0])
def test_selective_accuracy_keeps_the_most_confident(coverage):
    probs, targets = example(200)
    order = np.argsort(-probs.max(1).values.numpy(), kind="stable")
    kept = order[: round(coverage * 200)]
    expected = (probs.argmax(1) == targets).numpy()[kept].mean()
    assert selective_accuracy(probs, targets, coverage) == pytest.approx(expected)


def test_selective_accuracy_keeps_exactly_the_share():
    # Nine of ten, not ten: only the least confident, wrong, example is left out.
    probs = torch.tensor([[0.9, 0.1]] * 9 + [[0.6, 0.4]])
    assert selective_accuracy(probs, torch.tensor([0] * 9 + [1]), 0.9) == 1.0
    assert selective_accuracy(probs[:1], torch.tensor([0]), 0.01) == 1.0


def test_ties_count_as_the_mean_over_every_order():
    confidence = torch.tensor([0.9, 0.7, 0.7, 0.7, 0.6])
    hits = [1.0, 0.0, 1.0, 1.0, 0.0]
    probs = torch.stack([confidence, 1 - confidence], 1)
    targets = torch.tensor([0 if hit else 1 for hit in hits])
    selective, area = [], []
    for order in itertools.permutations([1, 2, 3]):
        ranked = np.array([hits[i] for i in (0, *order, 4)])
        selective.append(ranked[:3].mean())
        area.append(np.mean([1 - ranked[: k + 1].mean() for k in range(5)]))
    assert selective_accuracy(probs, targets, 0.6) == pytest.approx(np.mean(selective))
    assert area_under_risk_coverage(probs, targets) == pytest.approx(np.mean(area))


def test_area_under_risk_coverage_equals_its_definition():
    probs, targets = example(150)
    order = np.argsort(-probs.max(1).values.numpy())
    errors = (probs.argmax(1) != targets).numpy()[order]
    expected = np.mean([errors[:k].mean() for k in range(1, 151)])
    assert area_under_risk_coverage(probs, targets) == pytest.approx(expected)


@pytest.mark.parametrize("score", SCORES)
def test_order_of_examples_does_not_matter(score):
    probs, targets = example(60)
    probs[::3] = probs[0]
    order = torch.randperm(60, generator=torch.Generator().manual_seed(3))
    assert score(probs[order], targets[order]) == pytest.approx(score(probs, targets), rel=1e-12)


@pytest.mark.parametrize("score", SCORES)
def test_order_of_classes_does_not_matter(score):
    probs, targets = example(60)
    order = torch.tensor([3, 0, 4, 1, 2])
    renamed = order.argsort()[targets]
    assert score(probs[:, order], renamed) == pytest.approx(score(probs, targets), rel=1e-6)


@pytest.mark.parametrize("score", SCORES)
def test_no_examples_give_nan(score):
    assert math.isnan(score(torch.zeros(0, 3), torch.zeros(0, dtype=torch.long)))


@pytest.mark.parametrize("score", SCORES)
def test_low_precision_and_one_example_work(score):
    probs, targets = example(1)
    assert math.isfinite(score(probs, targets))
    many, their_targets = example(30)
    low = many.bfloat16()
    assert score(low, their_targets) == score(low.float(), their_targets)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (torch.tensor([0, 3]), "class indices 0 to 2, got values from 0 to 3"),
        (torch.tensor([0, -1]), "got values from -1 to 0"),
        (torch.tensor([0.5, 1.0]), "got values from 0.5 to 1.0"),
        (torch.zeros(2, 3), r"got shapes \(2, 3\) and \(2, 3\); flatten_positions"),
        (torch.tensor([0]), r"got shapes \(2, 3\) and \(1,\)"),
    ],
)
def test_impossible_targets_are_refused(score, targets, message):
    with pytest.raises(ValueError, match=message):
        score(torch.full((2, 3), 1 / 3), targets)


@pytest.mark.parametrize("targets", [[False, True], [0.0, 1.0], [0, 1]])
def test_targets_of_a_one_logit_classifier_are_class_indices(targets):
    probs = torch.tensor([[0.9, 0.1], [0.2, 0.8]])
    assert accuracy(probs, torch.tensor(targets)) == 1.0


def test_settings_out_of_range_are_refused():
    with pytest.raises(ValueError, match=r"coverage must lie in \(0, 1\], got 0"):
        selective_accuracy(*example(3), coverage=0)
    with pytest.raises(ValueError, match="num_bins must be at least 1, got 0"):
        reliability(*example(3), num_bins=0)


def test_flatten_positions_makes_each_labelled_pixel_an_example():
    probs = torch.rand(2, 3, 4, 5, generator=torch.Generator().manual_seed(0)).softmax(1)
    targets = torch.randint(3, (2, 4, 5), generator=torch.Generator().manual_seed(1))
    targets[0, 1, 2] = targets[1, 0, 0] = -100
    flat, flat_targets = flatten_positions(probs, targets)
    pixels = [
        (probs[n, :, i, j], targets[n, i, j])
        for n, i, j in itertools.product(range(2), range(4), range(5))
        if targets[n, i, j] != -100
    ]
    assert len(pixels) == 38
    assert torch.equal(flat, torch.stack([p for p, _ in pixels]))
    assert torch.equal(flat_targets, torch.stack([y for _, y in pixels]))


def test_flatten_positions_drops_a_last_axis_of_one_and_refuses_the_rest():
    probs, targets = example(4)
    assert torch.equal(flatten_positions(probs, targets[:, None])[1], targets)
    with pytest.raises(ValueError, match=r"per example and position, \(4,\), got shape \(4, 5\)"):
        flatten_positions(probs, probs)
