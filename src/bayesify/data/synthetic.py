"""Small problems made on the spot: two classes in the plane, and two curves.

Every noise is given by its standard deviation. Inputs have shape (count, features), regression
targets (count, 1).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from bayesify.data.catalogue import datasets
from bayesify.data.dataset import DataSet, TensorData
from bayesify.registry import unknown


@datasets.register("two_moons")
def two_moons(
    root: str | Path | None = None,
    *,
    num_train: int = 50,
    num_test: int = 950,
    noise_std: float = 0.1,
    seed: int = 0,
) -> DataSet:
    """Make two interleaving half circles of radius 1, one per class, in the plane.

    Args:
        root: Not used; there are no files.
        num_train: Number of training points.
        num_test: Number of test points.
        noise_std: Standard deviation of the noise on both coordinates.
        seed: Fixes the points and which of them are for training.
    """
    del root
    _check(num_train, num_test, noise_std)
    generator = torch.Generator().manual_seed(seed)
    num_points = num_train + num_test
    num_upper = num_points // 2
    upper = torch.linspace(0.0, math.pi, num_upper)
    lower = torch.linspace(0.0, math.pi, num_points - num_upper)
    points = torch.cat(
        [
            torch.stack([upper.cos(), upper.sin()], dim=1),
            torch.stack([1.0 - lower.cos(), 0.5 - lower.sin()], dim=1),
        ]
    )
    labels = (torch.arange(num_points) >= num_upper).to(torch.int64)
    points = points + noise_std * torch.randn(points.shape, generator=generator)
    order = torch.randperm(num_points, generator=generator)
    every = TensorData(points, labels)
    return DataSet(
        name="two_moons",
        train=every.select(order[:num_train]),
        test=every.select(order[num_train:]),
        task="classification",
        num_classes=2,
        classes=("upper", "lower"),
    )


@datasets.register("curve_1d")
def curve_1d(
    root: str | Path | None = None,
    *,
    num_train: int = 40,
    num_test: int = 460,
    noise_std: float = 0.02,
    interval: tuple[float, float] = (0.0, 0.5),
    seed: int = 0,
) -> DataSet:
    """Make the curve y = x + 0.3 sin(2 pi (x + e)) + 0.3 sin(4 pi (x + e)) + e.

    The paper writes e ~ N(0, 0.02) and does not say whether 0.02 is a variance; it is taken as
    the standard deviation, because as a variance it would give e a spread of 0.14, half the height
    of the waves.

    Args:
        root: Not used; there are no files.
        num_train: Number of training points.
        num_test: Number of test points.
        noise_std: Standard deviation of e.
        interval: Lowest and highest x, drawn uniformly for training and test alike.
        seed: Fixes the points.

    Reference: Blundell et al. (2015), "Weight uncertainty in neural networks", section 5.2.
    """
    del root
    _check(num_train, num_test, noise_std)
    low, high = _ordered("interval", interval)
    generator = torch.Generator().manual_seed(seed)
    inputs = low + (high - low) * torch.rand(num_train + num_test, 1, generator=generator)
    noise = noise_std * torch.randn(inputs.shape, generator=generator)
    every = TensorData(inputs, curve_at(inputs, noise))
    return DataSet(
        name="curve_1d",
        train=every.select(torch.arange(num_train)),
        test=every.select(torch.arange(num_train, len(every))),
        task="regression",
    )


def curve_at(inputs: Tensor, noise: Tensor | float = 0.0) -> Tensor:
    """Return the curve of `curve_1d` at these inputs; without noise the truth behind it."""
    phase = 2.0 * math.pi * (inputs + noise)
    return inputs + 0.3 * phase.sin() + 0.3 * (2.0 * phase).sin() + noise


@datasets.register("cubic_1d")
def cubic_1d(
    root: str | Path | None = None,
    *,
    num_train: int = 20,
    num_test: int = 200,
    noise_std: float = 3.0,
    train_interval: tuple[float, float] = (-4.0, 4.0),
    test_interval: tuple[float, float] = (-6.0, 6.0),
    seed: int = 0,
) -> DataSet:
    """Make the cubic y = x^3 + e, with e ~ N(0, 9), to be tested beyond the training points.

    Training inputs are drawn uniformly; test inputs are evenly spaced, with noise on their
    targets too, so that a test likelihood has its usual meaning.

    Args:
        root: Not used; there are no files.
        num_train: Number of training points.
        num_test: Number of test points.
        noise_std: Standard deviation of e; 3 is the variance of 9 in the paper.
        train_interval: Lowest and highest training x.
        test_interval: Lowest and highest test x.
        seed: Fixes the points.

    Reference: Hernández-Lobato and Adams (2015), "Probabilistic backpropagation".
    """
    del root
    _check(num_train, num_test, noise_std)
    low, high = _ordered("train_interval", train_interval)
    generator = torch.Generator().manual_seed(seed)
    train_inputs = low + (high - low) * torch.rand(num_train, 1, generator=generator)
    test_inputs = torch.linspace(*_ordered("test_interval", test_interval), num_test)[:, None]
    train, test = (
        TensorData(x, cubic_at(x) + noise_std * torch.randn(x.shape, generator=generator))
        for x in (train_inputs, test_inputs)
    )
    return DataSet(name="cubic_1d", train=train, test=test, task="regression")


def cubic_at(inputs: Tensor) -> Tensor:
    """Return the truth behind `cubic_1d` at these inputs."""
    return inputs**3


def truth_at(name: str, inputs: Tensor) -> Tensor:
    """Return the curve behind a regression of this file, without noise.

    Args:
        name: The data set, "curve_1d" or "cubic_1d".
        inputs: Where to look, of any shape.
    """
    curves: dict[str, Callable[[Tensor], Tensor]] = {"curve_1d": curve_at, "cubic_1d": cubic_at}
    if name not in curves:
        raise LookupError(unknown("curve", name, curves))
    return curves[name](inputs)


def _check(num_train: int, num_test: int, noise_std: float) -> None:
    if num_train < 1 or num_test < 1:
        raise ValueError(
            "num_train and num_test must be 1 or more, "
            f"got num_train={num_train}, num_test={num_test}"
        )
    if not noise_std >= 0.0:
        raise ValueError(f"noise_std must be 0 or more, got {noise_std}")


def _ordered(name: str, interval: tuple[float, float]) -> tuple[float, float]:
    low, high = interval
    if not low < high:
        raise ValueError(f"{name} must be (lowest, highest), got ({low}, {high})")
    return low, high
