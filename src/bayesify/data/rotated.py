"""Images turned about their middle: a shift of the data that grows with the angle."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from bayesify.data.dataset import TensorData


def rotated(data: TensorData, degrees: float) -> TensorData:
    """Return images turned against the clock, between pixels by bilinear interpolation.

    Corners that were not in the picture are dark.

    Args:
        data: Images of (channels, height, width).
        degrees: The angle.
    """
    images = data.inputs
    if images.ndim != 4:
        raise ValueError(
            f"rotated needs images of (channels, height, width), got {tuple(images.shape[1:])}"
        )
    if not len(images):
        return TensorData(images, data.targets, data.transform)
    height, width = images.shape[-2:]
    cosine, sine = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    # The grid runs from -1 to 1 on both axes: a turn of an oblong picture needs its proportions.
    turn = [[cosine, -sine * height / width, 0.0], [sine * width / height, cosine, 0.0]]
    matrix = torch.tensor([turn], device=images.device).expand(len(images), 2, 3)
    grid = F.affine_grid(matrix, list(images.shape), align_corners=False)
    turned = F.grid_sample(images.float(), grid, align_corners=False)
    if not images.is_floating_point():
        turned = turned.round().clamp(0, 255)
    return TensorData(turned.to(images.dtype), data.targets, data.transform)
