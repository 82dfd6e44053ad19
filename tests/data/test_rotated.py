"""Turned images: where a pixel goes, and what stays the same."""

import pytest
import torch

from bayesify.data import TensorData
from bayesify.data.rotated import rotated


def images(height: int = 9, width: int = 9) -> TensorData:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (3, 1, height, width), generator=generator, dtype=torch.uint8)
    return TensorData(pixels, torch.arange(3), lambda batch: batch.float() / 255)


def test_quarter_turns_move_every_pixel_to_its_place() -> None:
    data = images()
    for quarters in (1, 2, 3):
        turned = rotated(data, 90.0 * quarters).inputs
        assert torch.equal(turned, data.inputs.rot90(quarters, (-2, -1)))


def test_half_a_turn_of_an_oblong_image_keeps_its_proportions() -> None:
    data = images(6, 10)
    assert torch.equal(rotated(data, 180.0).inputs, data.inputs.flip(-2, -1))


def test_nothing_else_changes() -> None:
    data = images()
    turned = rotated(data, 0.0)
    assert torch.equal(turned.inputs, data.inputs)
    assert turned.inputs.dtype == torch.uint8
    assert turned.transform is data.transform
    assert torch.equal(turned.targets, data.targets)
    assert len(rotated(data.select(torch.arange(0)), 30.0)) == 0


def test_corners_are_dark() -> None:
    white = TensorData(torch.full((1, 1, 20, 20), 255, dtype=torch.uint8), torch.zeros(1))
    turned = rotated(white, 45.0).inputs[0, 0]
    assert turned[0, 0] == 0
    assert turned[10, 10] == 255


def test_what_is_no_image_is_refused() -> None:
    with pytest.raises(ValueError, match="rotated needs images"):
        rotated(TensorData(torch.zeros(2, 5), torch.zeros(2)), 10.0)
