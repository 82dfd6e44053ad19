"""What JPEG loses: colour at half resolution, and rounded cosine coefficients of 8 x 8 blocks.

The entropy coding that follows in a file loses nothing, and is left out.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from bayesify.data.transforms import BRIGHTEST_PIXEL

BLOCK = 8
MIDDLE_GREY = 128.0
# The example tables of the standard's annex K, which libjpeg scales by the quality.
LUMA_STEPS = (
    (16, 11, 10, 16, 24, 40, 51, 61),
    (12, 12, 14, 19, 26, 58, 60, 55),
    (14, 13, 16, 24, 40, 57, 69, 56),
    (14, 17, 22, 29, 51, 87, 80, 62),
    (18, 22, 37, 56, 68, 109, 103, 77),
    (24, 35, 55, 64, 81, 104, 113, 92),
    (49, 64, 78, 87, 103, 121, 120, 101),
    (72, 92, 95, 98, 112, 100, 103, 99),
)
CHROMA_STEPS = (
    (17, 18, 24, 47, 99, 99, 99, 99),
    (18, 21, 26, 66, 99, 99, 99, 99),
    (24, 26, 56, 99, 99, 99, 99, 99),
    (47, 66, 99, 99, 99, 99, 99, 99),
    (99, 99, 99, 99, 99, 99, 99, 99),
    (99, 99, 99, 99, 99, 99, 99, 99),
    (99, 99, 99, 99, 99, 99, 99, 99),
    (99, 99, 99, 99, 99, 99, 99, 99),
)
# Rows: luma, blueness and redness of red, green and blue.
FROM_RGB = (
    (0.299, 0.587, 0.114),
    (-0.168735892, -0.331264108, 0.5),
    (0.5, -0.418687589, -0.081312411),
)
TO_RGB = ((1.0, 0.0, 1.402), (1.0, -0.344136286, -0.714136286), (1.0, 1.772, 0.0))


def jpeg(images: Tensor, quality: int) -> Tensor:
    """Return images as they come back from a JPEG file with 4:2:0 chroma subsampling.

    Args:
        images: Batch (images, 1 or 3 channels, height, width) with values in [0, 1]; one channel
            is stored as grey.
        quality: From 1 to 100, on libjpeg's scale.
    """
    pixels = (images * BRIGHTEST_PIXEL).round_().clamp_(0.0, BRIGHTEST_PIXEL)
    luma_steps, chroma_steps = _steps(LUMA_STEPS, quality), _steps(CHROMA_STEPS, quality)
    if images.shape[1] == 1:
        return _coded(pixels, luma_steps) / BRIGHTEST_PIXEL
    luma, chroma = _mixed(pixels, FROM_RGB).split((1, 2), 1)
    luma = _coded(luma.round(), luma_steps)
    chroma = _coded_at_half_resolution((chroma + MIDDLE_GREY).round(), chroma_steps) - MIDDLE_GREY
    pixels = _mixed(torch.cat((luma, chroma), 1), TO_RGB).round_()
    return pixels.clamp_(0.0, BRIGHTEST_PIXEL) / BRIGHTEST_PIXEL


def _steps(table: tuple[tuple[int, ...], ...], quality: int) -> Tensor:
    """Return the width to which each coefficient is rounded, as libjpeg computes it."""
    percent = 5000 // quality if quality < 50 else 200 - 2 * quality
    scaled = torch.tensor(table).mul(percent).add(50).div(100, rounding_mode="floor")
    return scaled.clamp(1, 255).float()


def _mixed(pixels: Tensor, matrix: tuple[tuple[float, ...], ...]) -> Tensor:
    weights = torch.tensor(matrix).to(pixels)
    return torch.einsum("dc,nchw->ndhw", weights, pixels)


def _coded_at_half_resolution(pixels: Tensor, steps: Tensor) -> Tensor:
    height, width = pixels.shape[2:]
    full = F.pad(pixels, (0, -width % (2 * BLOCK), 0, height % 2), mode="replicate")
    # Halves go down and up in turn along a row, as in libjpeg: no drift, and no draw.
    bias = torch.tensor((0.25, 0.5)).repeat(full.shape[3] // 4).to(pixels)
    small = _coded((F.avg_pool2d(full, 2) + bias).floor(), steps)
    small = small[..., : (width + 1) // 2]
    large = F.interpolate(small, scale_factor=2, mode="bilinear", align_corners=False)
    return large[..., :height, :width].round()


def _coded(pixels: Tensor, steps: Tensor) -> Tensor:
    """Return whole grey values after rounding the coefficients of every block."""
    height, width = pixels.shape[2:]
    full = F.pad(pixels, (0, -width % BLOCK, 0, -height % BLOCK), mode="replicate")
    blocks = full.unflatten(3, (-1, BLOCK)).unflatten(2, (-1, BLOCK)).transpose(3, 4)
    cosines, steps = _cosines().to(pixels), steps.to(pixels)
    coefficients = cosines @ (blocks - MIDDLE_GREY) @ cosines.T
    # To whole eighths first, then halves away from 0, as libjpeg does: constant blocks have them.
    coefficients = (8.0 * coefficients).round_() / 8.0
    coefficients = coefficients.sign() * (coefficients.abs() / steps + 0.5).floor_() * steps
    blocks = cosines.T @ coefficients @ cosines + MIDDLE_GREY
    full = blocks.transpose(3, 4).flatten(4, 5).flatten(2, 3)
    return full[..., :height, :width].round().clamp_(0.0, BRIGHTEST_PIXEL)


def _cosines() -> Tensor:
    """Return the orthonormal cosine transform, a frequency in each row."""
    frequency = torch.arange(BLOCK, dtype=torch.float64)[:, None]
    position = torch.arange(BLOCK, dtype=torch.float64) + 0.5
    cosines = torch.cos(math.pi / BLOCK * frequency * position) * math.sqrt(2.0 / BLOCK)
    cosines[0] /= math.sqrt(2.0)
    return cosines
