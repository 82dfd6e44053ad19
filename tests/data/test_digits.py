import pytest
import torch

from bayesify.data import load_dataset


@pytest.fixture(scope="module")
def data():
    return load_dataset("digits")


def test_digits_has_the_fixed_sizes(data):
    assert data.train.inputs.shape == (1437, 1, 8, 8)
    assert data.test.inputs.shape == (360, 1, 8, 8)
    assert data.num_classes == 10


def test_digits_is_split_in_the_same_way_each_time(data):
    assert torch.equal(load_dataset("digits").test.inputs, data.test.inputs)
    # The split of seed 0: a change of it would make published numbers incomparable.
    assert data.test.targets[:12].tolist() == [0, 4, 1, 2, 6, 7, 5, 6, 9, 1, 7, 5]


def test_digits_has_every_image_of_the_source_once(data):
    from sklearn.datasets import load_digits

    source = torch.as_tensor(load_digits().data, dtype=torch.float32).sort(dim=0).values
    images = torch.cat([data.train.inputs, data.test.inputs]).flatten(1) * 16
    assert torch.equal(images.sort(dim=0).values, source)


def test_digits_labels_match_the_images(data):
    # The mean image of a class tells nine digits in ten; mixed-up labels would give one in ten.
    train, test = data.train.inputs.flatten(1), data.test.inputs.flatten(1)
    centres = torch.stack([train[data.train.targets == label].mean(0) for label in range(10)])
    accuracy = (torch.cdist(test, centres).argmin(1) == data.test.targets).double().mean()
    assert accuracy > 0.85


def test_digits_is_normalised_by_its_training_part(data):
    inputs, _ = data.train.__getitems__(range(len(data.train)))
    assert inputs.mean().item() == pytest.approx(0.0, abs=1e-5)
    assert inputs.std().item() == pytest.approx(1.0, abs=1e-5)


def test_each_pixel_of_a_digit_is_the_digit_paper_or_neither() -> None:
    whole, pixels = load_dataset("digits"), load_dataset("digit_pixels")
    assert pixels.num_classes == 11
    assert pixels.classes is not None
    assert pixels.classes[10] == "paper"
    for part, per_pixel in ((whole.train, pixels.train), (whole.test, pixels.test)):
        assert torch.equal(part.inputs, per_pixel.inputs)
        assert per_pixel.targets.shape == (len(part), 8, 8)
        brightness = part.inputs[:, 0]
        label = part.targets[:, None, None].expand_as(brightness)
        is_ink, is_paper = brightness >= 0.5, brightness <= 0.25
        assert torch.equal(per_pixel.targets[is_ink], label[is_ink])
        assert (per_pixel.targets[is_paper] == 10).all()
        assert (per_pixel.targets[~is_ink & ~is_paper] == -100).all()
        assert (~is_ink & ~is_paper).any()
    one, other = whole.test[0], pixels.test[0]
    assert torch.equal(one[0], other[0])
