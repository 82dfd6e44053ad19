import pytest
import torch
from torch import nn

from bayesify.models.convolution import check_inputs, convolution, draw_for_relu, initialise


@pytest.mark.parametrize("kernel_size", [1, 3, 5])
def test_convolution_keeps_the_size_of_an_image_at_stride_one(kernel_size):
    images = torch.randn(2, 3, 7, 8)
    assert convolution(3, 4, kernel_size)(images).shape == (2, 4, 7, 8)
    assert convolution(3, 4, kernel_size, stride=2)(images).shape == (2, 4, 4, 4)
    assert convolution(3, 4, kernel_size).bias is None


@pytest.mark.parametrize(
    ("layer", "num_inputs"),
    [
        (nn.Conv2d(40, 50, 3), 40 * 9),
        (nn.Conv3d(20, 30, 3), 20 * 27),
        (nn.Linear(200, 300), 200),
    ],
)
def test_draw_for_relu_has_a_variance_of_two_over_the_inputs(layer, num_inputs):
    draw_for_relu(layer)
    variance = layer.weight.square().mean().item()
    # Five standard errors of a variance.
    tolerance = 5 * (2 / layer.weight.numel()) ** 0.5
    assert variance == pytest.approx(2 / num_inputs, rel=tolerance)
    assert layer.bias.count_nonzero() == 0


def test_initialise_passes_over_all_but_convolutions():
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Linear(3, 4))
    before = {key: value.clone() for key, value in model.state_dict().items()}
    model.apply(initialise)
    changed = {key for key, value in model.state_dict().items() if not value.equal(before[key])}
    assert changed == {"0.weight", "0.bias"}


@pytest.mark.parametrize(
    "shape", [(2, 3, 7, 8), (2, 3, 8, 7), (2, 3, 8), (3, 8, 8), (2, 1, 8, 8, 8), (2, 3)]
)
def test_check_inputs_names_what_it_wants_and_what_came(shape):
    message = r"images must have shape \(batch, channels, side, side\) with sides of at least 8"
    with pytest.raises(ValueError, match=message) as caught:
        check_inputs("images", torch.zeros(shape), num_dimensions=2, smallest=8)
    assert f"got {shape}; pad or resize them" in str(caught.value)


def test_check_inputs_passes_an_empty_batch_of_the_smallest_images():
    check_inputs("images", torch.zeros(0, 3, 8, 8), num_dimensions=2, smallest=8)
