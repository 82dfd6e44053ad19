"""Images of one set in the shape of another: no pixel is made up, and none is lost."""

import pytest
import torch

from bayesify.data import CropAndFlip, Normalise, TensorData
from bayesify.data.fitted import fitted


def images(*shape: int, num: int = 4) -> TensorData:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(1, 256, (num, *shape), dtype=torch.uint8, generator=generator)
    return TensorData(pixels, torch.arange(num), Normalise((0.5,), (0.2,)))


def test_grey_becomes_colour_of_equal_channels():
    data = images(1, 6, 6)
    found = fitted(data, (3, 6, 6))
    assert found.inputs.shape == (4, 3, 6, 6)
    assert found.inputs.dtype == torch.uint8
    for channel in range(3):
        assert torch.equal(found.inputs[:, channel], data.inputs[:, 0])


def test_channels_are_no_views_of_each_other():
    found = fitted(images(1, 6, 6), (3, 6, 6))
    found.inputs[0, 0, 0, 0] = 0
    assert found.inputs[0, 1, 0, 0] > 0


@pytest.mark.parametrize(
    ("own", "wanted", "above", "beside"),
    [
        ((1, 28, 28), (3, 32, 32), 2, 2),
        ((3, 5, 8), (3, 8, 9), 1, 0),  # three rows and one column: the odd ones stand last
        ((1, 4, 4), (1, 4, 7), 0, 1),
        ((2, 3, 3), (2, 5, 3), 1, 0),
    ],
)
def test_a_dark_frame_stands_around_the_middle(own, wanted, above, beside):
    data = images(*own)
    found = fitted(data, wanted)
    assert found.inputs.shape[1:] == wanted
    rows, columns = slice(above, above + own[1]), slice(beside, beside + own[2])
    middle = found.inputs[:, :, rows, columns]
    assert torch.equal(middle, data.inputs.expand(-1, wanted[0], -1, -1))
    # No pixel of these images is 0: whatever else there is lies in the frame.
    assert int((found.inputs > 0).sum()) == middle.numel()


def test_images_of_that_shape_are_returned_as_they_are():
    data = images(3, 8, 8)
    assert fitted(data, [3, 8, 8]) is data
    texts = TensorData(torch.zeros(2, 7), torch.zeros(2))
    assert fitted(texts, (7,)) is texts


def test_targets_transform_and_augmentation_are_kept():
    data = images(1, 6, 6).with_augmentation(CropAndFlip())
    found = fitted(data, (3, 8, 8))
    assert torch.equal(found.targets, data.targets)
    assert found.transform is data.transform
    assert found.augmentation is data.augmentation


def test_the_networks_own_transform_reads_them():
    colour = Normalise((0.5, 0.4, 0.3), (0.2, 0.2, 0.1))
    found = fitted(images(1, 6, 6), (3, 8, 8)).with_transform(colour)
    inputs, _ = found[0]
    assert inputs.shape == (3, 8, 8)
    # The frame is black, not the mean.
    assert inputs[:, 0, 0].tolist() == pytest.approx([-2.5, -2.0, -3.0])


def test_pixels_keep_their_type_and_there_may_be_none():
    floats = TensorData(torch.rand(2, 1, 3, 3), torch.zeros(2))
    assert fitted(floats, (1, 4, 4)).inputs.dtype == torch.float32
    assert fitted(images(1, 3, 3, num=0), (3, 4, 4)).inputs.shape == (0, 3, 4, 4)


@pytest.mark.parametrize(
    ("own", "wanted", "message"),
    [
        ((3, 8, 8), (1, 8, 8), r"grey or with as many channels .* to be brought to \(1, 8, 8\)"),
        ((2, 8, 8), (3, 8, 8), r"got \(2, 8, 8\)"),
        ((64,), (3, 8, 8), r"images of \(channels, height, width\).*got \(64,\)"),
        ((1, 8, 8), (64,), r"brought to \(64,\), got \(1, 8, 8\)"),
        ((1, 9, 8), (3, 8, 8), r"no larger than shape \(3, 8, 8\), got \(1, 9, 8\): crop or scale"),
        ((1, 8, 9), (3, 8, 8), r"no larger than shape \(3, 8, 8\), got \(1, 8, 9\)"),
    ],
)
def test_what_cannot_be_fitted_is_refused(own, wanted, message):
    with pytest.raises(ValueError, match=message):
        fitted(images(*own), wanted)
