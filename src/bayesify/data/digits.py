"""Handwritten digits of 8x8 pixels that come with scikit-learn and need no files.

Reference: Alpaydin and Kaynak (1998), "Optical recognition of handwritten digits", UCI.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from bayesify.data.catalogue import datasets
from bayesify.data.dataset import DataSet, TensorData
from bayesify.data.split import split
from bayesify.evaluation.scores import IGNORED_TARGET

NUM_TEST = 360
SPLIT_SEED = 0
BRIGHTEST_PIXEL = 16.0
PAPER, INK = 0.25, 0.5
"""Up to which brightness a pixel is paper, and from which on it is ink."""


@datasets.register("digits")
def digits(root: str | Path | None = None) -> DataSet:
    """Load 1,437 training and 360 test digits, always split in the same way.

    Args:
        root: Not used; the digits lie inside scikit-learn.
    """
    del root
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    images = torch.as_tensor(pixels / BRIGHTEST_PIXEL, dtype=torch.float32).view(-1, 1, 8, 8)
    every = TensorData(images, torch.as_tensor(labels, dtype=torch.int64))
    train, test = split(every, NUM_TEST, seed=SPLIT_SEED)
    raw = DataSet("digits", train, test, "classification", 10, tuple("0123456789"))
    return raw.normalised((float(train.inputs.mean()),), (float(train.inputs.std()),))


@datasets.register("digit_pixels")
def digit_pixels(root: str | Path | None = None) -> DataSet:
    """Load the digits with a class for each pixel: the digit where there is ink, or paper.

    Targets have shape (examples, 8, 8); pixels between ink and paper are -100, which losses and
    metrics leave out.

    Args:
        root: Not used; the digits lie inside scikit-learn.
    """
    whole = digits(root)
    assert whole.mean is not None
    assert whole.std is not None
    classes = (*tuple("0123456789"), "paper")
    train, test = (
        TensorData(part.inputs, _pixel_classes(part), part.transform)
        for part in (whole.train, whole.test)
    )
    return DataSet(
        "digit_pixels",
        train,
        test,
        "classification",
        len(classes),
        classes,
        mean=whole.mean,
        std=whole.std,
    )


def _pixel_classes(data: TensorData) -> Tensor:
    brightness = data.inputs[:, 0]
    labels = data.targets[:, None, None].expand_as(brightness)
    labels = labels.masked_fill(brightness < INK, IGNORED_TARGET)
    return labels.masked_fill(brightness <= PAPER, len("0123456789"))
