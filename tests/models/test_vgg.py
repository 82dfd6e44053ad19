import pytest
import torch
from torch import nn

from bayesify.models import VGG, models, vgg_11, vgg_16

DEPTHS = (11, 13, 16, 19)
# The published ImageNet networks less their dense layers: 132,863,336 - 123,642,856, and so on.
PUBLISHED_CONVOLUTIONS = {11: 9_220_480, 13: 9_404_992, 16: 14_714_688, 19: 20_024_384}


@pytest.mark.parametrize("depth", DEPTHS)
def test_vgg_has_the_convolutions_of_the_published_network(depth):
    with torch.device("meta"):
        model = models[f"vgg_{depth}"](batch_norm=False)
    features = sum(parameter.numel() for parameter in model.features.parameters())
    assert features == PUBLISHED_CONVOLUTIONS[depth]
    assert sum(parameter.numel() for parameter in model.linear.parameters()) == 5_130
    # The depth of the name counts three dense layers.
    assert sum(isinstance(module, nn.Conv2d) for module in model.modules()) == depth - 3


@pytest.mark.parametrize("depth", DEPTHS)
def test_vgg_batch_norm_takes_the_place_of_every_bias(depth):
    with torch.device("meta"):
        model = models[f"vgg_{depth}"]()
    names = [key for key, _ in model.named_parameters()]
    assert not any(key.startswith("features.conv") and key.endswith("bias") for key in names)
    assert sum(isinstance(module, nn.BatchNorm2d) for module in model.modules()) == depth - 3
    channels = sum(module.out_channels for module in model.modules() if hasattr(module, "groups"))
    # A weight and a bias of the normalisation for each bias of a convolution.
    expected = PUBLISHED_CONVOLUTIONS[depth] + channels + 5_130
    assert sum(parameter.numel() for parameter in model.parameters()) == expected


def test_vgg_names_convolutions_by_stage_and_place():
    plain, normalised = (vgg_16(width=1, batch_norm=flag).features for flag in (False, True))
    names = [key for key, module in plain.named_children() if isinstance(module, nn.Conv2d)]
    assert names[:3] == ["conv1_1", "conv1_2", "conv2_1"]
    assert names[-1] == "conv5_3"
    assert {key for key, _ in normalised.named_children()} >= set(names)


@pytest.mark.parametrize("batch_norm", [True, False])
@pytest.mark.parametrize(
    ("num_images", "in_channels", "height", "width"),
    [(1, 3, 32, 32), (3, 1, 33, 47), (2, 3, 64, 64)],
)
def test_vgg_takes_any_image_of_32_pixels_or_more(
    num_images, in_channels, height, width, batch_norm
):
    model = vgg_11(7, in_channels, width=2, batch_norm=batch_norm).eval()
    assert model(torch.randn(num_images, in_channels, height, width)).shape == (num_images, 7)


def test_vgg_refuses_images_that_vanish():
    message = r"images must have shape .* sides of at least 32, .* got \(2, 3, 28, 28\); pad"
    with pytest.raises(ValueError, match=message):
        vgg_11(width=2)(torch.zeros(2, 3, 28, 28))


def test_vgg_dropout_keeps_the_names_of_the_weights():
    plain, dropped = vgg_11(width=2), vgg_11(width=2, dropout=0.5)
    dropped.load_state_dict(plain.state_dict(), strict=True)
    assert [module.p for module in dropped.modules() if isinstance(module, nn.Dropout)] == [0.5]
    assert not any(isinstance(module, nn.Dropout) for module in plain.modules())
    images = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(dropped.eval()(images), plain.eval()(images))


def test_vgg_without_batch_norm_starts_with_logits_that_keep_their_scale():
    # Sixteen layers at torch's own start would shrink the features below a thousandth.
    features = VGG(19, width=16, batch_norm=False).features(torch.randn(4, 3, 32, 32))
    assert 0.1 < features.square().mean().sqrt() < 10.0


def test_vgg_runs_in_bfloat16():
    model, images = vgg_11(width=4).eval(), torch.randn(2, 3, 32, 32)
    expected = model(images)
    logits = model.to(torch.bfloat16)(images.to(torch.bfloat16))
    assert logits.dtype == torch.bfloat16
    # Eight bits of mantissa, through nine layers.
    torch.testing.assert_close(logits.float(), expected, rtol=0.05, atol=0.05)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"depth": 12}, "depth must be one of 11, 13, 16, 19, got 12"),
        ({"in_channels": 0}, "in_channels must be a positive integer, got 0"),
        ({"dropout": -0.1}, r"dropout must lie in \[0, 1\), got -0.1"),
    ],
)
def test_vgg_refuses_wrong_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        VGG(**options)
