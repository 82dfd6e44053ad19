"""How good a map of classes is: the overlap of each class with the truth.

Every function takes class indices, predicted and true, of the same shape (images, height, width).
Positions whose target is -100 are left out. Counts are over all positions of all images at once,
so the result does not depend on how they were divided into images or batches.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bayesify.evaluation.scores import IGNORED_TARGET


def confusion_matrix(predicted: Tensor, targets: Tensor, num_classes: int) -> Tensor:
    """Return how often each class (row) was predicted as each class (column), (C, C).

    Args:
        predicted: Predicted class of each position.
        targets: True class of each position, or -100; a last axis of length 1 may be added.
        num_classes: Number of classes, C.
    """
    if targets.shape not in (predicted.shape, (*predicted.shape, 1)):
        raise ValueError(
            f"targets must hold one class index per example and position, "
            f"{tuple(predicted.shape)}, got shape {tuple(targets.shape)}"
        )
    predicted, targets = predicted.detach().cpu().flatten(), targets.detach().cpu().flatten()
    is_labelled = targets != IGNORED_TARGET
    predicted, targets = (
        _indices(name, each[is_labelled], num_classes)
        for name, each in (("predicted", predicted), ("targets", targets))
    )
    pairs = torch.bincount(num_classes * targets + predicted, minlength=num_classes**2)
    return pairs.view(num_classes, num_classes)


def class_iou(predicted: Tensor, targets: Tensor, num_classes: int) -> Tensor:
    """Return each class's intersection over union, TP / (TP + FP + FN), (C,), in float64.

    NaN for a class that is neither predicted nor there.

    Args:
        predicted: Predicted class of each position.
        targets: True class of each position, or -100 where it is not labelled.
        num_classes: Number of classes, C.
    """
    counts = confusion_matrix(predicted, targets, num_classes).double()
    both = counts.diagonal()
    return both / (counts.sum(0) + counts.sum(1) - both)


def mean_iou(predicted: Tensor, targets: Tensor, num_classes: int) -> float:
    """Return the mean of `class_iou` over the classes that are predicted or there; NaN of none."""
    return float(class_iou(predicted, targets, num_classes).nanmean())


def _indices(name: str, values: Tensor, num_classes: int) -> Tensor:
    indices = values.long()
    if not ((indices == values) & (indices >= 0) & (indices < num_classes)).all():
        raise ValueError(
            f"{name} must hold class indices 0 to {num_classes - 1}, got values from "
            f"{values.min().item()} to {values.max().item()}"
        )
    return indices
