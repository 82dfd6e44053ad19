import math

import numpy
import pytest
import torch
from scipy import ndimage

from bayesify.data.corruption_filter import filtered, padded, smoothed, streaked, zoomed

# The name SciPy has for each border.
MODES = {"edge": "nearest", "reflect": "mirror", "symmetric": "reflect"}


@pytest.mark.parametrize("border", MODES)
@pytest.mark.parametrize("std", [0.05, 0.4, 1.0, 6.4])
def test_smoothed_equals_scipy(border, std):
    images = torch.rand(2, 3, 9, 14, dtype=torch.float64)
    expected = ndimage.gaussian_filter(
        images.numpy(), (0, 0, std, std), mode=MODES[border], truncate=3.0
    )
    result = smoothed(images, std, border, truncate=3.0)
    torch.testing.assert_close(result, torch.from_numpy(expected), rtol=1e-12, atol=1e-12)


def test_smoothed_by_std_zero_changes_nothing():
    images = torch.rand(2, 3, 8, 8)
    assert torch.equal(smoothed(images, 0.0), images)


@pytest.mark.parametrize("border", MODES)
def test_filtered_equals_scipy(border):
    images = torch.rand(2, 1, 4, 7, dtype=torch.float64)
    kernel = torch.randn(5, 5, dtype=torch.float64)
    expected = ndimage.correlate(images.numpy(), kernel[None, None].numpy(), mode=MODES[border])
    result = filtered(images, kernel.tolist(), border)
    torch.testing.assert_close(result, torch.from_numpy(expected), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("border", MODES)
def test_padded_equals_numpy_also_where_the_border_is_wider_than_the_picture(border):
    images = torch.arange(2.0 * 3).view(1, 1, 2, 3)
    expected = numpy.pad(images.numpy(), ((0, 0), (0, 0), (5, 5), (5, 5)), mode=border)
    assert torch.equal(padded(images, 5, border), torch.from_numpy(expected))


@pytest.mark.parametrize(
    ("angle", "step"), [(0.0, (0, -1)), (-90.0, (1, 0)), (45.0, (-1, -1)), (-135.0, (1, 1))]
)
def test_streaked_draws_a_point_out_into_half_a_gaussian(angle, step):
    images = torch.zeros(2, 1, 41, 41)
    images[1, 0, 20, 20] = 1.0
    result = streaked(images, 3, 2.0, torch.tensor([0.0, angle]))
    weights = torch.tensor([math.exp(-0.5 * (distance / 2.0) ** 2) for distance in range(7)])
    weights /= weights.sum()
    expected = torch.zeros(41, 41)
    stride = 1.0 if 0 in step else math.sqrt(0.5)
    for distance, weight in enumerate(weights):
        # Half-way between two pixels the line takes the one behind.
        whole = math.ceil(distance * stride - 0.5)
        expected[20 + whole * step[0], 20 + whole * step[1]] += weight
    torch.testing.assert_close(result[1, 0], expected)
    assert not result[0].any()


def test_streaked_repeats_the_edge():
    images = torch.full((3, 3, 6, 5), 0.25)
    torch.testing.assert_close(streaked(images, 9, 2.5, torch.tensor([10.0, 80.0, -70.0])), images)


@pytest.mark.parametrize("factor", [1.0, 1.01, 1.1, 1.25, 1.75, 2.25])
def test_zoomed_is_the_middle_of_scipys_zoom(factor):
    image = torch.rand(32, 32, dtype=torch.float64)
    side = math.ceil(32 / factor)
    top = (32 - side) // 2
    large = ndimage.zoom(image[top : top + side, top : top + side].numpy(), factor, order=1)
    trim = (len(large) - 32) // 2
    expected = torch.from_numpy(large[trim : trim + 32, trim : trim + 32])
    torch.testing.assert_close(zoomed(image[None, None], factor)[0, 0], expected)
