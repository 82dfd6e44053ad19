"""Linear filters of whole batches of images: smoothing, small kernels, streaks and zooms.

None of them is a convolution of the backend's: on a GPU that would round to TF32 by default,
which is visible in eight bits.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

# What lies beyond a picture abcd, in NumPy's words: edge aaa|abcd|ddd, reflect dcb|abcd|cba,
# symmetric cba|abcd|dcb.
Border = Literal["edge", "reflect", "symmetric"]


def smoothed(images: Tensor, std: float, border: Border = "edge", truncate: float = 4.0) -> Tensor:
    """Return images blurred by a Gaussian.

    Args:
        images: Batch of shape (..., height, width).
        std: Standard deviation of the Gaussian in pixels; 0 for no blur.
        border: What is seen beyond the picture.
        truncate: Number of standard deviations after which the Gaussian is cut off.
    """
    rows, columns = (
        _smoothing_matrix(size, std, border, truncate).to(images) for size in images.shape[-2:]
    )
    return rows @ images @ columns.T


def filtered(images: Tensor, kernel: Sequence[Sequence[float]], border: Border) -> Tensor:
    """Return images (batch, channels, height, width) correlated with a square kernel of odd size.

    Meant for kernels of a few pixels: it adds one shifted picture for each entry that is not 0.
    """
    height, width = images.shape[-2:]
    wide = padded(images, len(kernel) // 2, border)
    result = torch.zeros_like(images)
    for row, column in itertools.product(range(len(kernel)), repeat=2):
        if kernel[row][column] != 0.0:
            shifted = wide[..., row : row + height, column : column + width]
            result.add_(shifted, alpha=kernel[row][column])
    return result


def padded(images: Tensor, amount: int, border: Border) -> Tensor:
    """Return images with `amount` pixels more on every side, however small they are."""
    for dimension in (-2, -1):
        size = images.shape[dimension]
        positions = torch.arange(-amount, size + amount, device=images.device)
        images = images.index_select(dimension, _inside(positions, size, border))
    return images


def streaked(images: Tensor, radius: int, std: float, angles: Tensor) -> Tensor:
    """Return images that moved in a straight line while they were taken.

    A pixel becomes a mean of those ahead of it on the line, weighted by one half of a Gaussian,
    as ImageMagick's motion blur has it.

    Args:
        images: Batch of shape (images, channels, height, width).
        radius: The line is 2·radius + 1 pixels long.
        std: Standard deviation of the Gaussian in pixels.
        angles: Direction of each image's line, in degrees clockwise from rightwards.
    """
    num_channels, height, width = images.shape[1:]
    weights = [math.exp(-0.5 * (step / std) ** 2) for step in range(2 * radius + 1)]
    down, right = angles.deg2rad().sin(), angles.deg2rad().cos()
    flat, result = images.flatten(2), torch.zeros_like(images).flatten(2)
    for step, weight in enumerate(weights):
        rows = _moved(height, step * down)
        columns = _moved(width, step * right)
        index = (rows[:, :, None] * width + columns[:, None, :]).flatten(1)
        shifted = flat.gather(2, index[:, None].expand(-1, num_channels, -1))
        result.add_(shifted, alpha=weight / sum(weights))
    return result.view(images.shape)


def zoomed(images: Tensor, factor: float) -> Tensor:
    """Return the middle of images (..., height, width), magnified to their size by a factor."""
    rows, columns = (_zoom_matrix(size, factor).to(images) for size in images.shape[-2:])
    return rows @ images @ columns.T


def _inside(positions: Tensor, size: int, border: Border) -> Tensor:
    """Return which pixel is seen at a position that may lie outside the picture."""
    if border == "edge":
        return positions.clamp(0, size - 1)
    if border == "symmetric":
        positions = positions.remainder(2 * size)
        return torch.minimum(positions, 2 * size - 1 - positions)
    period = max(2 * (size - 1), 1)
    positions = positions.remainder(period)
    return torch.minimum(positions, period - positions)


def _smoothing_matrix(size: int, std: float, border: Border, truncate: float) -> Tensor:
    # Made on the CPU in double precision: sums of equal indices on a GPU have no fixed order.
    radius = int(truncate * std + 0.5)
    offsets = torch.arange(-radius, radius + 1)
    weights = torch.exp(-0.5 * (offsets.double() / max(std, 1e-9)) ** 2)
    index = _inside(torch.arange(size)[:, None] + offsets, size, border)
    matrix = torch.zeros(size, size, dtype=torch.float64)
    return matrix.scatter_add_(1, index, (weights / weights.sum()).expand(size, -1))


def _zoom_matrix(size: int, factor: float) -> Tensor:
    cropped = math.ceil(size / factor)
    magnified = round(cropped * factor)
    step = (cropped - 1) / max(magnified - 1, 1)
    first = (size - cropped) // 2
    positions = first + step * (torch.arange(size).double() + (magnified - size) // 2)
    # Linear interpolation: the weight of a pixel falls to 0 at its neighbours.
    return (1.0 - (positions[:, None] - torch.arange(size)).abs()).clamp_min(0.0)


def _moved(size: int, distances: Tensor) -> Tensor:
    whole = (distances - 0.5).ceil().to(torch.int64)
    return (torch.arange(size, device=distances.device) + whole[:, None]).clamp_(0, size - 1)
