"""CIFAR-10, and the test half of CIFAR-100 as its near neighbour, in the official binary layout.

The binary release is read rather than the Python one because that one is made of pickles.

Reference: Krizhevsky (2009), "Learning multiple layers of features from tiny images".
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bayesify.data.archive import extract
from bayesify.data.catalogue import data_root, datasets
from bayesify.data.dataset import DataSet, TensorData
from bayesify.data.download import Resource, fetch
from bayesify.data.transforms import BRIGHTEST_PIXEL, CropAndFlip, Cutout, Normalise
from bayesify.registry import unknown

IMAGE_SHAPE = (3, 32, 32)
NUM_PIXEL_BYTES = 3 * 32 * 32
MEAN = (0.4914, 0.4822, 0.4465)
STD = (0.2470, 0.2435, 0.2616)
CLASSES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)

CIFAR10_ARCHIVE = Resource(
    "cifar-10-binary.tar.gz",
    "c32a1d4ab5d03f1284b67883e8d87530",
    ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
)
CIFAR10_TRAIN = tuple(f"cifar-10-batches-bin/data_batch_{index}.bin" for index in range(1, 6))
CIFAR10_TEST = "cifar-10-batches-bin/test_batch.bin"

CIFAR100_ARCHIVE = Resource(
    "cifar-100-binary.tar.gz",
    "03b5dce01913d631647c71ecec9e9cb8",
    ("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",),
)
CIFAR100_TEST = "cifar-100-binary/test.bin"


STATISTICS = {
    "cifar": (MEAN, STD),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}


@datasets.register("cifar10")
def cifar10(
    root: str | Path | None = None,
    *,
    augment: bool = False,
    cutout: int = 0,
    statistics: str = "cifar",
    download: bool = True,
) -> DataSet:
    """Load 50,000 training and 10,000 test photographs of 32x32 pixels in ten classes.

    Args:
        root: Folder of the data files; they lie in `cifar-10-batches-bin` below it.
        augment: Whether training images are shifted by up to 4 pixels and mirrored at random.
        cutout: Side of a square that is blanked in each training image as well, in pixels (16 is
            usual); 0 blanks none.
        statistics: What images are normalised by: "cifar", their own mean and standard deviation,
            or "imagenet", which some published networks were trained with.
        download: Whether files that are missing may be fetched.
    """
    if statistics not in STATISTICS:
        raise ValueError(unknown("statistics", statistics, STATISTICS))
    if cutout and not augment:
        raise ValueError(f"cutout must be 0 where augment is False, got {cutout}: set augment=True")
    mean, std = STATISTICS[statistics]
    change = CropAndFlip() if augment else None
    if change is not None and cutout:
        change = Cutout(change, cutout, tuple(round(BRIGHTEST_PIXEL * each) for each in mean))
    folder = data_root(root)
    _provide(CIFAR10_ARCHIVE, (*CIFAR10_TRAIN, CIFAR10_TEST), folder, download=download)
    batches = [read_records(folder / name, 1, len(CLASSES)) for name in CIFAR10_TRAIN]
    images, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
    transform = Normalise(mean, std)
    return DataSet(
        name="cifar10",
        train=TensorData(images, labels, transform, change),
        test=TensorData(*read_records(folder / CIFAR10_TEST, 1, len(CLASSES)), transform),
        task="classification",
        num_classes=len(CLASSES),
        classes=CLASSES,
        mean=mean,
        std=std,
    )


@datasets.register("cifar100_test")
def cifar100_test(root: str | Path | None = None, *, download: bool = True) -> DataSet:
    """Load the 10,000 test photographs of CIFAR-100 with their 100 fine labels.

    It serves as out-of-distribution data: the training part is empty, and images are normalised
    by the statistics of CIFAR-10, as a network trained on CIFAR-10 expects.

    Args:
        root: Folder of the data files; `cifar-100-binary/test.bin` lies below it.
        download: Whether files that are missing may be fetched.
    """
    folder = data_root(root)
    _provide(CIFAR100_ARCHIVE, (CIFAR100_TEST,), folder, download=download)
    images, labels = read_records(folder / CIFAR100_TEST, 2, 100)
    transform = Normalise(MEAN, STD)
    return DataSet(
        name="cifar100_test",
        train=TensorData(images[:0], labels[:0], transform),
        test=TensorData(images, labels, transform),
        task="classification",
        num_classes=100,
        mean=MEAN,
        std=STD,
    )


def read_records(path: Path, num_label_bytes: int, num_classes: int) -> tuple[Tensor, Tensor]:
    """Return the uint8 images and int64 labels of a file of CIFAR records.

    A record is its label bytes (the last one counts), then the red, green and blue planes.

    Args:
        path: The file.
        num_label_bytes: 1 in CIFAR-10; 2 in CIFAR-100, coarse then fine.
        num_classes: Number of classes that labels may name.
    """
    num_record_bytes = num_label_bytes + NUM_PIXEL_BYTES
    content = np.fromfile(path, dtype=np.uint8)
    if len(content) == 0 or len(content) % num_record_bytes:
        raise ValueError(
            f"{path} must hold whole records of {num_record_bytes} bytes, got {len(content)} "
            "bytes; it is truncated or not a CIFAR file: delete it and load again"
        )
    records = content.reshape(-1, num_record_bytes)
    labels = records[:, num_label_bytes - 1]
    if labels.max() >= num_classes:
        raise ValueError(
            f"{path} must hold labels from 0 to {num_classes - 1}, got {labels.max()}; it is not "
            f"a CIFAR file with {num_label_bytes} label byte(s) per image"
        )
    images = np.ascontiguousarray(records[:, num_label_bytes:]).reshape(-1, *IMAGE_SHAPE)
    return torch.from_numpy(images), torch.from_numpy(labels.astype(np.int64))


def _provide(archive: Resource, members: tuple[str, ...], folder: Path, *, download: bool) -> None:
    """Make sure the members are on disk, from the archive on disk or on the network."""
    if all((folder / member).is_file() for member in members):
        return
    (path,) = fetch((archive,), folder, download=download)
    extract(path, members, folder)
