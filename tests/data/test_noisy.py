import pytest
import torch

from bayesify.data.dataset import TensorData
from bayesify.data.loader import loader
from bayesify.data.noisy import newly_noisy, noisy, uncertain
from bayesify.data.transforms import Normalise
from bayesify.moments import Moments


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


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_noisy_inputs_keep_their_type(dtype):
    data = TensorData(torch.randn(4, 9).to(dtype) * 300, torch.zeros(4))
    for spoiled in (noisy(data, -10.0), newly_noisy(data, -10.0)):
        assert seen(spoiled).dtype == dtype
    variance = seen(uncertain(data, -10.0)).variance
    assert variance.isfinite().all()
    assert variance.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


def test_words_take_no_noise():
    with pytest.raises(TypeError, match=r"noisy needs numbers as inputs, got torch\.int64"):
        noisy(TensorData(torch.ones(2, 3, dtype=torch.int64), torch.zeros(2)), 0.0)


@pytest.mark.parametrize("decibels", [-6.0, 10])
def test_uncertain_inputs_have_the_variance_that_noise_has(decibels):
    data = images()
    moments = seen(uncertain(data, decibels))
    assert torch.equal(moments.expected, seen(data))
    drawn = seen(newly_noisy(data, decibels)) - seen(data)
    found = drawn.flatten(1).var(1) / moments.variance.flatten(1).mean(1)
    # Four standard errors of the variance of 4096 normal numbers.
    torch.testing.assert_close(found, torch.ones(3), atol=4 * (2 / 4096) ** 0.5, rtol=0.0)
    signal = seen(data).flatten(1).var(1, correction=0)
    expected = signal * 10 ** (-decibels / 10)
    torch.testing.assert_close(moments.variance[:, 0, 0, 0], expected)


def test_each_example_has_its_own_ratio_and_a_new_one_each_time():
    data = images()
    signal = seen(data).flatten(1).var(1, correction=0)
    spoiled = uncertain(data, (-8, 20))
    ratios = [10 * torch.log10(signal / seen(spoiled).variance[:, 0, 0, 0]) for _ in range(50)]
    found = torch.stack(ratios)
    assert found.min() >= -8 - 1e-3
    assert found.max() <= 20 + 1e-3
    assert found.unique().numel() == found.numel()
    # Uniform: the mean of 150 has a standard error of 28 / sqrt(12 * 150) = 0.66.
    assert float(found.mean()) == pytest.approx(6.0, abs=4 * 0.66)
    noisier = newly_noisy(data, (-8, 20))
    assert not torch.equal(seen(noisier), seen(noisier))


def test_a_loader_of_uncertain_inputs_gives_moments():
    for spoiled in (uncertain(images(), 3.0), uncertain(images().select(torch.arange(2)), 3.0)):
        inputs, targets = next(iter(loader(spoiled, 2)))
        assert isinstance(inputs, Moments)
        assert (inputs.shape, len(targets)) == ((2, 1, 64, 64), 2)
        assert spoiled[0][0].shape == (1, 64, 64)
    assert seen(uncertain(images(0), 3.0)).shape == (0, 1, 64, 64)


@pytest.mark.parametrize("decibels", [(20, -6), (1, 2, 3), float("nan"), "loud"])
def test_ratios_that_are_none_are_refused(decibels):
    with pytest.raises(ValueError, match="decibels must be a number, or two of which"):
        uncertain(images(), decibels)


@pytest.mark.parametrize("kind", [uncertain, newly_noisy])
def test_words_have_no_variance(kind):
    words = TensorData(torch.ones(2, 3, dtype=torch.int64), torch.zeros(2))
    with pytest.raises(TypeError, match=rf"{kind.__name__} needs numbers as inputs"):
        kind(words, 0.0)
