"""Corruption by processing: contrast, saturation, distortion, coarse pixels and JPEG."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from bayesify.data.corruption import at_severity, corruptions
from bayesify.data.corruption_filter import smoothed
from bayesify.data.corruption_jpeg import jpeg

CONTRASTS = (0.75, 0.5, 0.4, 0.3, 0.15)
# Factor and summand of the saturation: two paler, three stronger.
SATURATIONS = ((0.3, 0.0), (0.1, 0.0), (1.5, 0.0), (2.0, 0.1), (2.5, 0.2))
# Strength and smoothness of the displacement and reach of the affine map, in sides of an image.
ELASTIC = (
    (0.0, 0.0, 0.08),
    (0.05, 0.2, 0.07),
    (0.08, 0.06, 0.06),
    (0.1, 0.04, 0.05),
    (0.1, 0.03, 0.03),
)
KEPT_RESOLUTIONS = (0.95, 0.9, 0.85, 0.75, 0.65)
JPEG_QUALITIES = (80, 65, 58, 50, 40)


@corruptions.register("contrast")
def contrast(images: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    """Pull each channel of an image towards its mean."""
    del generator
    mean = images.mean((2, 3), keepdim=True)
    return (mean + at_severity(CONTRASTS, severity) * (images - mean)).clamp_(0.0, 1.0)


@corruptions.register("saturate")
def saturate(images: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    """Change the saturation of each pixel, keeping its hue and value.

    The two lowest severities make the picture paler. Grey has the hue of red, as is usual, and
    so turns reddish at the two highest.
    """
    del generator
    factor, summand = at_severity(SATURATIONS, severity)
    if images.shape[1] != 3:
        raise ValueError(
            "saturate needs images of 3 channels, red, green and blue, got "
            f"{images.shape[1]}; choose another corruption for grey images"
        )
    value = images.amax(1, keepdim=True)
    spread = value - images.amin(1, keepdim=True)
    # How far each channel lies below the value, in units of the spread: this is the hue.
    red = torch.tensor([0.0, 1.0, 1.0]).to(images).view(-1, 1, 1)
    hue = torch.where(spread > 0.0, (value - images) / spread, red)
    saturation = torch.where(value > 0.0, spread / value, 0.0)
    saturation = (saturation * factor + summand).clamp_(0.0, 1.0)
    return (value * (1.0 - saturation * hue)).clamp_(0.0, 1.0)


@corruptions.register("elastic_transform")
def elastic_transform(images: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    """Shear the picture by a random affine map, then stretch it locally, as rubber."""
    strength, smoothness, reach = at_severity(ELASTIC, severity)
    num_images, _, height, width = images.shape
    side = min(height, width)
    images = _sheared(images, reach * side, generator)
    if strength > 0.0:
        draws = torch.rand(2, num_images, height, width, generator=generator, device=images.device)
        moves = smoothed(2.0 * draws - 1.0, smoothness * side, border="symmetric", truncate=3.0)
        rows, columns = _pixel_grid(images)
        right, down = strength * side * moves
        # Half a pixel beyond the outer centres: there this kind of border is mirrored.
        grid = torch.stack(
            ((columns + right + 0.5) * (2.0 / width), (rows + down + 0.5) * (2.0 / height)), -1
        )
        images = F.grid_sample(images, grid - 1.0, padding_mode="reflection", align_corners=False)
    return images.clamp(0.0, 1.0)


@corruptions.register("pixelate")
def pixelate(images: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    """Shrink the picture to fewer pixels, and magnify it without smoothing."""
    del generator
    kept = at_severity(KEPT_RESOLUTIONS, severity)
    rows, columns = (_pixelate_matrix(size, kept).to(images) for size in images.shape[2:])
    return (rows @ images @ columns.T).clamp_(0.0, 1.0)


@corruptions.register("jpeg_compression")
def jpeg_compression(images: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    """Compress the picture as JPEG, and read it again."""
    del generator
    return jpeg(images, at_severity(JPEG_QUALITIES, severity))


def _pixel_grid(images: Tensor) -> tuple[Tensor, Tensor]:
    height, width = images.shape[2:]
    rows = torch.arange(height, dtype=torch.float32, device=images.device)
    columns = torch.arange(width, dtype=torch.float32, device=images.device)
    return rows[:, None].expand(height, width), columns.expand(height, width)


def _sheared(images: Tensor, reach: float, generator: torch.Generator) -> Tensor:
    """Move three corners of a square in the middle by up to `reach` pixels, and all else along."""
    num_images, _, height, width = images.shape
    centre = torch.tensor([float(width // 2), float(height // 2)], device=images.device)
    half = max(min(height, width) // 3, 1)
    corners = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, -1.0]], device=images.device)
    before = centre + half * corners
    draws = torch.rand(num_images, 3, 2, generator=generator, device=images.device)
    after = before + reach * (2.0 * draws - 1.0)
    # A pixel is fetched from where it was: the map leads from the moved corners to the old ones.
    affine = torch.linalg.solve(F.pad(after, (0, 1), value=1.0), before.expand_as(after))
    rows, columns = _pixel_grid(images)
    pixels = torch.stack((columns, rows, torch.ones_like(rows)), -1)
    sources = pixels.view(1, -1, 3) @ affine
    largest = torch.tensor([max(width - 1, 1), max(height - 1, 1)], device=images.device)
    grid = (2.0 * sources / largest - 1.0).view(num_images, height, width, 2)
    return F.grid_sample(images, grid, padding_mode="reflection", align_corners=True)


def _pixelate_matrix(size: int, kept: float) -> Tensor:
    """Return the matrix that shrinks a line of pixels and magnifies it again, by boxes."""
    num_kept = max(int(size * kept), 1)
    return _box_matrix(num_kept, size) @ _box_matrix(size, num_kept)


def _box_matrix(num_pixels: int, num_boxes: int) -> Tensor:
    """Return the (num_boxes, num_pixels) means of the pixels whose centres lie in each box."""
    scale = num_pixels / num_boxes
    centres = (torch.arange(num_boxes).double() + 0.5) * scale
    offsets = torch.arange(num_pixels) + 0.5 - centres[:, None]
    # A box is never narrower than a pixel, so that magnifying finds the nearest one.
    half = 0.5 * max(scale, 1.0)
    is_inside = ((offsets > -half) & (offsets <= half)).double()
    return is_inside / is_inside.sum(1, keepdim=True)
