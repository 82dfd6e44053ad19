"""The likelihood of the papers on propagated moments: a normal law around the one-hot target.

The moments of the logits go through the softmax, and the class probabilities, with the variance
that came with them, are compared with the target's row of zeros and a one:

    nll = ½ Σ_k [log 2π(v_k + ε) + (y_k - p_k)² / (v_k + ε)],   ε = 1e-3

It is no probability of a class, so its value compares with no cross-entropy. Predictions, scores
and validation are those of a classifier.

Reference: Dera, Bouaynaya, Rasool, Shterenberg, Fathallah-Shaykh (2021), "PremiUm-CNN", eq. 17.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from bayesify.batches import output_tensor
from bayesify.moments import Moments
from bayesify.training.likelihood import Classification, likelihoods
from bayesify.types import OutputMoments

LEAST_VARIANCE = 1e-3


@likelihoods.register("one_hot_gaussian")
class OneHotGaussian(Classification):
    """Normal likelihood of one-hot targets, for outputs known by their mean and variance.

    Args:
        class_axis: Axis of the classes in the output; None finds it from the targets.
        ignore_index: Target value of outputs that do not count.
    """

    takes_moments = True

    def __init__(self, class_axis: int | None = None, ignore_index: int = -100) -> None:
        super().__init__(class_axis, ignore_index)

    def nll(self, output: Any, targets: Tensor) -> Tensor:
        """Return the negative log-density, summed over classes; a draw has no variance."""
        logits = self._classes_first(output_tensor(output), targets).float()
        spread = torch.full_like(logits, LEAST_VARIANCE)
        if isinstance(output, OutputMoments):
            variance = self._classes_first(output.variance, targets).float()
            probs = torch.softmax(Moments(logits, variance), 1)  # pyright: ignore[reportArgumentType]
            mean, spread = probs.expected, probs.variance + LEAST_VARIANCE  # pyright: ignore[reportAttributeAccessIssue]
        else:
            mean = logits.softmax(1)
        counted = targets != self.ignore_index
        index = torch.where(counted, targets, 0).unsqueeze(1)
        wanted = torch.zeros_like(mean).scatter(1, index, 1.0)
        each = torch.log(2 * math.pi * spread) + (wanted - mean).square() / spread
        return 0.5 * (each * counted.unsqueeze(1)).sum() / max(targets.shape[0], 1)

    def to_dict(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        fields = {"class_axis": self.class_axis, "ignore_index": self.ignore_index}
        return {"name": "one_hot_gaussian", **fields}
