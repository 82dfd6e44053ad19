"""Weights of classes that are seen more or less often, for a weighted cross-entropy."""

from __future__ import annotations

import torch
from torch import Tensor

from bayesify.evaluation.scores import IGNORED_TARGET


def median_frequency_weights(targets: Tensor, num_classes: int) -> list[float]:
    """Return the weight of each class by which rare ones count as much as common ones.

    The weight of class c is proportional to 1 / f_c, where f_c is the share of class c among the
    labelled outputs of those examples that it occurs in. The published weights are median(f) /
    f_c; here they are scaled to mean 1 over all labelled outputs instead, so that a weighted nll
    is as large against KL / N as a plain one. The ratios between classes are the same.

    A class that never occurs gets weight 1.

    Args:
        targets: Classes of the training examples' outputs (pixels, tokens), (N, ...); -100 marks
            what is not labelled.
        num_classes: Number of classes.

    Reference: Eigen and Fergus (2015), "Predicting depth, surface normals and semantic labels
    with a common multi-scale convolutional architecture".
    """
    counts = _counts_by_example(targets, num_classes)
    totals = counts.sum(0)
    is_known = totals > 0
    if not is_known.any():
        raise ValueError(
            "targets must hold at least one labelled class, got none in a tensor of shape "
            f"{tuple(targets.shape)}"
        )
    num_beside = ((counts > 0) * counts.sum(1, keepdim=True)).sum(0)
    inverse = num_beside / totals
    mean = (inverse * totals)[is_known].sum() / totals.sum()
    return torch.where(is_known, inverse / mean, 1.0).tolist()


def _counts_by_example(targets: Tensor, num_classes: int) -> Tensor:
    """Return how often each class occurs in each example, (N, C), in float64."""
    if targets.is_floating_point() or targets.ndim < 2:
        raise TypeError(
            "targets must be integer classes of several outputs per example, (N, ...), got "
            f"{targets.dtype} of shape {tuple(targets.shape)}"
        )
    rows = targets.detach().cpu().long().flatten(1)
    labelled = rows[rows != IGNORED_TARGET]
    if len(labelled) and not 0 <= labelled.min() <= labelled.max() < num_classes:
        raise ValueError(
            f"targets must hold classes from 0 to {num_classes - 1}, or {IGNORED_TARGET}, got "
            f"values from {labelled.min()} to {labelled.max()}"
        )
    # One number per pair of example and class, and one more class for what is not labelled.
    numbers = torch.where(rows == IGNORED_TARGET, num_classes, rows)
    numbers = numbers + (num_classes + 1) * torch.arange(len(rows))[:, None]
    counts = numbers.flatten().bincount(minlength=len(rows) * (num_classes + 1))
    return counts.view(len(rows), num_classes + 1)[:, :num_classes].double()
