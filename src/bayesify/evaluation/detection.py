"""How well uncertainty tells out-of-distribution (ood) examples from the familiar ones.

A score is higher the stranger an example looks. The positive class is always ood. Without
examples on either side, or with a NaN among the scores, every measure is NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from bayesify.prediction.predictive import Predictive, Task

ood_scores: dict[Task, dict[str, Callable[[Predictive], Tensor]]] = {
    "classification": {
        "entropy": lambda predictive: predictive.entropy,
        "max_probability": lambda predictive: 1.0 - predictive.probs.amax(1),
        "mutual_information": lambda predictive: predictive.mutual_information,
    },
    "regression": {
        "variance": lambda predictive: predictive.variance,
        "epistemic": lambda predictive: predictive.epistemic,
    },
}
"""What each task can be scored by; the first is the one a table leads with."""


def detect(familiar: Predictive, ood: Predictive) -> dict[str, dict[str, float]]:
    """Return auroc, aupr and fpr95 of every score that the task has.

    Every position of an output with several (a pixel, a token) counts as an example.
    """
    if familiar.task != ood.task:
        raise ValueError(
            f"ood must be predicted for the same task, {familiar.task}, got {ood.task}"
        )
    if familiar.task not in ood_scores:
        known = " and ".join(ood_scores)
        raise ValueError(f"ood scores exist for {known}, got a {familiar.task} prediction")
    measures = {"auroc": auroc, "aupr": aupr, "fpr95": fpr95}
    return {
        name: {
            measure: function(score(familiar), score(ood)) for measure, function in measures.items()
        }
        for name, score in ood_scores[familiar.task].items()
    }


def auroc(familiar_scores: Tensor, ood_scores: Tensor) -> float:
    """Return P(ood score > familiar score) + P(equal)/2, the area under the ROC curve."""
    from torchmetrics.functional.classification import binary_auroc

    ranks = _ranks(familiar_scores, ood_scores)
    return math.nan if ranks is None else float(binary_auroc(*ranks))


def aupr(familiar_scores: Tensor, ood_scores: Tensor) -> float:
    """Return the average precision of finding ood examples; their share is chance level."""
    from torchmetrics.functional.classification import binary_average_precision

    ranks = _ranks(familiar_scores, ood_scores)
    return math.nan if ranks is None else float(binary_average_precision(*ranks))


def fpr95(familiar_scores: Tensor, ood_scores: Tensor) -> float:
    """Return the share of familiar examples flagged when at least 95 % of ood ones are.

    The threshold is the largest that flags 95 %; an example at the threshold is flagged.
    """
    ranks = _ranks(familiar_scores, ood_scores)
    if ranks is None:
        return math.nan
    scores, is_ood = ranks
    found = scores[is_ood == 1].sort(descending=True).values
    num_needed = -(-95 * len(found) // 100)
    return float((scores[is_ood == 0] >= found[num_needed - 1]).double().mean())


def _ranks(familiar_scores: Tensor, ood_scores: Tensor) -> tuple[Tensor, Tensor] | None:
    """Ranks in [0, 1], equal where scores are, and 1 for each ood example."""
    # torchmetrics squashes scores outside [0, 1] through a sigmoid, which ties distinct ones.
    familiar, ood = (scores.detach().cpu().flatten() for scores in (familiar_scores, ood_scores))
    scores = torch.cat([familiar, ood])
    if not len(familiar) or not len(ood) or bool(scores.isnan().any()):
        return None
    distinct, ranks = scores.unique(return_inverse=True)
    is_ood = torch.cat([torch.zeros(len(familiar)), torch.ones(len(ood))]).long()
    return ranks.double() / max(1, len(distinct) - 1), is_ood
