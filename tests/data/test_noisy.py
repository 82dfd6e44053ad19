import pytest
import torch

from bayesify.data.dataset import TensorData
from bayesify.data.noisy import noisy
from bayesify.data.transforms import Normalise


def images(num=3):
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (num, 1, 64, 64), dtype=torch.uint8, generator=generator)
    return TensorData(pixels, torch.arange(num), Normalise((0.3,), (0.2,)))


def seen(data):
    return data.__getitems__(list(range(len(data))))[0]


@pytest.mark.parametrize("decibels", [-6.0, 0.0, 20.0])
def test_noise_has_the_power_that_was_asked_for(decibels):
    data = images()
    spoiled = noisy(data, decibels)
    noise = seen(spoiled) - seen(data)
    found = 10 * torch.log10(seen(data).flatten(1).var(1) / noise.flatten(1).var(1))
    # The variance of 4096 normal numbers has a relative standard error of 2.2 %: 0.1 dB.
    torch.testing.assert_close(found, torch.full((3,), decibels), atol=0.4, rtol=0.0)
    assert torch.equal(spoiled.targets, data.targets)


def test_noise_is_the_same_for_a_seed_and_scales_with_the_ratio():
    data = images()
    one, two = (seen(noisy(data, each)) - seen(data) for each in (0.0, 20.0))
    torch.testing.assert_close(one, 10 * two, rtol=1e-3, atol=1e-4)
    assert torch.equal(seen(noisy(data, 3.0, seed=1)), seen(noisy(data, 3.0, seed=1)))
    assert not torch.equal(seen(noisy(data, 3.0, seed=1)), seen(noisy(data, 3.0, seed=2)))


def test_no_examples_and_flat_ones_stay_as_they_are():
    assert len(noisy(images(0), 0.0)) == 0
    flat = TensorData(torch.ones(2, 5), torch.zeros(2))
    assert torch.equal(seen(noisy(flat, -6.0)), torch.ones(2, 5))


def test_words_take_no_noise():
    with pytest.raises(TypeError, match=r"noisy needs numbers as inputs, got torch\.int64"):
        noisy(TensorData(torch.ones(2, 3, dtype=torch.int64), torch.zeros(2)), 0.0)
