"""How good class probabilities are: right, likely, calibrated, and sure when right.

Pure functions of `probs` (N, C) and `targets` (N,) with class indices. No examples: NaN.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

# What torch's own losses leave out of the average: padding, unlabelled pixels.
IGNORED_TARGET = -100


@dataclass(frozen=True, eq=False)
class Reliability:
    """A reliability diagram: one entry per bin of confidence, NaN in an empty bin."""

    confidence: Tensor
    accuracy: Tensor
    count: Tensor


def flatten_positions(probs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Turn every labelled position of (N, C, ...) and (N, ...) into an example of its own.

    Positions whose target is -100, the mark torch's losses ignore, are left out. Targets may have
    a last axis of length 1 that the positions lack, as a one-logit classifier's often do.
    """
    positions = (probs.shape[0], *probs.shape[2:])
    if targets.shape not in (positions, (*positions, 1)):
        raise ValueError(
            f"targets must hold one class index per example and position, {positions}, got shape "
            f"{tuple(targets.shape)}"
        )
    targets = targets.reshape(-1)
    is_labelled = targets != IGNORED_TARGET
    return probs.movedim(1, -1).reshape(-1, probs.shape[1])[is_labelled], targets[is_labelled]


def accuracy(probs: Tensor, targets: Tensor) -> float:
    """Return the share of examples whose most probable class is right."""
    probs, targets = _check(probs, targets)
    return _mean(probs.argmax(1) == targets)


def negative_log_likelihood(probs: Tensor, targets: Tensor) -> float:
    """Return the mean -log p of the right class, in nats.

    Probabilities are raised to float32's smallest normal number, 1.2e-38, so one example costs at
    most 87.3 nats and the mean stays finite.
    """
    probs, targets = _check(probs, targets)
    right = _of_target(probs, targets).double()
    return _mean(-right.clamp_min(torch.finfo(torch.float32).tiny).log())


def brier(probs: Tensor, targets: Tensor) -> float:
    """Return the mean over examples of sum_c (p_c - 1[y = c])^2, between 0 and 2."""
    probs, targets = _check(probs, targets)
    right = _of_target(probs, targets)[:, None]
    difference = probs.scatter(1, targets[:, None], right - 1.0)
    return _mean(difference.square().sum(1))


def expected_calibration_error(probs: Tensor, targets: Tensor, num_bins: int = 15) -> float:
    """Return sum_b n_b/N |accuracy_b - confidence_b| over equal-width bins of top-label confidence.

    Reference: Guo et al. (2017), eq. 3.
    """
    # Not torchmetrics: it closes bins on the left and gives p = 1 a bin of its own.
    bins = reliability(probs, targets, num_bins)
    num_examples = bins.count.sum()
    if num_examples == 0:
        return math.nan
    gap = (bins.accuracy - bins.confidence).abs().nan_to_num(0.0)
    return float((bins.count * gap).sum() / num_examples)


def reliability(probs: Tensor, targets: Tensor, num_bins: int = 15) -> Reliability:
    """Return confidence, accuracy and count in the bins ((b-1)/num_bins, b/num_bins]."""
    if num_bins < 1:
        raise ValueError(f"num_bins must be at least 1, got {num_bins}")
    probs, targets = _check(probs, targets)
    confidence, classes = probs.max(1)
    # Rounded as the confidence is, so that a confidence of exactly b/num_bins falls below the edge.
    edges = (torch.arange(1, num_bins, dtype=torch.float64) / num_bins).to(confidence.dtype)
    index = torch.bucketize(confidence, edges)
    count = torch.bincount(index, minlength=num_bins)
    return Reliability(
        torch.bincount(index, confidence.double(), num_bins) / count,
        torch.bincount(index, (classes == targets).double(), num_bins) / count,
        count,
    )


