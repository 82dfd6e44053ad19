"""Batches of a data set, one indexed read each, from a standard `DataLoader`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate


def loader(
    data: Dataset[tuple[Tensor, Tensor]],
    batch_size: int,
    shuffle: bool = False,
    generator: torch.Generator | None = None,
    drop_last: bool = False,
    *,
    num_workers: int = 0,
    pin_memory: bool = False,
) -> DataLoader[tuple[Tensor, Tensor]]:
    """Return a plain `DataLoader` that reads each batch at once.

    Args:
        data: Examples; a `TensorData`, or a torch `Subset` of one, is read without any work per
            example.
        batch_size: Number of examples of a batch.
        shuffle: Whether each pass has a new order.
        generator: Source of the order; None takes torch's global generator.
        drop_last: Whether to leave out a last batch that is not full.
        num_workers: Number of reading processes; data in memory needs none.
        pin_memory: Whether to put batches where a GPU can fetch them without waiting.
    """
    return DataLoader(
        data,
        batch_size=batch_size,
        shuffle=shuffle,
        generator=generator,
        drop_last=drop_last,
        num_workers=num_workers,
        pin_memory=pin_memory,
        collate_fn=collate,
    )


def collate(batch: Any) -> Any:
    """Return a batch that came whole as it is, and stack one that came as a list of examples."""
    return default_collate(batch) if isinstance(batch, list) else batch
