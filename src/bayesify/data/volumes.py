"""Synthetic head scans with a known answer: how large is the cavity inside?

A stand-in for the medical task of Nazarovs et al. (2021), magnetic resonance volumes of patients
and controls, which cannot be passed on. Like there, the classes differ by a fluid-filled cavity
that is larger in the one, and they overlap.

What is made, in lengths where the cube of a volume reaches from -1 to 1 along each axis, and with
N(m, s) for a normal distribution of mean m and standard deviation s:

- A head: an ellipsoid of intensity 0.6 on 0.1, with semi-axes drawn from U(0.72, 0.92), turned by
  N(0, 0.3) radians about each axis in turn, its centre moved by N(0, 0.03) along each.
- A cavity in it, of intensity 0.25: an ellipsoid of radius r, the geometric mean of its semi-axes,
  with log r ~ N(log 0.28, 0.11) in class 0 and log r ~ N(log 0.36, 0.11) in class 1. Its semi-axes
  are r times factors of N(0, 0.12) on the log scale, divided by their geometric mean; it turns with
  the head and its centre is moved by N(0, 0.03) along each of the head's axes.
- A texture of the tissue: N(0, 0.06) added on 5x5x5 points over the cube, linear in between.
- Noise on every voxel: the mean over 3x3x3 independent draws, rescaled to N(0, noise_std).

Edges fade as a logistic function of the distance from them with scale 0.04; along the axes of an
ellipsoid that scale is stretched like the ellipsoid. Intensities are cut to [0, 1] and stored in
256 steps, which also makes the stored numbers the same on machines that round a last digit
differently.

The label acts on a volume through r alone, and the classes are equally frequent. So no classifier
is right more often than the one that knows r and compares it with the geometric mean of the two
medians: with probability Phi(log(0.36 / 0.28) / (2 * 0.11)) = 0.873, see `best_accuracy`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from bayesify.data.catalogue import datasets
from bayesify.data.dataset import DataSet, TensorData

CLASSES = ("small_cavity", "large_cavity")
MEDIAN_RADII = (0.28, 0.36)
LOG_RADIUS_STD = 0.11
LOG_SHAPE_STD = 0.12
HEAD_AXES = (0.72, 0.92)
SHIFT_STD = 0.03
ANGLE_STD = 0.3
BACKGROUND, TISSUE, FLUID = 0.1, 0.6, 0.25
TEXTURE_STD = 0.06
TEXTURE_POINTS = 5
EDGE = 0.04
NOISE_WINDOW = 3
BRIGHTEST_VOXEL = 255


@dataclass(frozen=True)
class Heads:
    """What is drawn of each head before it is painted, in float64.

    Args:
        labels: Class of each head, of shape (heads,).
        radii: Geometric mean of the cavity's semi-axes, of shape (heads,).
        cavity_axes: Semi-axes of the cavity, of shape (heads, 3).
        cavity_centres: Centre of the cavity along the head's axes, of shape (heads, 3).
        axes: Semi-axes of the head, of shape (heads, 3).
        centres: Centre of the head, of shape (heads, 3).
        rotations: Directions of the head's axes, as columns, of shape (heads, 3, 3).
        textures: Texture on its own points, of shape (heads, 5, 5, 5).
    """

    labels: Tensor
    radii: Tensor
    cavity_axes: Tensor
    cavity_centres: Tensor
    axes: Tensor
    centres: Tensor
    rotations: Tensor
    textures: Tensor


@datasets.register("volumes")
def volumes(
    root: str | Path | None = None,
    *,
    num_train: int = 300,
    num_test: int = 88,
    size: int = 24,
    noise_std: float = 0.05,
    seed: int = 0,
) -> DataSet:
    """Make volumes of heads with a small or a large cavity, of shape (1, size, size, size).

    The same seed and counts give the same heads at every size and noise. Both classes are
    equally frequent over training and test volumes together.

    Args:
        root: Not used; there are no files.
        num_train: Number of training volumes.
        num_test: Number of test volumes.
        size: Number of voxels along each side, at least 8.
        noise_std: Standard deviation of the noise of a voxel; the contrast between tissue and
            cavity is 0.35.
        seed: Fixes the volumes and which of them are for training.
    """
    del root
    _check(num_train, num_test, size, noise_std)
    generator = torch.Generator().manual_seed(seed)
    heads = draw_heads(num_train + num_test, generator)
    stored = torch.stack(
        [
            _stored(paint(heads, index, size), noise_std, generator)
            for index in range(num_train + num_test)
        ]
    )
    train, test = (
        TensorData(inputs, labels)
        for inputs, labels in zip(
            stored.split([num_train, num_test]),
            heads.labels.split([num_train, num_test]),
            strict=True,
        )
    )
    raw = DataSet("volumes", train, test, "classification", len(CLASSES), CLASSES)
    return raw.normalised(*_exact_statistics(train.inputs))


def best_accuracy() -> float:
    """Return how often a classifier that knows the cavity's radius is right at best.

    Two equally frequent normal distributions of log r with the same std are told apart with
    probability Phi(distance / (2 std)).
    """
    low, high = MEDIAN_RADII
    deviations = math.log(high / low) / (2.0 * LOG_RADIUS_STD)
    return 0.5 * (1.0 + math.erf(deviations / math.sqrt(2.0)))


def draw_heads(num_heads: int, generator: torch.Generator) -> Heads:
    """Draw the class, the shape, the pose and the texture of each head.

    Args:
        num_heads: Number of heads; half of them of each class, in random order.
        generator: Source of randomness, on the CPU.
    """

    def normal(std: float, *shape: int) -> Tensor:
        # float64: torch draws normal numbers in float32 by other instructions on other machines.
        return std * torch.randn(num_heads, *shape, generator=generator, dtype=torch.float64)

    labels = torch.randperm(num_heads, generator=generator) % 2
    medians = torch.tensor(MEDIAN_RADII, dtype=torch.float64)[labels]
    radii = medians * normal(LOG_RADIUS_STD).exp()
    log_shape = normal(LOG_SHAPE_STD, 3)
    shape = (log_shape - log_shape.mean(1, keepdim=True)).exp()
    low, high = HEAD_AXES
    draws = torch.rand(num_heads, 3, generator=generator, dtype=torch.float64)
    return Heads(
        labels=labels,
        radii=radii,
        cavity_axes=radii[:, None] * shape,
        cavity_centres=normal(SHIFT_STD, 3),
        axes=low + (high - low) * draws,
        centres=normal(SHIFT_STD, 3),
        rotations=_rotations(normal(ANGLE_STD, 3)),
        textures=normal(TEXTURE_STD, *(TEXTURE_POINTS,) * 3),
    )


def paint(heads: Heads, index: int, size: int) -> Tensor:
    """Return one head without noise, as intensities of shape (1, size, size, size).

    Args:
        heads: The heads that were drawn.
        index: Which of them to paint.
        size: Number of voxels along each side.
    """
    side = (torch.arange(size, dtype=torch.float64) + 0.5) * (2.0 / size) - 1.0
    points = torch.stack(torch.meshgrid(side, side, side, indexing="ij"), dim=-1)
    points = (points - heads.centres[index]) @ heads.rotations[index]
    head = _inside(points, heads.axes[index])
    cavity = _inside(points - heads.cavity_centres[index], heads.cavity_axes[index])
    texture = F.interpolate(
        heads.textures[index][None, None], size=(size,) * 3, mode="trilinear", align_corners=True
    )[0, 0]
    tissue = (TISSUE + texture) * (1.0 - cavity) + FLUID * cavity
    return (BACKGROUND + head * (tissue - BACKGROUND))[None]


def _inside(points: Tensor, axes: Tensor) -> Tensor:
    """Return 1 inside an ellipsoid around 0 and 0 outside, with a fading edge in between."""
    radius = axes.prod() ** (1.0 / 3.0)
    return torch.sigmoid((1.0 - (points / axes).norm(dim=-1)) * (radius / EDGE))


def _rotations(angles: Tensor) -> Tensor:
    """Return the rotations by three angles of shape (heads, 3), one about each axis in turn."""
    result = torch.eye(3, dtype=angles.dtype)
    for axis in range(3):
        first, second = (axis + 1) % 3, (axis + 2) % 3
        cosine, sine = angles[:, axis].cos(), angles[:, axis].sin()
        turn = torch.eye(3, dtype=angles.dtype).repeat(len(angles), 1, 1)
        turn[:, first, first], turn[:, second, second] = cosine, cosine
        turn[:, first, second], turn[:, second, first] = -sine, sine
        result = result @ turn
    return result


def _stored(intensities: Tensor, noise_std: float, generator: torch.Generator) -> Tensor:
    sides = (side + NOISE_WINDOW - 1 for side in intensities.shape[1:])
    draws = torch.randn(1, *sides, generator=generator, dtype=torch.float64)
    smooth = F.avg_pool3d(draws, NOISE_WINDOW, stride=1) * NOISE_WINDOW**1.5
    noisy = (intensities + noise_std * smooth).clamp(0.0, 1.0)
    return (noisy * BRIGHTEST_VOXEL).round().to(torch.uint8)


def _exact_statistics(stored: Tensor) -> tuple[tuple[float], tuple[float]]:
    """Return mean and standard deviation, from whole numbers and so the same on any machine."""
    counts = stored.flatten().bincount(minlength=BRIGHTEST_VOXEL + 1).tolist()
    total = sum(counts)
    mean = sum(value * count for value, count in enumerate(counts)) / total
    squares = sum(value * value * count for value, count in enumerate(counts)) / total
    std = math.sqrt(squares - mean * mean)
    return (mean / BRIGHTEST_VOXEL,), (std / BRIGHTEST_VOXEL,)


def _check(num_train: int, num_test: int, size: int, noise_std: float) -> None:
    if num_train < 1 or num_test < 1:
        raise ValueError(
            "num_train and num_test must be 1 or more, "
            f"got num_train={num_train}, num_test={num_test}"
        )
    if size < 8:
        raise ValueError(f"size must be at least 8 voxels to show a cavity, got {size}")
    if not noise_std >= 0.0:
        raise ValueError(f"noise_std must be 0 or more, got {noise_std}")
