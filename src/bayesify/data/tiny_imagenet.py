"""Tiny ImageNet: photographs of 64x64 pixels, in the layout of the release or as an image folder.

Training images lie in `tiny-imagenet-200/train/<class>/`, or in the folder `images` there. The
validation images, which are the test examples as the labels of the test images were never
published, lie in `val/<class>/` likewise, or all in `val/images` with their classes in
`val/val_annotations.txt`. A class goes by its WordNet number, such as n01443537; `words.txt` has
its names.

Reference: Le and Yang (2015), "Tiny ImageNet visual recognition challenge".
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bayesify.data.catalogue import data_root, datasets
from bayesify.data.dataset import DataSet, TensorData
from bayesify.data.download import DataNotFoundError
from bayesify.data.transforms import CropAndFlip, Normalise
from bayesify.registry import unknown

FOLDER = "tiny-imagenet-200"
SOURCE = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
SIZE = 64
# Of the 100,000 training images of all classes.
MEAN = (0.4802, 0.4481, 0.3975)
STD = (0.2770, 0.2691, 0.2821)

_PATTERN = "*.JPEG"
# An eighth of the side, as is usual for 32x32 images.
_PADDING = 8


@datasets.register("tiny_imagenet")
def tiny_imagenet(
    root: str | Path | None = None,
    *,
    augment: bool = False,
    classes: Sequence[str] | None = None,
) -> DataSet:
    """Load 500 photographs of each class to train with, and 50 to test with.

    Args:
        root: Folder of the data files; they lie in `tiny-imagenet-200` below it.
        augment: Whether training images are shifted by up to 8 pixels and mirrored at random.
        classes: WordNet numbers of the classes to load, of at least two; None takes all that the
            folder of training images has, 200 in the release.
    """
    folder = data_root(root) / FOLDER
    there = _class_folders(folder)
    chosen = there if classes is None else sorted(classes)
    _check_classes(chosen, there)
    parts = (_train_files(folder, chosen), _test_files(folder, chosen))
    train, test = (TensorData(*_read(part), Normalise(MEAN, STD)) for part in parts)
    return DataSet(
        name="tiny_imagenet",
        train=train.with_augmentation(CropAndFlip(padding=_PADDING) if augment else None),
        test=test,
        task="classification",
        num_classes=len(chosen),
        classes=_names(folder, chosen),
        mean=MEAN,
        std=STD,
    )


Files = list[tuple[Path, int]]
"""The file of each image and the position of its class."""


def _class_folders(folder: Path) -> list[str]:
    found = sorted(path.name for path in folder.glob("train/*") if path.is_dir())
    if not found:
        raise DataNotFoundError(
            f"data files are missing in {folder}: train must hold a folder of images for each "
            f"class. They are not fetched: unpack {SOURCE} into {folder.parent.resolve()}"
        )
    return found


def _check_classes(chosen: Sequence[str], there: Sequence[str]) -> None:
    for name in chosen:
        if name not in there:
            raise ValueError(unknown("class", name, there))
    if len(set(chosen)) != len(chosen) or len(chosen) < 2:
        raise ValueError(f"classes must be two or more different ones, got {list(chosen)}")


def _train_files(folder: Path, classes: Sequence[str]) -> Files:
    parts = [_images_of(folder / "train" / name) for name in classes]
    return [(path, label) for label, paths in enumerate(parts) for path in paths]


def _test_files(folder: Path, classes: Sequence[str]) -> Files:
    annotations = folder / "val" / "val_annotations.txt"
    if not annotations.is_file():
        parts = [_images_of(folder / "val" / name) for name in classes]
        return [(path, label) for label, paths in enumerate(parts) for path in paths]
    labels = {name: label for label, name in enumerate(classes)}
    rows = (line.split("\t")[:2] for line in annotations.read_text().splitlines())
    found = [(annotations.parent / "images" / file, labels.get(name)) for file, name in rows]
    return [(path, label) for path, label in found if label is not None]


def _images_of(folder: Path) -> list[Path]:
    inner = folder / "images"
    paths = sorted((inner if inner.is_dir() else folder).glob(_PATTERN))
    if not paths:
        raise DataNotFoundError(
            f"{folder} must hold {_PATTERN} files, got none; unpack {SOURCE} again"
        )
    return paths


def _read(files: Files) -> tuple[Tensor, Tensor]:
    """Return uint8 images (N, 3, 64, 64) and int64 labels."""
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError(
            "the data set 'tiny_imagenet' is made of JPEG files, which Pillow reads: "
            "pip install pillow"
        ) from error
    images = np.empty((len(files), SIZE, SIZE, 3), dtype=np.uint8)
    for row, (path, _) in zip(images, files, strict=True):
        with Image.open(path) as file:
            if file.size != (SIZE, SIZE):
                raise ValueError(f"{path} must have {SIZE}x{SIZE} pixels, got {file.size}")
            # Some hundred of them are grey.
            row[:] = np.asarray(file.convert("RGB"))
    labels = torch.tensor([label for _, label in files], dtype=torch.int64)
    return torch.from_numpy(images).permute(0, 3, 1, 2).contiguous(), labels


def _names(folder: Path, classes: Sequence[str]) -> tuple[str, ...]:
    """Return the first name of each class, or its number where no file tells."""
    words = folder / "words.txt"
    rows = words.read_text(encoding="utf-8").splitlines() if words.is_file() else []
    names = dict(row.split("\t", 1) for row in rows if "\t" in row)
    return tuple(names.get(name, name).split(",")[0].strip() for name in classes)
