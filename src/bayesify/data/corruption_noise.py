"""Corruption of every pixel on its own: sensor, photon, bit-error and speckle noise."""

from __future__ import annotations

import torch
from torch import Tensor

from bayesify.data.corruption import at_severity, corruptions

GAUSSIAN_STDS = (0.04, 0.06, 0.08, 0.09, 0.10)
PHOTONS_AT_WHITE = (500.0, 250.0, 100.0, 75.0, 50.0)
IMPULSE_FRACTIONS = (0.01, 0.02, 0.03, 0.05, 0.07)
SPECKLE_STDS = (0.06, 0.10, 0.12, 0.16, 0.20)


@corruptions.register("gaussian_noise")
def gaussian_noise(images: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    """Add normal noise, as a sensor does in low light."""
    std = at_severity(GAUSSIAN_STDS, severity)
    return (images + std * _normal(images, generator)).clamp_(0.0, 1.0)


@corruptions.register("shot_noise")
def shot_noise(images: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    """Count photons: a Poisson draw whose mean is the light that falls on a pixel."""
    num_photons = at_severity(PHOTONS_AT_WHITE, severity)
    return (torch.poisson(images * num_photons, generator) / num_photons).clamp_(0.0, 1.0)


@corruptions.register("impulse_noise")
def impulse_noise(images: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    """Turn a fraction of values, each channel for itself, to the darkest or the brightest."""
    fraction = at_severity(IMPULSE_FRACTIONS, severity)
    is_hit = _uniform(images, generator) < fraction
    is_salt = _uniform(images, generator) < 0.5
    return torch.where(is_hit, is_salt.to(images.dtype), images)


@corruptions.register("speckle_noise")
def speckle_noise(images: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    """Add normal noise in proportion to the brightness of a pixel."""
    std = at_severity(SPECKLE_STDS, severity)
    return (images + images * std * _normal(images, generator)).clamp_(0.0, 1.0)


def _normal(images: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(images.shape, generator=generator, device=images.device)


def _uniform(images: Tensor, generator: torch.Generator) -> Tensor:
    return torch.rand(images.shape, generator=generator, device=images.device)
