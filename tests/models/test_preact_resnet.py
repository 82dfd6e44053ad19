import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bayesify.models import models, preact_resnet_18, preact_resnet_50
from bayesify.models.preact_resnet import PreActBlock, PreActBottleneck

# Published ImageNet networks: all weights, those of the last layer, those of normalisation.
PUBLISHED = {
    18: (11_689_512, 513_000, 9_600),
    34: (21_797_672, 513_000, 17_024),
    50: (25_557_032, 2_049_000, 53_120),
    101: (44_549_160, 2_049_000, 105_344),
    152: (60_192_808, 2_049_000, 151_424),
}


def num_parameters(modules):
    return sum(parameter.numel() for module in modules for parameter in module.parameters())


@pytest.mark.parametrize("depth", PUBLISHED)
def test_preact_resnet_has_the_convolutions_of_the_network_it_rearranges(depth):
    with torch.device("meta"):
        model = models[f"preact_resnet_{depth}"]()
    every, last, normalisation = PUBLISHED[depth]
    convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    # The 7x7 stem gives way to one of 3x3.
    assert num_parameters(convolutions) == every - last - normalisation - 64 * 3 * (49 - 9)
    # Shortcuts with a projection are not layers of the name's depth; the linear layer is.
    num_shortcuts = sum("shortcut" in key for key, _ in model.named_parameters())
    assert len(convolutions) - num_shortcuts + 1 == depth


@pytest.mark.parametrize(("depth", "count"), [(18, 11_171_146), (50, 23_509_066)])
def test_preact_resnet_has_the_published_size_and_its_last_normalisation(depth, count):
    with torch.device("meta"):
        model = models[f"preact_resnet_{depth}"]()
    assert num_parameters([model]) == count + num_parameters([model.bn])


@pytest.mark.parametrize("build", [preact_resnet_18, preact_resnet_50])
@pytest.mark.parametrize(
    ("num_images", "in_channels", "height", "width"),
    [(1, 3, 32, 32), (3, 1, 28, 28), (2, 3, 17, 40), (2, 2, 1, 1)],
)
def test_preact_resnet_takes_images_of_any_size(build, num_images, in_channels, height, width):
    model = build(7, in_channels, width=2).eval()
    assert model(torch.randn(num_images, in_channels, height, width)).shape == (num_images, 7)


@pytest.mark.parametrize("build", [preact_resnet_18, preact_resnet_50])
def test_preact_resnet_halves_the_image_in_each_stage_but_the_first(build):
    model = build(width=2)
    shapes = []
    for name in ("conv1", "layer1", "layer2", "layer3", "layer4"):
        model.get_submodule(name).register_forward_hook(
            lambda module, inputs, output: shapes.append(tuple(output.shape[1:3]))
        )
    model(torch.randn(1, 3, 32, 32))
    expansion = 1 if build is preact_resnet_18 else 4
    channels = [2, *(2 * 2**stage * expansion for stage in range(4))]
    assert shapes == list(zip(channels, [32, 32, 16, 8, 4], strict=True))


@pytest.mark.parametrize(("block", "channels"), [(PreActBlock, 8), (PreActBottleneck, 2)])
def test_preact_block_leaves_the_identity_path_alone(block, channels):
    layer = block(8, channels, 1)
    assert layer.shortcut is None
    for key, parameter in layer.named_parameters():
        if key.startswith("conv"):
            nn.init.zeros_(parameter)
    features = torch.randn(2, 8, 5, 5)
    # Negative features too: no ReLU lies on the path.
    assert torch.equal(layer(features), features)


def test_preact_block_equals_the_formula_where_shapes_change():
    layer = PreActBlock(3, 4, 2).eval()
    with torch.no_grad():
        layer.bn1.running_mean.normal_(), layer.bn2.running_mean.normal_()
    features = torch.randn(2, 3, 6, 6)
    active = F.relu(layer.bn1(features))
    inner = F.relu(layer.bn2(F.conv2d(active, layer.conv1.weight, stride=2, padding=1)))
    expected = F.conv2d(active, layer.shortcut.weight, stride=2)
    expected = expected + F.conv2d(inner, layer.conv2.weight, padding=1)
    torch.testing.assert_close(layer(features), expected)


def test_preact_bottleneck_strides_in_its_3x3_convolution():
    layer = PreActBottleneck(3, 4, 2)
    assert [conv.stride for conv in (layer.conv1, layer.conv2, layer.conv3)] == [
        (1, 1),
        (2, 2),
        (1, 1),
    ]
    assert [conv.kernel_size[0] for conv in (layer.conv1, layer.conv2, layer.conv3)] == [1, 3, 1]
    assert layer(torch.randn(2, 3, 6, 6)).shape == (2, 16, 3, 3)


def test_preact_resnet_runs_in_bfloat16():
    model, images = preact_resnet_18(width=4), torch.randn(4, 3, 32, 32)
    expected = model(images)
    logits = model.to(torch.bfloat16)(images.to(torch.bfloat16))
    assert logits.dtype == torch.bfloat16
    # Eight bits of mantissa, through eighteen layers.
    torch.testing.assert_close(logits.float(), expected, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("option", ["num_classes", "in_channels", "width"])
def test_preact_resnet_refuses_wrong_sizes(option):
    with pytest.raises(ValueError, match=f"{option} must be a positive integer, got 0"):
        preact_resnet_18(**{option: 0})
