"""The nouns every stage shares: what a loss is, what outputs are, what can go wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn


class ConversionError(ValueError):
    """A model cannot be converted as asked; every failing site is listed, nothing was changed."""

    def __init__(self, failures: Sequence[tuple[str, str]]) -> None:
        self.failures = tuple(failures)
        lines = "\n".join(f"  {path}: {reason}" for path, reason in self.failures)
        count = len(self.failures)
        super().__init__(
            f"the model was not converted: {count} problem{'s' * (count != 1)} found\n{lines}"
        )


class Loss(NamedTuple):
    """A training objective and the two parts it is made of, each in nats."""

    total: Tensor
    nll: Tensor
    kl: Tensor


class OutputMoments(NamedTuple):
    """Outputs known by their mean and variance over some of the weights, in place of a draw."""

    mean: Tensor
    variance: Tensor


def device_of(model: nn.Module) -> torch.device:
    """Return the device of a model's first parameter or buffer, the CPU when it has none."""
    for tensor in model.parameters():
        return tensor.device
    for tensor in model.buffers():
        return tensor.device
    return torch.device("cpu")
