"""Corruption by weather and light: snow, frost, fog and brightness."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from bayesify.data.corruption import at_severity, corruptions
from bayesify.data.corruption_filter import streaked, zoomed
from bayesify.data.corruption_plasma import plasma

LUMA = (0.299, 0.587, 0.114)


class Snowfall(NamedTuple):
    """How much snow falls: the flakes' noise, their size, and the streaks they draw."""

    mean: float
    std: float
    zoom: float
    threshold: float
    streak_radius: int
    streak_std: float
    image_weight: float


SNOWFALLS = (
    Snowfall(0.10, 0.2, 1.00, 0.60, 8, 3.0, 0.95),
    Snowfall(0.10, 0.2, 1.00, 0.50, 10, 4.0, 0.90),
    Snowfall(0.15, 0.3, 1.75, 0.55, 10, 4.0, 0.90),
    Snowfall(0.25, 0.3, 2.25, 0.60, 12, 6.0, 0.85),
    Snowfall(0.30, 0.3, 1.25, 0.65, 14, 12.0, 0.80),
)
# Weight of the image and of the frost.
FROST_WEIGHTS = ((1.0, 0.2), (1.0, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))
FROST_DECAY = 2.0
FROST_TINT = (0.84, 0.96, 1.0)
# Thickness of the fog and the decay of its plasma fractal.
FOG = ((0.2, 3.0), (0.5, 3.0), (0.75, 2.5), (1.0, 2.0), (1.5, 1.75))
ADDED_BRIGHTNESS = (0.05, 0.10, 0.15, 0.20, 0.30)


@corruptions.register("snow")
def snow(images: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    """Whiten the picture and let flakes fall in streaks, from two opposite sides."""
    fall = at_severity(SNOWFALLS, severity)
    num_images, _, height, width = images.shape
    shape = (num_images, 1, height, width)
    flakes = torch.randn(shape, generator=generator, device=images.device)
    flakes = zoomed(fall.mean + fall.std * flakes, fall.zoom)
    flakes = torch.where(flakes < fall.threshold, 0.0, flakes).clamp_(0.0, 1.0)
    angles = -135.0 + 90.0 * torch.rand(num_images, generator=generator, device=images.device)
    flakes = streaked(flakes, fall.streak_radius, fall.streak_std, angles)
    whitened = torch.maximum(images, _grey(images) * 1.5 + 0.5)
    images = fall.image_weight * images + (1.0 - fall.image_weight) * whitened
    return (images + flakes + flakes.flip(2, 3)).clamp_(0.0, 1.0)


@corruptions.register("frost")
def frost(images: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    """Lay ice crystals over the picture.

    The published images use crops of photographs of frost, which are not ours to give away. Here
    the crystals are drawn: the ridges of a rough plasma fractal, with needles that grow in three
    directions 60 degrees apart. The weights of image and frost are the published ones.
    """
    image_weight, frost_weight = at_severity(FROST_WEIGHTS, severity)
    crystals = _crystals(images, generator)
    if images.shape[1] == len(FROST_TINT):
        crystals = crystals * torch.tensor(FROST_TINT).to(images).view(-1, 1, 1)
    return (image_weight * images + frost_weight * crystals).clamp_(0.0, 1.0)


@corruptions.register("fog")
def fog(images: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    """Lay a bright plasma fractal over the picture, and scale it to its old range."""
    thickness, decay = at_severity(FOG, severity)
    num_images, _, height, width = images.shape
    brightest = images.amax((1, 2, 3), keepdim=True)
    foggy = images + thickness * plasma(num_images, height, width, decay, generator)
    return (foggy * brightest / (brightest + thickness)).clamp_(0.0, 1.0)


@corruptions.register("brightness")
def brightness(images: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    """Raise the value of each pixel, keeping its hue and saturation."""
    del generator
    value = images.amax(1, keepdim=True)
    brighter = (value + at_severity(ADDED_BRIGHTNESS, severity)).clamp_max(1.0)
    # With hue and saturation fixed, the channels are in proportion to the value; black is grey.
    return torch.where(value > 0.0, images * (brighter / value), brighter).clamp_(0.0, 1.0)


def _grey(images: Tensor) -> Tensor:
    if images.shape[1] == 1:
        return images
    weights = torch.tensor(LUMA).to(images).view(-1, 1, 1)
    return (images * weights).sum(1, keepdim=True)


def _crystals(images: Tensor, generator: torch.Generator) -> Tensor:
    """Draw frost of shape (images, 1, height, width), from dark glass to white ice."""
    num_images, _, height, width = images.shape
    clouds, veins = plasma(2 * num_images, height, width, FROST_DECAY, generator).chunk(2)
    ridges = 1.0 - (2.0 * veins - 1.0).abs()
    angles = 180.0 * torch.rand(num_images, generator=generator, device=images.device)
    shape = (num_images, 1, height, width)
    needles = torch.zeros(shape, device=images.device)
    for turn in (0.0, 60.0, 120.0):
        seeds = torch.rand(shape, generator=generator, device=images.device) > 0.985
        needles = torch.maximum(needles, streaked(seeds.float(), 6, 4.0, angles + turn))
    # Where the ice is thin, so are its needles: patches of the picture stay clear.
    ice = 0.6 * clouds + 0.4 * ridges**2
    return (ice * (1.0 + 3.0 * needles)).clamp_(0.0, 1.0)
