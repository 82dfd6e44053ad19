"""MNIST and Fashion-MNIST, in the layout of their official releases.

Reference: LeCun et al. (1998); Xiao et al. (2017), "Fashion-MNIST: a novel image dataset for
benchmarking machine learning algorithms".
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from bayesify.data.catalogue import data_root, datasets
from bayesify.data.dataset import DataSet, TensorData
from bayesify.data.download import Resource, fetch
from bayesify.data.idx import read_idx
from bayesify.data.transforms import Normalise

NUM_CLASSES = 10
IMAGE_SHAPE = (28, 28)
FILE_NAMES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


@dataclass(frozen=True)
class Release:
    """One published set of four idx files.

    Args:
        name: The name it is registered under.
        folder: Its folder below the data root.
        addresses: Folders on the network that hold the compressed files.
        md5s: Checksums of the compressed files, in the order of `FILE_NAMES`.
        classes: Name of each class.
        mean: Mean of the training pixels, on the scale 0..1.
        std: Standard deviation of the training pixels.
    """

    name: str
    folder: str
    addresses: tuple[str, ...]
    md5s: tuple[str, str, str, str]
    classes: tuple[str, ...]
    mean: float
    std: float

    def resources(self) -> dict[str, Resource]:
        """Return the compressed file to download for each file name."""
        return {
            name: Resource(
                f"{name}.gz", md5, tuple(f"{address}/{name}.gz" for address in self.addresses)
            )
            for name, md5 in zip(FILE_NAMES, self.md5s, strict=True)
        }


MNIST = Release(
    name="mnist",
    folder="MNIST/raw",
    addresses=(
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        "https://sagemaker-sample-files.s3.amazonaws.com/datasets/image/MNIST",
    ),
    md5s=(
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "d53e105ee54ea40749a09fcbcd1e9432",
        "9fb629c4189551a2d022fa330f9573f3",
        "ec29112dd5afa0611ce80d1b7f02629c",
    ),
    classes=tuple("0123456789"),
    mean=0.1307,
    std=0.3081,
)

FASHION_MNIST = Release(
    name="fashion_mnist",
    folder="FashionMNIST/raw",
    addresses=("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",),
    md5s=(
        "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "25c81989df183df01b3e8a0aad5dffbe",
        "bef4ecab320f06d8554ea6380940ec79",
        "bb300cfdad3c16e7a12a480ee83cd310",
    ),
    classes=(
        "T-shirt/top",
        "Trouser",
        "Pullover",
        "Dress",
        "Coat",
        "Sandal",
        "Shirt",
        "Sneaker",
        "Bag",
        "Ankle boot",
    ),
    mean=0.2860,
    std=0.3530,
)


@datasets.register("mnist")
def mnist(root: str | Path | None = None, *, download: bool = True) -> DataSet:
    """Load 60,000 training and 10,000 test digits of 28x28 pixels.

    Args:
        root: Folder of the data files; they lie in `MNIST/raw` below it, compressed or not.
        download: Whether files that are missing may be fetched.
    """
    return load_release(MNIST, data_root(root), download=download)


@datasets.register("fashion_mnist")
def fashion_mnist(root: str | Path | None = None, *, download: bool = True) -> DataSet:
    """Load 60,000 training and 10,000 test pictures of clothes of 28x28 pixels.

    Args:
        root: Folder of the data files; they lie in `FashionMNIST/raw` below it, compressed or
            not.
        download: Whether files that are missing may be fetched.
    """
    return load_release(FASHION_MNIST, data_root(root), download=download)


def load_release(release: Release, root: Path, *, download: bool) -> DataSet:
    """Load a release from its files below `root`."""
    paths = _paths(release, root / release.folder, download=download)
    mean, std = (release.mean,), (release.std,)
    return DataSet(
        name=release.name,
        train=_part(paths[0], paths[1], Normalise(mean, std)),
        test=_part(paths[2], paths[3], Normalise(mean, std)),
        task="classification",
        num_classes=NUM_CLASSES,
        classes=release.classes,
        mean=mean,
        std=std,
    )


def _paths(release: Release, folder: Path, *, download: bool) -> list[Path]:
    """Return the path of each file, plain where there is a plain one, else compressed."""
    paths = [
        folder / name if (folder / name).is_file() else folder / f"{name}.gz" for name in FILE_NAMES
    ]
    resources = release.resources()
    missing = [
        resources[name] for name, path in zip(FILE_NAMES, paths, strict=True) if not path.is_file()
    ]
    fetch(missing, folder, download=download)
    return paths


def _part(images_path: Path, labels_path: Path, transform: Normalise) -> TensorData:
    images, labels = read_idx(images_path, 3), read_idx(labels_path, 1)
    if images.shape[1:] != IMAGE_SHAPE:
        raise ValueError(
            f"{images_path} must hold images of {IMAGE_SHAPE}, got {tuple(images.shape[1:])}"
        )
    if len(images) != len(labels):
        raise ValueError(
            f"{labels_path} must hold one label for each of {len(images)} images in "
            f"{images_path.name}, got {len(labels)}"
        )
    if len(labels) and labels.max() >= NUM_CLASSES:
        raise ValueError(
            f"{labels_path} must hold labels from 0 to {NUM_CLASSES - 1}, got {labels.max()}"
        )
    return TensorData(images.unsqueeze(1), labels.to(torch.int64), transform)
