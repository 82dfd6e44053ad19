"""Handwritten digits of 8x8 pixels that come with scikit-learn and need no files.

Reference: Alpaydin and Kaynak (1998), "Optical recognition of handwritten digits", UCI.
"""

from __future__ import annotations

from pathlib import Path

import torch

from bayesify.data.catalogue import datasets
from bayesify.data.dataset import DataSet, TensorData
from bayesify.data.split import split

NUM_TEST = 360
SPLIT_SEED = 0
BRIGHTEST_PIXEL = 16.0


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
