"""Corruption by drops on the lens: clear water at first, then mud."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from bayesify.data.corruption import at_severity, corruptions
from bayesify.data.corruption_filter import filtered, padded, smoothed
from bayesify.data.transforms import BRIGHTEST_PIXEL


class Spatter(NamedTuple):
    """What is spattered: the noise it starts from, where it is wet, and how it shows."""

    mean: float
    std: float
    smoothness: float
    threshold: float
    # Of water, its brightness; of mud, the std that rounds its rims.
    strength: float
    is_mud: bool


SPATTERS = (
    Spatter(0.62, 0.1, 0.7, 0.70, 0.5, is_mud=False),
    Spatter(0.65, 0.1, 0.8, 0.70, 0.5, is_mud=False),
    Spatter(0.65, 0.3, 1.0, 0.69, 0.5, is_mud=False),
    Spatter(0.65, 0.1, 0.7, 0.69, 0.6, is_mud=True),
    Spatter(0.65, 0.1, 0.5, 0.68, 0.6, is_mud=True),
)
PALE_TURQUOISE = (175.0, 238.0, 238.0)
BROWN = (63.0, 42.0, 20.0)
THICK_MUD = 0.8
EDGE_GRADIENT = 150.0
FARTHEST = 20
SLOPE = ((-1.0, 0.0, 1.0), (-2.0, 0.0, 2.0), (-1.0, 0.0, 1.0))
STEEP_SLOPE = ((-1.0, -2.0, -1.0), (0.0, 0.0, 0.0), (1.0, 2.0, 1.0))
# Light that falls on a drop from the upper left and is gathered at its lower right.
RELIEF = ((-2.0, -1.0, 0.0), (-1.0, 1.0, 1.0), (0.0, 1.0, 2.0))
NEIGHBOURHOOD = ((1 / 9,) * 3,) * 3


@corruptions.register("spatter")
def spatter(images: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    """Splash drops on the lens, water up to severity 3 and mud above."""
    kind = at_severity(SPATTERS, severity)
    num_images, _, height, width = images.shape
    shape = (num_images, 1, height, width)
    noise = torch.randn(shape, generator=generator, device=images.device)
    liquid = smoothed(kind.mean + kind.std * noise, kind.smoothness)
    liquid = torch.where(liquid < kind.threshold, 0.0, liquid)
    if kind.is_mud:
        mud = smoothed((liquid > kind.threshold).float(), kind.strength)
        mud = torch.where(mud < THICK_MUD, 0.0, mud)
        return (images * (1.0 - mud) + mud * _colour(BROWN, images)).clamp_(0.0, 1.0)
    water = kind.strength * _water(liquid)
    return (images + water * _colour(PALE_TURQUOISE, images)).clamp_(0.0, 1.0)


def _colour(levels: tuple[float, ...], images: Tensor) -> Tensor:
    """Return a colour on the scale 0..1, to go with images; its mean where they are grey."""
    colour = torch.tensor(levels).to(images).view(-1, 1, 1) / BRIGHTEST_PIXEL
    return colour if images.shape[1] == len(levels) else colour.mean(0, keepdim=True)


def _water(liquid: Tensor) -> Tensor:
    """Return how brightly drops shine, up to 1: a relief of the distance from their rims."""
    liquid = (liquid * BRIGHTEST_PIXEL).floor().clamp_(0.0, BRIGHTEST_PIXEL)
    distance = _distance_to(_edges(liquid))
    distance = _equalised(filtered(distance, NEIGHBOURHOOD, "reflect").floor_())
    relief = filtered(distance, RELIEF, "reflect").clamp_(0.0, BRIGHTEST_PIXEL)
    shine = liquid * filtered(relief, NEIGHBOURHOOD, "reflect").round_()
    # A dry picture has no brightest drop to divide by.
    return shine / shine.amax((1, 2, 3), keepdim=True).clamp_min(1.0)


def _edges(levels: Tensor) -> Tensor:
    """Return where Canny's detector finds an edge.

    Drops end in a cliff of over a hundred grey levels, so that the weak edges which Canny follows
    from strong ones hardly occur: only the strong are kept.
    """
    right, down = filtered(levels, SLOPE, "edge"), filtered(levels, STEEP_SLOPE, "edge")
    steepness = right.abs() + down.abs()
    around = padded(steepness, 1, "edge")
    height, width = levels.shape[2:]

    def seen(row: int, column: int) -> Tensor:
        return around[..., 1 + row : 1 + row + height, 1 + column : 1 + column + width]

    # Only the steepest pixel across an edge stays; the tangents are those of 22.5 and 67.5 degrees.
    is_flat, is_steep = down.abs() < 0.4142 * right.abs(), down.abs() > 2.4142 * right.abs()
    is_falling = (right * down) >= 0.0
    before = torch.where(is_falling, seen(-1, -1), seen(-1, 1))
    before = torch.where(is_flat, seen(0, -1), torch.where(is_steep, seen(-1, 0), before))
    after = torch.where(is_falling, seen(1, 1), seen(1, -1))
    after = torch.where(is_flat, seen(0, 1), torch.where(is_steep, seen(1, 0), after))
    return (steepness > EDGE_GRADIENT) & (steepness > before) & (steepness >= after)


def _distance_to(edges: Tensor) -> Tensor:
    """Return the distance of each pixel to the nearest edge, up to `FARTHEST`."""
    far = float(FARTHEST**2)
    squared = torch.where(edges, 0.0, far)
    for dimension in (2, 3):
        size = squared.shape[dimension]
        nearest = squared.clone()
        for offset in range(1, min(FARTHEST, size)):
            left = squared.narrow(dimension, 0, size - offset) + offset**2
            right = squared.narrow(dimension, offset, size - offset) + offset**2
            ahead = nearest.narrow(dimension, offset, size - offset)
            torch.minimum(ahead, left, out=ahead)
            behind = nearest.narrow(dimension, 0, size - offset)
            torch.minimum(behind, right, out=behind)
        squared = nearest
    return squared.sqrt()


def _equalised(levels: Tensor) -> Tensor:
    """Return whole levels spread over 0..255 so that all are about equally frequent."""
    flat = levels.flatten(1).to(torch.int64)
    num_pixels = flat.shape[1]
    # A comparison with every level instead of a scatter, which has no fixed order on a GPU.
    cumulative = torch.stack([(flat <= level).sum(1) for level in range(FARTHEST + 1)], dim=1).to(
        levels.dtype
    )
    lowest = flat.amin(1, keepdim=True)
    num_lowest = cumulative.gather(1, lowest)
    spread = BRIGHTEST_PIXEL / (num_pixels - num_lowest).clamp_min(1.0)
    table = ((cumulative - num_lowest) * spread).round_().clamp_min(0.0)
    # One level alone stays what it is.
    table = torch.where(num_lowest == num_pixels, lowest.to(levels.dtype), table)
    return table.gather(1, flat).view(levels.shape)
