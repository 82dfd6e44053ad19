import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bayesify.models import VolumeEncoder, build_model


def test_volume_encoder_has_the_channels_of_the_paper():
    with torch.device("meta"):
        model = VolumeEncoder()
    assert [level.conv2.out_channels for level in model.levels] == [16, 32, 64, 128, 256]
    pairs = [(1, 16), (16, 32), (32, 64), (64, 128), (128, 256)]
    # Two 3x3x3 convolutions and two normalisations per level, then the linear layer.
    expected = sum(27 * (before + after) * after + 4 * after for before, after in pairs)
    expected += 256 * 2 + 2
    assert sum(parameter.numel() for parameter in model.parameters()) == expected


@pytest.mark.parametrize(
    ("num_volumes", "in_channels", "sides"),
    [(1, 1, (24, 24, 24)), (3, 2, (24, 30, 49)), (2, 1, (26, 32, 26))],
)
def test_volume_encoder_takes_volumes_of_several_sides(num_volumes, in_channels, sides):
    model = VolumeEncoder(3, in_channels, width=2).eval()
    assert model(torch.randn(num_volumes, in_channels, *sides)).shape == (num_volumes, 3)


def test_volume_encoder_takes_the_volumes_of_the_paper():
    with torch.device("meta"):
        model = VolumeEncoder().eval()
        assert model(torch.rand(2, 1, 105, 127, 105)).shape == (2, 2)


def test_volume_encoder_pools_between_its_levels():
    model = VolumeEncoder(width=2)
    sides = []
    for level in model.levels:
        level.register_forward_hook(
            lambda module, inputs, output: sides.append(tuple(output.shape[2:]))
        )
    model(torch.randn(2, 1, 26, 24, 48))
    assert sides == [(26, 24, 48), (8, 8, 16), (4, 4, 8), (2, 2, 4), (1, 1, 2)]


def test_volume_encoder_has_one_level_more_than_pools():
    # A list, as a recipe gives it.
    model = build_model("volume_encoder", width=2, pools=[2, 1])
    assert model(torch.randn(2, 1, 2, 2, 3)).shape == (2, 2)
    assert [level.conv1.out_channels for level in model.levels] == [2, 4, 8]
    assert len(VolumeEncoder(pools=()).levels) == 1


def test_volume_encoder_equals_the_formula():
    model, volumes = VolumeEncoder(width=2, pools=(2,)).eval(), torch.randn(2, 1, 4, 4, 4)
    features = volumes
    for index, level in enumerate(model.levels):
        features = F.max_pool3d(features, 2) if index else features
        for layer, norm in ((level.conv1, level.bn1), (level.conv2, level.bn2)):
            nn.init.normal_(norm.running_mean)
            features = F.relu(norm(F.conv3d(features, layer.weight, padding=1)))
    expected = features.mean((2, 3, 4)) @ model.linear.weight.T + model.linear.bias
    torch.testing.assert_close(model(volumes), expected)


@pytest.mark.parametrize(
    ("pools", "smallest", "shape"),
    [
        ((3, 2, 2, 2), 24, (2, 1, 24, 23, 24)),
        ((2, 2), 4, (2, 1, 3, 4, 4)),
        ((2, 2), 4, (1, 4, 4, 4)),
    ],
)
def test_volume_encoder_refuses_volumes_that_vanish(pools, smallest, shape):
    message = rf"volumes must have shape \(batch, .* sides of at least {smallest}, or pooling"
    with pytest.raises(ValueError, match=message):
        VolumeEncoder(width=2, pools=pools)(torch.zeros(shape))


def test_volume_encoder_runs_in_bfloat16():
    model, volumes = VolumeEncoder(width=4), torch.randn(4, 1, 24, 24, 24)
    expected = model(volumes)
    logits = model.to(torch.bfloat16)(volumes.to(torch.bfloat16))
    assert logits.dtype == torch.bfloat16
    # Eight bits of mantissa, through eleven layers.
    torch.testing.assert_close(logits.float(), expected, rtol=0.05, atol=0.05)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pools": (3, 0)}, r"pools\[1\] must be a positive integer, got 0"),
        ({"width": 0}, "width must be a positive integer, got 0"),
    ],
)
def test_volume_encoder_refuses_wrong_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        VolumeEncoder(**options)
