"""Corruption by blur: out of focus, behind frosted glass, in motion, zooming, or smoothed."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bayesify.data.corruption import at_severity, corruptions
from bayesify.data.corruption_filter import filtered, smoothed, streaked, zoomed

# Radius of the disk a point of light becomes, and the std that softens the disk's rim.
DEFOCUS = ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1.0, 0.2), (1.5, 0.1))
# Std of the smoothing before and after, and how often pixels are displaced.
GLASS = ((0.05, 1), (0.25, 1), (0.4, 1), (0.25, 2), (0.4, 2))
# Radius and std of the line along which the picture moves, and its steepest angle in degrees.
MOTION = ((6, 1.0), (6, 1.5), (6, 2.0), (8, 2.0), (9, 2.5))
STEEPEST_MOTION = 45.0
# Zooms are 1.00, 1.01, ...: how many of them. The step is what NumPy's arange makes of 0.01: its
# last bits decide whether 26 pixels become 32 or 33 at the zoom of 1.25.
ZOOM_STEP = 1.01 - 1.0
NUM_ZOOMS = (7, 12, 16, 21, 26)
GAUSSIAN_STDS = (0.4, 0.6, 0.7, 0.8, 1.0)


@corruptions.register("defocus_blur")
def defocus_blur(images: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    """Spread each pixel over a disk, as a lens out of focus does."""
    del generator
    radius, rim_std = at_severity(DEFOCUS, severity)
    return filtered(images, _disk(radius, rim_std), border="reflect").clamp_(0.0, 1.0)


@corruptions.register("glass_blur")
def glass_blur(images: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    """Look through frosted glass: each pixel shows itself or a neighbour to its upper left.

    The published script means to swap neighbours in turn, but assigns through views of one array,
    so that a pixel copies its neighbour, which keeps its value. The published images hold what
    the script does, and so do these; read in its order, no copy is ever of a copy, and all of
    them are made at once.
    """
    std, num_rounds = at_severity(GLASS, severity)
    images = smoothed(images, std)
    for _ in range(num_rounds):
        images = _displaced(images, generator)
    return smoothed(images, std).clamp_(0.0, 1.0)


@corruptions.register("motion_blur")
def motion_blur(images: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    """Move the camera along a line, in a direction of each image's own."""
    radius, std = at_severity(MOTION, severity)
    turns = torch.rand(len(images), generator=generator, device=images.device)
    angles = STEEPEST_MOTION * (2.0 * turns - 1.0)
    return streaked(images, radius, std, angles).clamp_(0.0, 1.0)


@corruptions.register("zoom_blur")
def zoom_blur(images: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    """Average the picture with magnified versions of itself, as when moving towards it."""
    del generator
    num_zooms = at_severity(NUM_ZOOMS, severity)
    total = images.clone()
    for step in range(num_zooms):
        total += zoomed(images, 1.0 + ZOOM_STEP * step)
    return (total / (num_zooms + 1)).clamp_(0.0, 1.0)


@corruptions.register("gaussian_blur")
def gaussian_blur(images: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    """Smooth the picture by a Gaussian."""
    del generator
    return smoothed(images, at_severity(GAUSSIAN_STDS, severity)).clamp_(0.0, 1.0)


def _disk(radius: float, rim_std: float) -> list[list[float]]:
    """Return a disk of equal weights, its rim softened over one pixel."""
    # A free pixel around the softened rim, or the border would be reflected into it.
    reach = math.ceil(radius) + 2
    offsets = torch.arange(-reach, reach + 1, dtype=torch.float64)
    disk = (offsets[:, None] ** 2 + offsets**2 <= radius**2).double()
    side = math.exp(-0.5 / rim_std**2)
    line = torch.tensor([side, 1.0, side], dtype=torch.float64)
    soft = filtered((disk / disk.sum())[None, None], torch.outer(line, line).tolist(), "reflect")
    return (soft / soft.sum())[0, 0].tolist()


def _displaced(images: Tensor, generator: torch.Generator) -> Tensor:
    num_images, num_channels, height, width = images.shape
    shape = (2, num_images, height, width)
    back = torch.randint(0, 2, shape, generator=generator, device=images.device)
    # The two rows and columns at the top and left stay, as in the published script.
    back[..., :2, :] = 0
    back[..., :2] = 0
    pixels = torch.arange(height * width, device=images.device).view(height, width)
    index = (pixels - back[0] * width - back[1]).flatten(1)
    index = index[:, None].expand(-1, num_channels, -1)
    return images.flatten(2).gather(2, index).view(images.shape)
