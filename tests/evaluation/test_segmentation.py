"""Overlap of classes against a table counted by hand and against torchmetrics."""

import math

import pytest
import torch
from torchmetrics.functional.classification import multiclass_jaccard_index

from bayesify.evaluation.metric import metrics
from bayesify.evaluation.segmentation import class_iou, confusion_matrix, mean_iou
from bayesify.prediction.predictive import ClassificationAccumulator, Predictive

NUM_CLASSES = 5


def maps(seed=0, num_classes=NUM_CLASSES, shape=(3, 12, 16)):
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(num_classes, shape, generator=generator)
    other = torch.randint(num_classes, shape, generator=generator)
    predicted = torch.where(torch.rand(shape, generator=generator) < 0.6, targets, other)
    targets[torch.rand(shape, generator=generator) < 0.2] = -100
    return predicted, targets


def test_confusion_matrix_counts_pairs_as_by_hand():
    predicted, targets = maps()
    expected = [[0] * NUM_CLASSES for _ in range(NUM_CLASSES)]
    for guess, truth in zip(predicted.flatten().tolist(), targets.flatten().tolist(), strict=True):
        if truth != -100:
            expected[truth][guess] += 1
    assert confusion_matrix(predicted, targets, NUM_CLASSES).tolist() == expected


def test_class_iou_is_the_overlap_counted_by_hand():
    predicted, targets = maps()
    found = class_iou(predicted, targets, NUM_CLASSES)
    labelled = targets != -100
    for index in range(NUM_CLASSES):
        guessed, there = (predicted == index) & labelled, targets == index
        expected = int((guessed & there).sum()) / int((guessed | there).sum())
        assert found[index].item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("num_classes", [5, 9])
def test_iou_agrees_with_torchmetrics_also_where_classes_are_absent(seed, num_classes):
    predicted, targets = maps(seed)
    each = multiclass_jaccard_index(
        predicted, targets, num_classes, average="none", ignore_index=-100
    )
    found = class_iou(predicted, targets, num_classes)
    # torchmetrics writes 0 for an absent class, and leaves it out of its mean.
    torch.testing.assert_close(found.nan_to_num(0.0).float(), each)
    assert found.isnan().sum() == num_classes - NUM_CLASSES
    mean = multiclass_jaccard_index(
        predicted, targets, num_classes, average="macro", ignore_index=-100
    )
    assert mean_iou(predicted, targets, num_classes) == pytest.approx(mean.item(), rel=1e-5)


def test_class_predicted_but_never_there_counts_as_zero():
    predicted, targets = torch.tensor([0, 0, 1]), torch.tensor([0, 0, 0])
    assert class_iou(predicted, targets, 3).tolist()[:2] == [2 / 3, 0.0]
    assert mean_iou(predicted, targets, 3) == pytest.approx(1 / 3)


def test_unlabelled_pixels_change_nothing_whatever_is_predicted_there():
    predicted, targets = maps()
    changed = torch.where(targets == -100, (predicted + 1) % NUM_CLASSES, predicted)
    assert not torch.equal(changed, predicted)
    expected = class_iou(predicted, targets, NUM_CLASSES)
    assert torch.equal(class_iou(changed, targets, NUM_CLASSES), expected)
    assert math.isnan(mean_iou(predicted, torch.full_like(targets, -100), NUM_CLASSES))


def test_no_pixels_give_nan():
    empty = torch.zeros(0, 4, 4).long()
    assert math.isnan(mean_iou(empty, empty, 3))


def test_mean_iou_metric_does_not_depend_on_batches_or_images():
    generator = torch.Generator().manual_seed(0)
    accumulators = [ClassificationAccumulator() for _ in range(2)]
    logits = torch.randn(3, 4, NUM_CLASSES, 6, 8, generator=generator)
    accumulators[0].update(logits[:, :1])
    accumulators[1].update(logits[:, 1:])
    joined = Predictive.cat([each.result("samples") for each in accumulators])
    targets = torch.randint(NUM_CLASSES, (4, 6, 8), generator=generator)
    targets[0, :3] = -100
    expected = mean_iou(joined.classes, targets, NUM_CLASSES)
    assert metrics["mean_iou"](joined, targets) == expected
    assert metrics["mean_iou"].higher_is_better


@pytest.mark.parametrize(
    ("predicted", "targets", "message"),
    [
        (torch.zeros(2, 3), torch.zeros(2, 4), r"\(2, 3\), got shape \(2, 4\)"),
        (torch.zeros(2), torch.tensor([0, 5]), "targets must hold class indices 0 to 4.* 0 to 5"),
        (torch.zeros(2), torch.tensor([0, -1]), "targets must hold class indices 0 to 4.* -1 to 0"),
        (torch.tensor([0, 9]), torch.zeros(2), "predicted must hold class indices 0 to 4"),
    ],
)
def test_iou_refuses_what_is_no_map_of_classes(predicted, targets, message):
    with pytest.raises(ValueError, match=message):
        class_iou(predicted, targets, NUM_CLASSES)
