"""A data set in memory: its tensors, how a batch of it is made, and what it is about."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor
from torch.utils.data import Dataset

from bayesify.data.text import Vocabulary
from bayesify.data.transforms import Normalise, PairTransform

Transform = Callable[[Tensor], Tensor]
Task = Literal["classification", "regression"]


class TensorData(Dataset[tuple[Tensor, Tensor]]):
    """Inputs and targets in memory, read a whole batch at a time.

    Args:
        inputs: One row per example, in the smallest type that holds them (images: uint8).
        targets: One row per example.
        transform: Turns a batch of stored inputs into what a network reads, the same each time.
        augmentation: Random change of a batch of stored inputs, made before `transform`; for
            training only. A `PairTransform` changes the targets with them.
    """

    def __init__(
        self,
        inputs: Tensor,
        targets: Tensor,
        transform: Transform | None = None,
        augmentation: Transform | PairTransform | None = None,
    ) -> None:
        if inputs.ndim == 0 or targets.ndim == 0 or len(inputs) != len(targets):
            raise ValueError(
                "inputs and targets must have one row per example each, got shapes "
                f"{tuple(inputs.shape)} and {tuple(targets.shape)}"
            )
        self.inputs = inputs
        self.targets = targets
        self.transform = transform
        self.augmentation = augmentation

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Return one input and its target, as a network reads them."""
        position = operator.index(index)
        if not -len(self) <= position < len(self):
            raise IndexError(f"index must lie in [{-len(self)}, {len(self) - 1}], got {position}")
        inputs, targets = self.__getitems__([position % len(self)])
        return inputs[0], targets[0]

    def __getitems__(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return the batch of these examples, already collated.

        A `DataLoader` calls this once per batch; `loader` keeps it from collating again.
        """
        # index_select copies whole rows; the bracket notation is some thirty times slower.
        rows = torch.as_tensor(indices, dtype=torch.int64)
        inputs = self.inputs.index_select(0, rows.to(self.inputs.device, non_blocking=True))
        rows = rows.to(self.targets.device, non_blocking=True)
        targets = self.targets.index_select(0, rows)
        if isinstance(self.augmentation, PairTransform):
            inputs, targets = self.augmentation(inputs, targets)
        elif self.augmentation is not None:
            inputs = self.augmentation(inputs)
        if self.transform is not None:
            inputs = self.transform(inputs)
        return inputs, targets

    def select(self, indices: Tensor) -> TensorData:
        """Return a copy of these examples, with the same transform and augmentation."""
        return TensorData(
            self.inputs[indices], self.targets[indices], self.transform, self.augmentation
        )

    def to(self, device: torch.device | str) -> TensorData:
        """Return the same examples, held on a device; their batches are made there."""
        return TensorData(
            self.inputs.to(device), self.targets.to(device), self.transform, self.augmentation
        )

    def with_transform(self, transform: Transform | None) -> TensorData:
        """Return the same examples, read through another transform."""
        return TensorData(self.inputs, self.targets, transform, self.augmentation)

    def with_augmentation(self, augmentation: Transform | PairTransform | None) -> TensorData:
        """Return the same examples, augmented in another way; None for not at all."""
        return TensorData(self.inputs, self.targets, self.transform, augmentation)

    def __repr__(self) -> str:
        shape, kind = tuple(self.inputs.shape[1:]), str(self.inputs.dtype).removeprefix("torch.")
        return f"TensorData({len(self)} examples of shape {shape}, {kind})"


@dataclass(frozen=True, eq=False)
class DataSet:
    """Training and test examples, and what they are about.

    Args:
        name: The name it is registered under.
        train: Training examples; empty where a set serves only as out-of-distribution data.
        test: Test examples.
        task: Whether targets are class numbers or real values.
        num_classes: Number of classes; None for regression.
        classes: Name of each class, where the classes have names.
        mean: Mean of each channel that inputs are normalised by; None where they are not.
        std: Standard deviation of each channel that inputs are normalised by.
        vocabulary: What encoded the inputs where they are texts; it encodes others alike.
    """

    name: str
    train: TensorData
    test: TensorData
    task: Task
    num_classes: int | None = None
    classes: tuple[str, ...] | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    vocabulary: Vocabulary | None = None

    def __post_init__(self) -> None:
        if (self.task == "classification") != (self.num_classes is not None):
            raise ValueError(
                "num_classes must be given for classification and only there, "
                f"got task={self.task!r}, num_classes={self.num_classes}"
            )
        if self.classes is not None and len(self.classes) != self.num_classes:
            raise ValueError(
                f"classes must hold {self.num_classes} names, one per class, "
                f"got {len(self.classes)}"
            )

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Return the shape of one input: (channels, height, width) for images."""
        return tuple(self.test.inputs.shape[1:])

    def to(self, device: torch.device | str) -> DataSet:
        """Return the same set, its examples held on a device; their batches are made there."""
        return replace(self, train=self.train.to(device), test=self.test.to(device))

    def normalised(self, mean: tuple[float, ...], std: tuple[float, ...]) -> DataSet:
        """Return the set normalised by other statistics.

        A network must see out-of-distribution data, and a published checkpoint its data, through
        the statistics it was trained with: `ood.normalised(train_set.mean, train_set.std)`.
        """
        transform = Normalise(mean, std)
        return replace(
            self,
            train=self.train.with_transform(transform),
            test=self.test.with_transform(transform),
            mean=mean,
            std=std,
        )
