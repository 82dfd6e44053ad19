import colorsys

import numpy
import pytest
import torch
from PIL import Image

from bayesify.data import corruptions


def corrupt(name, images, severity, seed=0):
    return corruptions[name](images, severity, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("severity", range(1, 6))
def test_contrast_keeps_the_mean_and_scales_the_deviation(severity):
    images = 0.2 + 0.6 * torch.rand(3, 3, 8, 8)
    result = corrupt("contrast", images, severity)
    torch.testing.assert_close(result.mean((2, 3)), images.mean((2, 3)))
    factor = (0.75, 0.5, 0.4, 0.3, 0.15)[severity - 1]
    torch.testing.assert_close(result.std((2, 3)), factor * images.std((2, 3)))


@pytest.mark.parametrize("severity", range(1, 6))
def test_saturate_equals_the_change_in_hsv(severity):
    factor, summand = ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2))[severity - 1]
    images = torch.rand(1, 3, 6, 6)
    images[0, :, 0, :3] = torch.tensor([0.0, 0.5, 1.0])  # black, grey and white
    result = corrupt("saturate", images, severity)
    for pixel, changed in zip(images.flatten(2)[0].T, result.flatten(2)[0].T, strict=True):
        hue, saturation, value = colorsys.rgb_to_hsv(*pixel.tolist())
        saturation = min(saturation * factor + summand, 1.0)
        expected = torch.tensor(colorsys.hsv_to_rgb(hue, saturation, value))
        torch.testing.assert_close(changed, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("severity", range(1, 6))
@pytest.mark.parametrize("side", [28, 32])
def test_pixelate_equals_pillow_with_boxes(severity, side):
    image = torch.randint(0, 256, (3, side, side), dtype=torch.uint8)
    num_kept = int(side * (0.95, 0.9, 0.85, 0.75, 0.65)[severity - 1])
    pillow = Image.fromarray(image.permute(1, 2, 0).numpy())
    pillow = pillow.resize((num_kept,) * 2, Image.Resampling.BOX)
    pillow = pillow.resize((side,) * 2, Image.Resampling.BOX)
    expected = torch.from_numpy(numpy.array(pillow)).permute(2, 0, 1).double()
    result = 255.0 * corrupt("pixelate", image[None] / 255.0, severity)[0].double()
    # Pillow rounds to whole levels after the rows and again after the columns.
    assert float((result - expected).abs().max()) <= 1.0 + 1e-4


def fetched_positions(severity, num_images=64, side=32):
    """Return where each pixel came from, in pixels: (images, 2, side, side)."""
    rows, columns = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    maps = torch.stack((rows, columns)).float() / (side - 1)
    images = maps.expand(num_images, -1, -1, -1)
    images = torch.cat((images, torch.zeros(num_images, 1, side, side)), 1)
    return (side - 1) * corrupt("elastic_transform", images, severity)[:, :2]


def affine_fit(positions, margin=12):
    """Return the closest affine map of each image's middle, and how far it is off (RMS)."""
    middle = positions[..., margin:-margin, margin:-margin].double()
    side = middle.shape[-1]
    grid = torch.arange(margin, margin + side).double()
    rows, columns = torch.meshgrid(grid, grid, indexing="ij")
    basis = torch.stack((rows, columns, torch.ones_like(rows)), -1).view(-1, 3)
    values = middle.flatten(2).transpose(1, 2)
    solution = torch.linalg.lstsq(basis.expand(len(values), -1, -1), values).solution
    return solution, (basis @ solution - values).square().mean().sqrt().item()


def test_elastic_transform_stretches_more_with_severity():
    stretched = [affine_fit(fetched_positions(severity))[1] for severity in range(1, 6)]
    # Severity 1 is an affine map alone.
    assert stretched[0] < 1e-4
    assert stretched == sorted(stretched)
    assert stretched[-1] > 0.3


def test_elastic_transform_moves_the_corners_of_its_square_within_reach():
    backwards, _ = affine_fit(fetched_positions(1))
    last = torch.tensor([0.0, 0.0, 1.0]).double().expand(len(backwards), 1, 3).mT
    forwards = torch.linalg.inv(torch.cat((backwards, last), 2))
    # The middle plus and minus a third of the side, as rows and columns; the third corner has
    # them the other way round from the fourth, which is free.
    corners = torch.tensor([[26.0, 26.0, 1.0], [6.0, 26.0, 1.0], [6.0, 6.0, 1.0]]).double()
    moves = (corners @ forwards - corners)[..., :2]
    reach, num_moves = 0.08 * 32, moves.numel()
    assert moves.abs().max() < reach + 1e-3
    # Uniform within reach: its std is reach / sqrt(3).
    assert abs(moves.mean()) < 4 * reach / (3 * num_moves) ** 0.5
    assert abs(moves.abs().mean() - reach / 2) < 4 * reach / (12 * num_moves) ** 0.5


def test_elastic_transform_keeps_flat_images():
    flat = torch.full((3, 3, 32, 32), 0.4)
    for severity in range(1, 6):
        torch.testing.assert_close(corrupt("elastic_transform", flat, severity), flat)
