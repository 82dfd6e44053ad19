"""Hold part of a data set out, for validation."""

from __future__ import annotations

import torch

from bayesify.data.dataset import TensorData


def split(data: TensorData, held_out: float | int, seed: int = 0) -> tuple[TensorData, TensorData]:
    """Return the examples to keep and, drawn at random, the examples to hold out.

    The held-out part is never augmented: it measures, it does not train.

    Args:
        data: The examples to divide; they stay as they are.
        held_out: How many to hold out: a count, or (a float) a fraction in (0, 1).
        seed: Fixes which ones.
    """
    num_held_out = _count(held_out, len(data))
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))
    kept, taken = order[num_held_out:].sort().values, order[:num_held_out].sort().values
    return data.select(kept), data.select(taken).with_augmentation(None)


def _count(held_out: float | int, num_examples: int) -> int:
    if isinstance(held_out, float) and not 0.0 < held_out < 1.0:
        raise ValueError(f"held_out must lie in (0, 1) when it is a fraction, got {held_out}")
    count = round(held_out * num_examples) if isinstance(held_out, float) else held_out
    if not 0 < count < num_examples:
        raise ValueError(
            f"held_out must leave examples on both sides of {num_examples}, got {held_out} "
            f"({count} held out)"
        )
    return count
