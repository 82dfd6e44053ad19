import math

import numpy
import pytest
import torch
from scipy import ndimage

from bayesify.data import corruptions


def corrupt(name, images, severity, seed=0):
    return corruptions[name](images, severity, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("severity", range(1, 6))
def test_gaussian_blur_equals_scipy(severity):
    std = (0.4, 0.6, 0.7, 0.8, 1.0)[severity - 1]
    images = torch.rand(3, 3, 32, 32)
    expected = ndimage.gaussian_filter(images.double().numpy(), (0, 0, std, std), mode="nearest")
    result = corrupt("gaussian_blur", images, severity)
    torch.testing.assert_close(result.double(), torch.from_numpy(expected), rtol=0, atol=1e-6)


@pytest.mark.parametrize("severity", range(1, 6))
def test_defocus_blur_equals_scipy_with_a_softened_disk(severity):
    radii, stds = (0.3, 0.4, 0.5, 1.0, 1.5), (0.4, 0.5, 0.6, 0.2, 0.1)
    radius, std = radii[severity - 1], stds[severity - 1]
    line = numpy.arange(-8, 9)
    disk = (line[:, None] ** 2 + line**2 <= radius**2).astype(float)
    rim = numpy.exp(-0.5 * (numpy.arange(-1, 2) / std) ** 2)
    rim = numpy.outer(rim, rim) / rim.sum() ** 2
    kernel = ndimage.convolve(disk / disk.sum(), rim)
    images = torch.rand(2, 3, 32, 32)
    expected = ndimage.correlate(images.double().numpy(), kernel[None, None], mode="mirror")
    result = corrupt("defocus_blur", images, severity)
    torch.testing.assert_close(result.double(), torch.from_numpy(expected), rtol=0, atol=1e-6)


def test_glass_blur_shows_each_pixel_or_a_neighbour_to_its_upper_left():
    # Every pixel has its own value, so that where one came from can be read off. At severity 1
    # the smoothing is narrower than a pixel.
    num_images, side = 50, 32
    pixels = torch.arange(side * side).float().view(1, 1, side, side) / (side * side)
    images = pixels.expand(num_images, 3, -1, -1)
    result = corrupt("glass_blur", images, 1)
    torch.testing.assert_close(result[:, 0], result[:, 2], rtol=0, atol=0)
    back = ((pixels - result[:, :1]) * side * side).round()
    assert not back[..., :2, :].any()
    assert not back[..., :2].any()
    inner = back[..., 2:, 2:]
    num_pixels = inner.numel()
    for distance in (0, 1, side, side + 1):
        fraction = (inner == distance).double().mean()
        assert abs(fraction - 0.25) < 4 * math.sqrt(0.25 * 0.75 / num_pixels)
    assert set(inner.unique().tolist()) == {0.0, 1.0, side, side + 1.0}


def test_glass_blur_of_two_rounds_reaches_two_pixels():
    side = 16
    images = torch.zeros(20, 1, side, side)
    images[..., 8, 8] = 1.0
    reach = corrupt("glass_blur", images, 4).amax((0, 1)) > 0.1
    rows, columns = reach.nonzero().T
    assert (int(rows.min()), int(rows.max())) == (8, 10)
    assert (int(columns.min()), int(columns.max())) == (8, 10)


def test_motion_blur_is_within_45_degrees_of_level():
    images = torch.zeros(200, 1, 33, 33)
    images[..., 16, 16] = 1.0
    result = corrupt("motion_blur", images, 5)
    torch.testing.assert_close(result.sum((1, 2, 3)), torch.ones(200))
    offsets = torch.arange(33.0) - 16.0
    left = -(result.sum((1, 2)) * offsets).sum(1)
    up = -(result.sum((1, 3)) * offsets).sum(1)
    slopes = torch.rad2deg(torch.atan2(up, left))
    # Whole pixels: a point on the line is off by half a pixel at most, the mean by far less.
    assert -47.0 < slopes.min() < -40.0
    assert 40.0 < slopes.max() < 47.0


def test_zoom_blur_keeps_flat_images():
    flat = torch.full((1, 3, 32, 32), 0.3)
    torch.testing.assert_close(corrupt("zoom_blur", flat, 5), flat)


@pytest.mark.parametrize("severity", range(1, 6))
def test_zoom_blur_averages_as_many_zooms_as_published(severity):
    limit = (1.06, 1.11, 1.16, 1.21, 1.26)[severity - 1]
    factors = numpy.arange(1, limit, 0.01)
    image = torch.rand(32, 32)
    total = image.double().numpy().copy()
    for factor in factors:
        side = math.ceil(32 / factor)
        top = (32 - side) // 2
        middle = image[top : top + side, top : top + side].double().numpy()
        large = ndimage.zoom(middle, factor, order=1)
        trim = (len(large) - 32) // 2
        total += large[trim : trim + 32, trim : trim + 32]
    expected = torch.from_numpy(total / (len(factors) + 1))
    result = corrupt("zoom_blur", image[None, None], severity)[0, 0].double()
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-6)
