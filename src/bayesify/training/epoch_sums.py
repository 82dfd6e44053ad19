"""Running sums of an epoch, kept on the device so that no step waits for the host."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from bayesify.training.likelihood import Likelihood

_NAMES = ("nll", "examples", "score", "scored")


class EpochSums:
    """The nll and the score of the batches so far, and the first step whose loss was not finite.

    Args:
        likelihood: What the score means.
        device: Where the sums are kept.
        start: Sums of an epoch that is taken up again.
    """

    def __init__(
        self, likelihood: Likelihood, device: torch.device, start: Mapping[str, float] | None = None
    ) -> None:
        self.likelihood = likelihood
        kind = torch.float32 if device.type == "mps" else torch.float64
        begun = [(start or {}).get(name, 0.0) for name in _NAMES]
        self.values = torch.tensor(begun, dtype=kind, device=device)
        self.bad = torch.tensor([-1.0, 0.0], dtype=kind, device=device)

    @torch.no_grad()
    def add(self, nll: Tensor, outputs: list[Any], targets: Any, num_examples: int) -> None:
        """Add a batch: its mean nll, and the draws of its outputs to score."""
        score, scored = self.likelihood.score(outputs, targets)
        self.values += torch.stack(
            [
                nll.detach().to(self.values) * num_examples,
                # Not new_tensor: a copy from the host waits for the device.
                torch.full((), num_examples, dtype=self.values.dtype, device=self.values.device),
                score.to(self.values),
                torch.as_tensor(scored).to(self.values),
            ]
        )

    def see(self, loss: Tensor, step: int) -> None:
        """Remember the first step whose loss was not finite."""
        is_first = ~torch.isfinite(loss) & (self.bad[0] < 0)
        here = torch.stack([torch.full_like(loss, step), loss]).to(self.bad)
        self.bad = torch.where(is_first, here, self.bad)

    def first_bad_step(self) -> int | None:
        """Return the first step whose loss was not finite, counted from 1, or None."""
        step = int(self.bad[0])
        return None if step < 0 else step + 1

    def bad_value(self) -> float:
        """Return the loss of that step."""
        return float(self.bad[1])

    def to_dict(self) -> dict[str, float]:
        """Return what `start` takes."""
        return dict(zip(_NAMES, self.values.tolist(), strict=True))

    def reduce(self, fabric: Any) -> EpochSums:
        """Add the sums of all processes."""
        if fabric.world_size > 1:
            self.values = fabric.all_reduce(self.values, reduce_op="sum")
        return self

    def means(self) -> dict[str, float]:
        """Return the mean nll of an example and the score; NaN where there was nothing."""
        nll, examples, score, scored = self.values.tolist()
        mean_score = score / scored if scored else math.nan
        return {
            "nll": nll / examples if examples else math.nan,
            self.likelihood.score_name: self.likelihood.score_of_mean(mean_score),
        }
