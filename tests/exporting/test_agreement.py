"""The check of a file against torch lets rounding pass, and chance, and nothing else."""

import pytest
import torch

from bayesify.exporting.agreement import ExportError, batches, check_agreement

INPUTS = [torch.randn(3, 2)]


def plain(inputs):
    return {"mean": 10.0 * inputs[0], "probs": torch.full((len(inputs[0]), 2), 0.5)}


def drawn(inputs, num_samples=32, shift=0.0):
    draws = inputs[0] + torch.randn(num_samples, *inputs[0].shape) + shift
    return {"mean": draws.mean(0), "variance": draws.var(0)}


def test_batches_are_of_three_sizes():
    inputs = [torch.arange(4.0)[:, None], torch.ones(7)]
    found = list(batches(inputs, [True, False]))
    assert [len(batch[0]) for batch in found] == [4, 1, 5]
    assert torch.equal(found[2][0][4], inputs[0][0])
    assert all(batch[1] is inputs[1] for batch in found)


def test_rounding_passes_and_more_does_not():
    scale = float(plain(INPUTS)["mean"].abs().max())

    def off_by(share):
        return lambda inputs: plain(inputs) | {"mean": plain(inputs)["mean"] + share * scale}

    check_agreement(off_by(5e-5), plain, INPUTS, 0)
    with pytest.raises(ExportError, match="the file's mean differs from torch's"):
        check_agreement(off_by(2e-4), plain, INPUTS, 0)


def test_another_shape_and_nan_are_found():
    def short(inputs):
        return plain(inputs) | {"probs": torch.full((1, 2), 0.5)}

    def broken(inputs):
        return plain(inputs) | {"probs": torch.full((3, 2), torch.nan)}

    with pytest.raises(ExportError, match="has shape"):
        check_agreement(short, plain, INPUTS, 0)
    with pytest.raises(ExportError, match="not finite"):
        check_agreement(broken, plain, INPUTS, 0)


def test_draws_may_differ_by_chance_and_no_more():
    for _ in range(20):
        check_agreement(drawn, drawn, INPUTS, 32)
    with pytest.raises(ExportError, match="to be expected by chance"):
        # Two calls of 32 draws each: a standard error of 0.18, of the difference.
        check_agreement(lambda inputs: drawn(inputs, shift=1.5), drawn, INPUTS, 32)


def test_frozen_noise_is_found():
    frozen = drawn(INPUTS)
    with pytest.raises(ExportError, match="the same at every call"):
        check_agreement(lambda inputs: frozen, drawn, INPUTS, 32)


def test_the_generator_is_left_as_it_was():
    state = torch.get_rng_state()
    check_agreement(drawn, drawn, INPUTS, 32)
    assert torch.equal(state, torch.get_rng_state())
