import pytest
import torch
from torch import nn

from bayesify.models import DenseNet, densenet_121, models
from bayesify.models.densenet import DenseLayer, Transition

# Published ImageNet networks: all weights, growth rate, channels that reach the last layer.
PUBLISHED = {
    121: (7_978_856, 32, 1024),
    161: (28_681_000, 48, 2208),
    169: (14_149_480, 32, 1664),
    201: (20_013_928, 32, 1920),
}


@pytest.mark.parametrize("depth", PUBLISHED)
def test_densenet_has_the_published_size_with_another_stem(depth):
    with torch.device("meta"):
        model = models[f"densenet_{depth}"]()
    every, growth_rate, channels = PUBLISHED[depth]
    assert model.linear.in_features == channels
    # A 3x3 stem for a 7x7 one and its normalisation, and 10 classes for 1,000.
    expected = every - 2 * growth_rate * (3 * (49 - 9) + 2) - 990 * (channels + 1)
    assert sum(parameter.numel() for parameter in model.parameters()) == expected
    # The depth of the name counts convolutions and the linear layer.
    assert sum(isinstance(module, nn.Conv2d) for module in model.modules()) + 1 == depth


def test_densenet_121_has_the_size_known_for_cifar():
    with torch.device("meta"):
        model = densenet_121()
    assert sum(parameter.numel() for parameter in model.parameters()) == 6_956_298


@pytest.mark.parametrize(
    ("num_images", "in_channels", "height", "width"),
    [(1, 3, 32, 32), (3, 1, 28, 28), (2, 3, 17, 40), (2, 2, 8, 8)],
)
def test_densenet_takes_any_image_of_8_pixels_or_more(num_images, in_channels, height, width):
    model = DenseNet((1, 2, 2, 1), 7, in_channels, growth_rate=2).eval()
    assert model(torch.randn(num_images, in_channels, height, width)).shape == (num_images, 7)


def test_densenet_refuses_images_that_vanish():
    message = r"images must have shape .* sides of at least 8, .* got \(2, 3, 7, 7\); pad"
    with pytest.raises(ValueError, match=message):
        DenseNet((1, 1, 1, 1), growth_rate=2)(torch.zeros(2, 3, 7, 7))


def test_dense_layer_keeps_what_came_in_and_appends():
    layer = DenseLayer(5, 3, dropout=0.0)
    features = torch.randn(2, 5, 4, 4)
    result = layer(features)
    assert result.shape == (2, 8, 4, 4)
    assert torch.equal(result[:, :5], features)
    assert layer.conv1.weight.shape == (12, 5, 1, 1)
    assert layer.conv2.weight.shape == (3, 12, 3, 3)


def test_transition_halves_channels_and_image():
    assert Transition(7, dropout=0.0)(torch.randn(2, 7, 6, 9)).shape == (2, 3, 3, 4)


def test_densenet_dropout_follows_every_convolution_but_the_stem():
    plain, dropped = (DenseNet((1, 2), growth_rate=2, dropout=dropout) for dropout in (0.0, 0.2))
    dropped.load_state_dict(plain.state_dict(), strict=True)
    probabilities = [module.p for module in dropped.modules() if isinstance(module, nn.Dropout)]
    assert probabilities == [0.2] * (2 * 3 + 1)
    assert not any(isinstance(module, nn.Dropout) for module in plain.modules())
    images = torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(dropped.eval()(images), plain.eval()(images))


def test_densenet_runs_in_bfloat16():
    model, images = DenseNet((2, 2, 2, 2), growth_rate=4), torch.randn(4, 3, 32, 32)
    expected = model(images)
    logits = model.to(torch.bfloat16)(images.to(torch.bfloat16))
    assert logits.dtype == torch.bfloat16
    # Eight bits of mantissa, through twenty layers.
    torch.testing.assert_close(logits.float(), expected, rtol=0.05, atol=0.05)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"growth_rate": 0}, "growth_rate must be a positive integer, got 0"),
        ({"num_classes": 1.5}, "num_classes must be a positive integer, got 1.5"),
        ({"dropout": 1.0}, r"dropout must lie in \[0, 1\), got 1.0"),
    ],
)
def test_densenet_refuses_wrong_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        densenet_121(**options)
