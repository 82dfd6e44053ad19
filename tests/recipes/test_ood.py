"""Strange versions of a data set: other pictures, in the same range of values."""

import pytest
import torch

from bayesify.data import Normalise, TensorData, load_dataset
from bayesify.recipes.ood import make_ood, ood_variants


@pytest.mark.parametrize("name", list(ood_variants))
def test_variant_differs_and_keeps_shape_range_and_transform(name):
    data = load_dataset("digits").test
    strange = make_ood(data, name)
    assert strange.inputs.shape == data.inputs.shape
    assert strange.inputs.dtype == data.inputs.dtype
    assert strange.inputs.min() >= data.inputs.min()
    assert strange.inputs.max() <= data.inputs.max()
    assert strange.transform is data.transform
    is_other = (strange.inputs != data.inputs).flatten(1).any(1)
    assert is_other.float().mean() > 0.95


@pytest.mark.parametrize("name", list(ood_variants))
def test_variant_follows_from_its_seed(name):
    data = load_dataset("digits").test
    first, again, other = (make_ood(data, name, seed).inputs for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert torch.equal(first, other) == (name in ("inverted", "rotated"))


def test_shuffled_keeps_each_examples_own_values():
    data = load_dataset("digits").test
    strange = make_ood(data, "shuffled")
    before, after = (each.inputs.flatten(1).sort(1).values for each in (data, strange))
    assert torch.equal(before, after)


def test_inverted_twice_is_the_original():
    images = torch.randint(0, 256, (5, 1, 4, 4), dtype=torch.uint8)
    images[0, 0, 0, 0], images[0, 0, 0, 1] = 0, 255
    data = TensorData(images, torch.zeros(5), Normalise((0.5,), (0.2,)))
    twice = make_ood(make_ood(data, "inverted"), "inverted")
    assert torch.equal(twice.inputs, images)


def test_make_ood_says_what_it_cannot_do():
    points = load_dataset("two_moons").test
    with pytest.raises(ValueError, match="rotated needs square images"):
        make_ood(points, "rotated")
    with pytest.raises(LookupError, match="Did you mean 'rotated'"):
        make_ood(points, "rotate")
    with pytest.raises(ValueError, match="at least one example"):
        make_ood(points.select(torch.arange(0)), "noise")
