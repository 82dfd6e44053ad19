import pytest
import torch
from torch import nn

from bayesify.models import LeNet5, lenet_300_100


def num_parameters(model):
    return sum(parameter.numel() for parameter in model.parameters())


def test_lenet_300_100_has_the_published_size():
    # 784*300 + 300*100 + 100*10 weights and 300 + 100 + 10 biases.
    assert num_parameters(lenet_300_100()) == 266_200 + 410


def test_lenet_5_has_the_size_of_the_reference_model():
    # Caffe's: 500 + 25,000 + 400,000 + 5,000 weights and 20 + 50 + 500 + 10 biases.
    assert num_parameters(LeNet5()) == 430_500 + 580


@pytest.mark.parametrize(("in_channels", "image_size"), [(1, 28), (3, 32), (1, 16), (2, 33)])
def test_lenet_5_takes_its_image_size(in_channels, image_size):
    model = LeNet5(in_channels, num_classes=7, image_size=image_size)
    assert model(torch.randn(2, in_channels, image_size, image_size)).shape == (2, 7)


def test_lenet_5_refuses_images_that_vanish():
    with pytest.raises(ValueError, match=r"image_size must be at least 16 .* got 8; use an mlp"):
        LeNet5(image_size=8)


def test_lenet_5_dropout_keeps_the_names_of_the_weights():
    plain, dropped = LeNet5(), LeNet5(dropout=0.3)
    dropped.load_state_dict(plain.state_dict(), strict=True)
    probabilities = [module.p for module in dropped.modules() if isinstance(module, nn.Dropout)]
    assert probabilities == [0.3, 0.3]
    assert not any(isinstance(module, nn.Dropout) for module in plain.modules())
    images = torch.randn(2, 1, 28, 28)
    torch.testing.assert_close(dropped.eval()(images), plain(images))


def test_lenet_5_drops_the_inputs_of_both_dense_layers():
    model = LeNet5(dropout=0.5)
    widths = []
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.register_forward_hook(
                lambda module, inputs, output: widths.append(output.shape[1])
            )
    model(torch.randn(2, 1, 28, 28))
    assert widths == [800, 500]
