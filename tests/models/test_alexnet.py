import pytest
import torch
from torch import nn

from bayesify.models import AlexNet


def test_alexnet_has_the_size_of_the_cifar_form():
    with torch.device("meta"):
        model = AlexNet()
    convolutions = sum(
        parameter.numel() for key, parameter in model.named_parameters() if key.startswith("conv")
    )
    # 64-192-384-256-256 channels of 3x3 weights, and a bias for each.
    weights = 9 * (3 * 64 + 64 * 192 + 192 * 384 + 384 * 256 + 256 * 256)
    assert convolutions == weights + 64 + 192 + 384 + 256 + 256
    assert sum(parameter.numel() for parameter in model.parameters()) == 23_272_266


@pytest.mark.parametrize(
    ("num_images", "in_channels", "image_size"),
    [(1, 3, 32), (2, 1, 28), (3, 3, 15), (2, 2, 33), (1, 3, 64)],
)
def test_alexnet_takes_its_image_size(num_images, in_channels, image_size):
    model = AlexNet(7, in_channels, image_size, width=2)
    assert model(torch.randn(num_images, in_channels, image_size, image_size)).shape == (
        num_images,
        7,
    )


def test_alexnet_drops_the_inputs_of_both_hidden_dense_layers():
    plain, dropped = AlexNet(width=2), AlexNet(width=2, dropout=0.5)
    dropped.load_state_dict(plain.state_dict(), strict=True)
    assert not any(isinstance(module, nn.Dropout) for module in plain.modules())
    widths = []
    for module in dropped.modules():
        if isinstance(module, nn.Dropout):
            module.register_forward_hook(
                lambda module, inputs, output: widths.append(output.shape[1])
            )
    images = torch.randn(2, 3, 32, 32)
    dropped(images)
    assert widths == [8 * 4, 128]
    torch.testing.assert_close(dropped.eval()(images), plain(images))


def test_alexnet_starts_with_features_that_keep_their_scale():
    model = AlexNet(width=16)
    scales = []
    model.fc2.register_forward_hook(
        lambda module, inputs, output: scales.append(output.square().mean().sqrt().item())
    )
    model(torch.randn(8, 3, 32, 32))
    # Seven layers at torch's own start would shrink them below a hundredth; the three poolings
    # enlarge them somewhat.
    assert 0.1 < scales[0] < 10.0


def test_alexnet_runs_in_bfloat16():
    model, images = AlexNet(width=4), torch.randn(2, 3, 32, 32)
    expected = model(images)
    logits = model.to(torch.bfloat16)(images.to(torch.bfloat16))
    assert logits.dtype == torch.bfloat16
    # Eight bits of mantissa, through eight layers.
    torch.testing.assert_close(logits.float(), expected, rtol=0.05, atol=0.05)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image_size": 14}, r"image_size must be at least 15 .* got 14; use lenet_5"),
        ({"width": 0}, "width must be a positive integer, got 0"),
        ({"num_classes": 0}, "num_classes must be a positive integer, got 0"),
        ({"dropout": 1.0}, r"dropout must lie in \[0, 1\), got 1.0"),
    ],
)
def test_alexnet_refuses_wrong_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        AlexNet(**options)