def marginal_calibration_error(probs: Tensor, targets: Tensor, num_bins: int = 15) -> float:
    """Return the debiased L2 calibration error of every class, sqrt(mean_k E_k).

    E_k = max(0, sum_b n_b/N [(pbar_b - tbar_b)^2 - tbar_b (1 - tbar_b)/(n_b - 1)]) over bins of
    equally many examples with n_b >= 2. Not comparable with the expected calibration error.

    Reference: Kumar et al. (2019), the default of their package.
    """
    probs, targets = _check(probs, targets)
    if not len(targets):
        return math.nan
    errors = [
        _debiased_square_error(column.double(), (targets == index).double(), num_bins)
        for index, column in enumerate(probs.unbind(1))
    ]
    return math.sqrt(math.fsum(errors) / len(errors))


def selective_accuracy(probs: Tensor, targets: Tensor, coverage: float = 0.9) -> float:
    """Return the accuracy on the most confident share of the examples, at least one of them.

    Examples tied at the cut count by their mean, so their order does not matter.
    """
    if not 0.0 < coverage <= 1.0:
        raise ValueError(f"coverage must lie in (0, 1], got {coverage}")
    hits = _hits_by_confidence(probs, targets)
    # 0.9 * 10 may exceed 9 by a rounding error, which must not keep one more example.
    num_kept = math.ceil(coverage * len(hits) * (1.0 - 1e-12))
    return _mean(hits[:num_kept])


def area_under_risk_coverage(probs: Tensor, targets: Tensor) -> float:
    """Return the error rate on the k most confident examples, averaged over k = 1..N.

    Reference: Geifman et al. (2019).
    """
    hits = _hits_by_confidence(probs, targets)
    kept = torch.arange(1, len(hits) + 1, dtype=torch.float64)
    return _mean(1.0 - hits.cumsum(0) / kept)


def _check(probs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    if probs.ndim != 2 or targets.shape != probs.shape[:1]:
        raise ValueError(
            "probs must be (N, C) and targets (N,), got shapes "
            f"{tuple(probs.shape)} and {tuple(targets.shape)}; flatten_positions makes them so"
        )
    probs, given = probs.detach().cpu(), targets.detach().cpu()
    targets = given.long()
    is_index = (targets == given) & (targets >= 0) & (targets < probs.shape[1])
    if not is_index.all():
        raise ValueError(
            f"targets must hold class indices 0 to {probs.shape[1] - 1}, got values from "
            f"{given.min().item()} to {given.max().item()}"
        )
    return probs.to(torch.promote_types(probs.dtype, torch.float32)), targets


def _mean(values: Tensor) -> float:
    return float(values.double().mean())


def _of_target(probs: Tensor, targets: Tensor) -> Tensor:
    return probs.gather(1, targets[:, None]).squeeze(1)


def _hits_by_confidence(probs: Tensor, targets: Tensor) -> Tensor:
    """Whether each prediction is right, most confident first; ties share their mean."""
    probs, targets = _check(probs, targets)
    confidence, classes = probs.max(1)
    confidence, order = confidence.sort(descending=True)
    hits = (classes == targets)[order].double()
    _, group, count = confidence.unique_consecutive(return_inverse=True, return_counts=True)
    return (torch.bincount(group, hits, len(count)) / count)[group]


def _debiased_square_error(probs: Tensor, hits: Tensor, num_bins: int) -> float:
    ordered = probs.sort().values
    parts = ordered.tensor_split(min(num_bins, len(ordered)))
    midpoints = [(low[-1] + high[0]) / 2 for low, high in pairwise(parts)]
    # The last edge, 1.0, is left open: an averaged probability may exceed 1 by a rounding error.
    edges = torch.stack(midpoints).unique() if midpoints else ordered[:0]
    edges = edges[edges < 1.0]
    index = torch.bucketize(probs, edges)
    num_parts = len(edges) + 1
    count = torch.bincount(index, minlength=num_parts)
    mean_prob = torch.bincount(index, probs, num_parts) / count
    mean_hit = torch.bincount(index, hits, num_parts) / count
    error = (mean_prob - mean_hit).square() - mean_hit * (1.0 - mean_hit) / (count - 1)
    return max(0.0, float((count * error)[count >= 2].sum()) / len(probs))
