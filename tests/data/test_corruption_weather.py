import colorsys

import pytest
import torch

from bayesify.data import corruptions


def corrupt(name, images, severity, seed=0):
    return corruptions[name](images, severity, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("severity", range(1, 6))
def test_brightness_equals_the_change_in_hsv(severity):
    images = torch.rand(1, 3, 6, 6)
    images[0, :, 0, :3] = torch.tensor([0.0, 0.5, 1.0])  # black, grey and white
    result = corrupt("brightness", images, severity)
    for pixel, changed in zip(images.flatten(2)[0].T, result.flatten(2)[0].T, strict=True):
        hue, saturation, value = colorsys.rgb_to_hsv(*pixel.tolist())
        value = min(value + (0.05, 0.10, 0.15, 0.20, 0.30)[severity - 1], 1.0)
        expected = torch.tensor(colorsys.hsv_to_rgb(hue, saturation, value))
        torch.testing.assert_close(changed, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("severity", range(1, 6))
def test_fog_keeps_the_highest_value_and_reaches_it_on_flat_images(severity):
    thickness = (0.2, 0.5, 0.75, 1.0, 1.5)[severity - 1]
    images = torch.full((5, 3, 32, 32), 0.6)
    result = corrupt("fog", images, severity)
    # The plasma reaches from 0 to 1: the clearest pixel is only scaled, the foggiest is as before.
    torch.testing.assert_close(result.amax((1, 2, 3)), torch.full((5,), 0.6))
    clearest = 0.6 * 0.6 / (0.6 + thickness)
    torch.testing.assert_close(result.amin((1, 2, 3)), torch.full((5,), clearest))
    assert torch.equal(result[:, 0], result[:, 2])


@pytest.mark.parametrize("severity", range(1, 6))
def test_frost_has_the_published_weights(severity):
    weights = ((1.0, 0.2), (1.0, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))
    image_weight, frost_weight = weights[severity - 1]
    level = 0.5
    added = corrupt("frost", torch.full((20, 3, 32, 32), level), severity) - image_weight * level
    assert added.min() >= -1e-6
    assert added.max() <= frost_weight + 1e-6
    # Ice is bluish, thick in places, thin in others, and somewhere in every picture white.
    crystals = added / frost_weight
    assert (crystals[:, 2] >= crystals[:, 0]).all()
    assert crystals[:, 2].std() > 0.1
    assert crystals[:, 2].amax((1, 2)).min() > 0.9


@pytest.mark.parametrize("severity", range(1, 6))
def test_snow_only_brightens_and_is_alike_from_both_sides(severity):
    images = torch.full((20, 3, 32, 32), 0.2)
    result = corrupt("snow", images, severity)
    # Without a flake: the picture and its white version, 1.5 times the grey plus one half.
    image_weight = (0.95, 0.90, 0.90, 0.85, 0.80)[severity - 1]
    bare = image_weight * 0.2 + (1.0 - image_weight) * 0.8
    assert result.min() >= bare - 1e-6
    torch.testing.assert_close(result, result.flip(2, 3))
    assert result.max() > bare + 0.1


def test_snow_falls_in_streaks_nearer_to_upright_than_to_level():
    result = corrupt("snow", torch.zeros(200, 1, 32, 32), 4)
    downwards, sideways = result.diff(dim=2).abs().mean(), result.diff(dim=3).abs().mean()
    assert downwards < 0.8 * sideways
