import math

import pytest
import torch

from bayesify.data import corruptions

LEVEL = 0.5
SHAPE = (8, 3, 64, 64)
NUM_VALUES = math.prod(SHAPE)


def noise_on_grey(name, severity):
    images = torch.full(SHAPE, LEVEL)
    result = corruptions[name](images, severity, torch.Generator().manual_seed(severity))
    return result.double() - LEVEL


@pytest.mark.parametrize(
    ("name", "stds"),
    [
        ("gaussian_noise", (0.04, 0.06, 0.08, 0.09, 0.10)),
        ("speckle_noise", tuple(LEVEL * std for std in (0.06, 0.10, 0.12, 0.16, 0.20))),
        ("shot_noise", tuple(math.sqrt(LEVEL / photons) for photons in (500, 250, 100, 75, 50))),
    ],
)
@pytest.mark.parametrize("severity", range(1, 6))
def test_noise_has_mean_zero_and_the_std_of_its_severity(name, stds, severity):
    noise, std = noise_on_grey(name, severity), stds[severity - 1]
    assert abs(noise.mean()) < 4 * std / math.sqrt(NUM_VALUES)
    # A Poisson draw of mean m has the excess kurtosis 1/m, here at most 1/25.
    std_error = std * math.sqrt((2.0 + 1.0 / 25.0) / (4.0 * NUM_VALUES))
    assert abs(noise.std() - std) < 4 * std_error


@pytest.mark.parametrize("severity", range(1, 6))
def test_impulse_noise_hits_its_fraction_half_black_half_white(severity):
    fraction = (0.01, 0.02, 0.03, 0.05, 0.07)[severity - 1]
    noise = noise_on_grey("impulse_noise", severity)
    assert set(noise.unique().tolist()) == {-LEVEL, 0.0, 1.0 - LEVEL}
    for hit in (noise < 0.0, noise > 0.0):
        half = fraction / 2.0
        std_error = math.sqrt(half * (1.0 - half) / NUM_VALUES)
        assert abs(hit.double().mean() - half) < 4 * std_error


def test_shot_and_speckle_noise_leave_black_black():
    images = torch.zeros(2, 3, 8, 8)
    for name in ("shot_noise", "speckle_noise"):
        assert torch.equal(corruptions[name](images, 5, torch.Generator()), images)


def test_shot_noise_counts_whole_photons():
    photons = 50 * corruptions["shot_noise"](torch.rand(2, 3, 8, 8), 5, torch.Generator())
    torch.testing.assert_close(photons, photons.round(), rtol=0, atol=1e-5)
