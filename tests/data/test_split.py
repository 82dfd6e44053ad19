import pytest
import torch

from bayesify.data import CropAndFlip, Normalise, TensorData, split


@pytest.fixture
def data():
    values = torch.arange(100)
    return TensorData(values[:, None].float(), values)


@pytest.mark.parametrize(("held_out", "count"), [(10, 10), (0.25, 25), (1, 1), (99, 99)])
def test_split_is_disjoint_and_complete(data, held_out, count):
    kept, taken = split(data, held_out, seed=0)
    assert len(taken) == count
    assert sorted(kept.targets.tolist() + taken.targets.tolist()) == list(range(100))
    assert torch.equal(kept.inputs[:, 0].long(), kept.targets)


def test_split_is_fixed_by_its_seed(data):
    first, again, other = (split(data, 20, seed=seed)[1].targets for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_split_draws_from_the_whole_set(data):
    _, taken = split(data, 20, seed=0)
    # A block from either end would leave the other end out.
    assert taken.targets.min() < 25
    assert taken.targets.max() >= 75


def test_split_leaves_the_global_generator_alone(data):
    before = torch.random.get_rng_state()
    split(data, 20, seed=0)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_split_does_not_augment_what_is_held_out():
    images = torch.rand(8, 1, 4, 4)
    data = TensorData(images, torch.arange(8), Normalise((0.5,), (1.0,)), CropAndFlip())
    kept, taken = split(data, 4, seed=0)
    assert kept.augmentation is data.augmentation
    assert taken.augmentation is None
    assert taken.transform is data.transform


@pytest.mark.parametrize(
    ("held_out", "message"),
    [
        (0, "held_out must leave examples on both sides of 100, got 0"),
        (100, "held_out must leave examples on both sides of 100, got 100"),
        (1.0, r"held_out must lie in \(0, 1\) when it is a fraction, got 1.0"),
        (-0.1, r"held_out must lie in \(0, 1\) when it is a fraction, got -0.1"),
        (0.001, r"got 0.001 \(0 held out\)"),
    ],
)
def test_split_refuses_an_empty_side(data, held_out, message):
    with pytest.raises(ValueError, match=message):
        split(data, held_out)
