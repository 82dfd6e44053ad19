import math

import pytest
import torch

from bayesify.data import load_dataset
from bayesify.data.synthetic import truth_at

NAMES = ("two_moons", "curve_1d", "cubic_1d")


def everything(data):
    return (
        torch.cat([data.train.inputs, data.test.inputs]),
        torch.cat([data.train.targets, data.test.targets]),
    )


@pytest.mark.parametrize("name", NAMES)
def test_synthetic_set_is_fixed_by_its_seed(name):
    first, again, other = (load_dataset(name, seed=seed).train.inputs for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("name", NAMES)
def test_synthetic_set_leaves_the_global_generator_alone(name):
    before = torch.random.get_rng_state()
    load_dataset(name)
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("name", NAMES)
def test_synthetic_set_has_the_given_sizes(name):
    data = load_dataset(name, num_train=1, num_test=3)
    assert (len(data.train), len(data.test)) == (1, 3)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_train": 0}, "num_train and num_test must be 1 or more, got num_train=0"),
        ({"noise_std": -1.0}, "noise_std must be 0 or more, got -1.0"),
        ({"noise_std": math.nan}, "noise_std must be 0 or more, got nan"),
    ],
)
def test_synthetic_set_refuses_wrong_arguments(name, options, message):
    with pytest.raises(ValueError, match=message):
        load_dataset(name, **options)


def test_two_moons_has_fifty_of_a_thousand_for_training():
    data = load_dataset("two_moons")
    assert (len(data.train), len(data.test)) == (50, 950)
    assert everything(data)[1].bincount().tolist() == [500, 500]
    # Both classes are in a training set drawn at random (13 or fewer of one: below 1e-3).
    assert data.train.targets.bincount().min() > 13


def test_two_moons_without_noise_lies_on_two_half_circles():
    points, labels = everything(load_dataset("two_moons", noise_std=0.0))
    centres = torch.tensor([[0.0, 0.0], [1.0, 0.5]])[labels]
    torch.testing.assert_close((points - centres).norm(dim=1), torch.ones(1000))
    assert (points[labels == 0, 1] >= -1e-6).all()
    assert (points[labels == 1, 1] <= 0.5 + 1e-6).all()


def test_two_moons_without_noise_has_the_points_of_scikit_learn():
    from sklearn.datasets import make_moons

    points, labels = everything(load_dataset("two_moons", noise_std=0.0))
    expected, classes = make_moons(1000, shuffle=False, noise=None)
    for label in (0, 1):
        ours = points[labels == label].double().sort(dim=0).values
        theirs = torch.as_tensor(expected[classes == label]).sort(dim=0).values
        torch.testing.assert_close(ours, theirs, rtol=0.0, atol=1e-6)


def test_two_moons_noise_has_the_given_std():
    clean, noisy = (everything(load_dataset("two_moons", noise_std=s))[0] for s in (0.0, 0.3))
    # 2,000 draws; four standard errors of a standard deviation, std / sqrt(2 n).
    assert (noisy - clean).std().item() == pytest.approx(0.3, abs=4 * 0.3 / math.sqrt(4000))


def test_curve_1d_without_noise_is_the_curve():
    data = load_dataset("curve_1d", noise_std=0.0)
    assert (len(data.train), len(data.test)) == (40, 460)
    x, y = (part.double() for part in everything(data))
    assert x.shape == y.shape == (500, 1)
    assert 0.0 <= x.min() < x.max() <= 0.5
    expected = x + 0.3 * torch.sin(2 * math.pi * x) + 0.3 * torch.sin(4 * math.pi * x)
    torch.testing.assert_close(y, expected, rtol=0.0, atol=1e-6)


def test_curve_1d_noise_enters_inside_and_outside_the_sines():
    # At x = 0 the slope in e is 1 + 0.3 * 2 pi + 0.3 * 4 pi, so y spreads that much wider.
    data = load_dataset("curve_1d", interval=(0.0, 1e-6), num_test=10_000, noise_std=0.001)
    expected = 0.001 * (1 + 1.8 * math.pi)
    tolerance = 4 * expected / math.sqrt(20_000)
    assert data.test.targets.std().item() == pytest.approx(expected, abs=tolerance)


def test_cubic_1d_has_the_intervals_of_the_paper():
    data = load_dataset("cubic_1d")
    assert data.train.inputs.shape == (20, 1)
    assert data.train.inputs.abs().max() <= 4.0
    assert data.test.inputs[[0, -1], 0].tolist() == [-6.0, 6.0]
    assert data.task == "regression"
    assert data.num_classes is None


def test_cubic_1d_noise_has_a_std_of_three():
    data = load_dataset("cubic_1d", num_test=10_000)
    noise = data.test.targets - data.test.inputs**3
    assert noise.std().item() == pytest.approx(3.0, abs=4 * 3.0 / math.sqrt(20_000))
    assert noise.mean().item() == pytest.approx(0.0, abs=4 * 3.0 / math.sqrt(10_000))


@pytest.mark.parametrize("name", ["curve_1d", "cubic_1d"])
def test_the_truth_of_a_curve_is_what_it_gives_without_noise(name):
    data = load_dataset(name, noise_std=0.0)
    for part in (data.train, data.test):
        torch.testing.assert_close(truth_at(name, part.inputs), part.targets)
    assert truth_at(name, torch.zeros(0, 1)).shape == (0, 1)


def test_the_truth_of_what_is_no_curve_is_refused():
    with pytest.raises(LookupError, match="unknown curve 'two_moons'"):
        truth_at("two_moons", torch.zeros(1, 1))


@pytest.mark.parametrize(
    ("name", "option"),
    [("curve_1d", "interval"), ("cubic_1d", "train_interval"), ("cubic_1d", "test_interval")],
)
def test_curves_refuse_an_interval_that_is_upside_down(name, option):
    with pytest.raises(
        ValueError, match=rf"{option} must be \(lowest, highest\), got \(1.0, 0.0\)"
    ):
        load_dataset(name, **{option: (1.0, 0.0)})
