"""The predictions that enough posterior samples agree on: how many there are, how often right.

Each example's confidence c_n is the share of the T samples that vote for its modal class, and
the modal class is the prediction. The set at level c holds the examples with c_n >= c.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from torch import Tensor

from bayesify.evaluation.scores import IGNORED_TARGET
from bayesify.prediction.predictive import ClassificationPredictive


class ConfidenceSet(NamedTuple):
    """The set at one level: NaN accuracy when it is empty, NaN size when there are no examples."""

    level: float
    accuracy: float
    size: float
    num_samples: int


def confidence_sets(
    predictive: ClassificationPredictive, targets: Tensor, levels: Iterable[float] = (1.0,)
) -> list[ConfidenceSet]:
    """Return the accuracy and the size, a share of the examples, of the set at each level."""
    levels = list(levels)
    for level in levels:
        if not 0.0 <= level <= 1.0:
            raise ValueError(f"levels must lie in [0, 1], got {level}")
    modal_class = predictive.modal_class.cpu()
    if targets.shape not in (modal_class.shape, (*modal_class.shape, 1)):
        raise ValueError(
            f"targets must hold one class index per example and position, "
            f"{tuple(modal_class.shape)}, got shape {tuple(targets.shape)}"
        )
    targets = targets.detach().cpu().reshape(modal_class.shape)
    is_labelled = targets != IGNORED_TARGET
    is_right = (modal_class == targets)[is_labelled].double()
    # float64, in which 27/30 is the number that 0.9 is.
    share = predictive.votes.amax(1).cpu()[is_labelled].double() / predictive.num_samples
    return [
        ConfidenceSet(
            level,
            float(is_right[share >= level].mean()),
            float((share >= level).double().mean()),
            predictive.num_samples,
        )
        for level in levels
    ]
