"""Plasma fractals: random cloudy maps by the diamond-square algorithm, many at a time."""

from __future__ import annotations

import torch
from torch import Tensor


def plasma(
    num_maps: int, height: int, width: int, decay: float, generator: torch.Generator
) -> Tensor:
    """Draw cloudy maps, of shape (maps, 1, height, width).

    Each is made on a square torus whose side is a power of two, its values shifted and scaled to
    reach from 0 to 1 there, and then cropped.

    Args:
        num_maps: Number of maps.
        height: Height of a map.
        width: Width of a map.
        decay: The noise falls by decay² when its grid gets twice as fine: 3 gives soft clouds,
            1.75 rough ones.
        generator: Source of randomness; the maps live on its device.
    """
    side = 2
    while side < max(height, width):
        side *= 2
    maps = torch.zeros(num_maps, side, side, device=generator.device)
    step, wibble = side, 1.0
    while step >= 2:
        _refine(maps, step, wibble, generator)
        step //= 2
        wibble /= decay**2
    lowest, highest = maps.amin((1, 2), keepdim=True), maps.amax((1, 2), keepdim=True)
    return ((maps - lowest) / (highest - lowest))[:, None, :height, :width]


def _refine(maps: Tensor, step: int, wibble: float, generator: torch.Generator) -> None:
    """Fill the points half-way between those that are `step` apart, in place."""
    half = step // 2

    def wibbled(total: Tensor) -> Tensor:
        draws = torch.rand(total.shape, generator=generator, device=total.device)
        return total / 4.0 + wibble * (2.0 * draws - 1.0)

    corners = maps[:, ::step, ::step]
    pairs = corners + corners.roll(-1, 1)
    maps[:, half::step, half::step] = wibbled(pairs + pairs.roll(-1, 2))
    centres = maps[:, half::step, half::step]
    above = centres + centres.roll(1, 1) + corners + corners.roll(-1, 2)
    maps[:, ::step, half::step] = wibbled(above)
    beside = centres + centres.roll(1, 2) + corners + corners.roll(-1, 1)
    maps[:, half::step, ::step] = wibbled(beside)
