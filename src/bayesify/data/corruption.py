"""Everyday damage to images, at five severities: noise, blur, weather and digital artefacts.

The kinds and the severities are those of CIFAR-10-C, made for images of about 32 x 32 pixels:
on larger images the same severity is a milder change. All run in torch, a batch at a time, on
whatever device the images are on, so a corrupted set is made where it is needed instead of
being fetched.

Reference: Hendrycks and Dietterich (2019), "Benchmarking neural network robustness to common
corruptions and perturbations".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from bayesify.data.dataset import TensorData
from bayesify.data.transforms import BRIGHTEST_PIXEL
from bayesify.registry import Registry

Setting = TypeVar("Setting")

Corruption = Callable[[Tensor, int, torch.Generator], Tensor]
corruptions: Registry[Corruption] = Registry("corruption")

NUM_SEVERITIES = 5
BATCH_SIZE = 1000
STANDARD: tuple[str, ...] = (
    "gaussian_noise",
    "shot_noise",
    "impulse_noise",
    "defocus_blur",
    "glass_blur",
    "motion_blur",
    "zoom_blur",
    "snow",
    "frost",
    "fog",
    "brightness",
    "contrast",
    "elastic_transform",
    "pixelate",
    "jpeg_compression",
)


def corrupted(data: TensorData, name: str, severity: int, seed: int = 0) -> TensorData:
    """Return a damaged version of images, read through the same transform, not augmented.

    Args:
        data: Images of type uint8 and shape (images, 1 or 3 channels, height, width).
        name: One of `corruptions`: the fifteen of `STANDARD`, by which results are usually
            averaged, or "speckle_noise", "gaussian_blur", "spatter", "saturate".
        severity: From 1, hardly visible, to 5, with the constants of CIFAR-10-C.
        seed: Fixes what is drawn; the same seed draws otherwise on another kind of device.
    """
    corrupt = corruptions[name]
    _check_severity(severity)
    _check_images(data.inputs)
    generator = torch.Generator(data.inputs.device).manual_seed(seed)
    result = torch.empty_like(data.inputs)
    for images, target in zip(data.inputs.split(BATCH_SIZE), result.split(BATCH_SIZE), strict=True):
        if len(images):
            changed = corrupt(images.to(torch.float32) / BRIGHTEST_PIXEL, severity, generator)
            target.copy_((changed * BRIGHTEST_PIXEL).round_().clamp_(0.0, BRIGHTEST_PIXEL))
    return TensorData(result, data.targets, data.transform)


def at_severity(settings: Sequence[Setting], severity: int) -> Setting:
    """Return the one of five settings, mildest first, that a severity stands for."""
    _check_severity(severity)
    return settings[severity - 1]


def _check_severity(severity: int) -> None:
    if not isinstance(severity, int) or not 1 <= severity <= NUM_SEVERITIES:
        raise ValueError(
            f"severity must be a whole number from 1 to {NUM_SEVERITIES}, got {severity!r}"
        )


def _check_images(inputs: Tensor) -> None:
    if inputs.dtype != torch.uint8:
        raise TypeError(
            "data must hold images of type uint8 to be corrupted, got "
            f"{inputs.dtype}; corrupt the stored images, before their transform"
        )
    if inputs.ndim != 4 or inputs.shape[1] not in (1, 3) or 0 in inputs.shape[1:]:
        raise ValueError(
            "data must hold images of shape (images, 1 or 3 channels, height, width) to be "
            f"corrupted, got {tuple(inputs.shape)}"
        )
