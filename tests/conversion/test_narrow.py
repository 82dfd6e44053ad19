"""Smaller posteriors: what stays is unchanged, what goes is exactly 0 and counts for nothing."""

import pytest
import torch
from torch import nn

import bayesify as bf
from bayesify.conversion.narrow import narrowed, signal_to_noise, without_units
from bayesify.conversion.posterior import Posterior
from bayesify.distributions import MultiplicativeNormal, Normal, NormalPrior

SHAPE = (5, 4)


def dense(std: float = 0.3) -> Posterior:
    torch.manual_seed(0)
    return Posterior(torch.randn(SHAPE), torch.full(SHAPE, std), Normal(), NormalPrior())


def tied() -> Posterior:
    torch.manual_seed(0)
    return Posterior(torch.randn(SHAPE), torch.rand(5, 1) + 0.1, Normal(), NormalPrior())


def partial() -> Posterior:
    torch.manual_seed(0)
    index = torch.tensor([1, 4, 7, 12])
    return Posterior(
        torch.randn(SHAPE), torch.rand(SHAPE), Normal(), NormalPrior(), random_index=index
    )


def sparse() -> Posterior:
    torch.manual_seed(0)
    index = torch.tensor([0, 2, 3, 9, 14, 17, 18])
    random = torch.tensor([1, 2, 5])
    return Posterior(
        torch.randn(SHAPE),
        torch.rand(SHAPE),
        Normal(),
        NormalPrior(),
        index=index,
        random_index=random,
    )


KINDS = [dense, tied, partial, sparse]


def mask(posterior: Posterior, kept: torch.Tensor) -> torch.Tensor:
    flat = torch.zeros(posterior.shape.numel(), dtype=torch.bool)
    index = torch.arange(flat.numel()) if posterior.index is None else posterior.index
    flat[index[kept]] = True
    return flat.view(posterior.shape)


@pytest.mark.parametrize("make", KINDS)
def test_what_is_kept_keeps_its_mean_and_variance_and_the_rest_is_zero(make) -> None:
    posterior = make()
    kept = torch.arange(posterior.num_live) % 3 != 1
    part = narrowed(posterior, kept)
    where = mask(posterior, kept)
    torch.testing.assert_close(part.dense_mean(), posterior.dense_mean() * where, rtol=0, atol=0)
    torch.testing.assert_close(part.dense_variance(), posterior.dense_variance() * where)
    assert part.num_live == int(kept.sum())
    assert part.mean.numel() == part.num_live
    assert part.rho.numel() == part.num_random
    torch.manual_seed(1)
    assert (part.sample()[~where] == 0).all()


@pytest.mark.parametrize("make", KINDS)
def test_kl_is_the_kl_of_what_is_left(make) -> None:
    posterior = make()
    halves = torch.arange(posterior.num_live) % 2 == 0
    total = sum(narrowed(posterior, part).kl() for part in (halves, ~halves))
    torch.testing.assert_close(total, posterior.kl())


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize("axis", [0, 1])
def test_fewer_units_give_the_rows_or_columns_that_stay(make, axis: int) -> None:
    posterior = make()
    units = torch.tensor([0, 3])
    part = without_units(posterior, axis, units)
    expected = posterior.dense_mean().index_select(axis, units)
    torch.testing.assert_close(part.dense_mean(), expected, rtol=0, atol=0)
    expected = posterior.dense_variance().index_select(axis, units)
    torch.testing.assert_close(part.dense_variance(), expected)
    assert part.shape == expected.shape


def test_nothing_kept_and_everything_kept() -> None:
    posterior = dense()
    nothing = narrowed(posterior, torch.zeros(20, dtype=torch.bool))
    assert nothing.num_live == 0
    assert (nothing.dense_mean() == 0).all()
    assert nothing.kl() == 0
    everything = narrowed(posterior, torch.ones(20, dtype=torch.bool))
    assert everything.index is None
    assert everything is not posterior


def test_the_old_posterior_is_left_as_it_was() -> None:
    posterior = dense()
    before = {key: value.clone() for key, value in posterior.state_dict().items()}
    part = narrowed(posterior, torch.arange(20) < 5)
    part.mean.data.zero_()
    after = posterior.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_gradients_reach_only_what_is_left() -> None:
    part = narrowed(dense(), torch.arange(20) < 5)
    (part.sample().square().sum() + part.kl()).backward()
    assert part.mean.grad.shape == part.rho.grad.shape == (5,)
    assert (part.rho.grad != 0).all()


def test_multiplicative_noise_keeps_its_rate() -> None:
    torch.manual_seed(0)
    family = MultiplicativeNormal()
    posterior = Posterior(torch.randn(SHAPE), torch.full(SHAPE, 0.1), family, NormalPrior())
    kept = torch.arange(20) >= 12
    part = narrowed(posterior, kept)
    ratio = signal_to_noise(posterior)
    torch.testing.assert_close(signal_to_noise(part), ratio[kept])


def test_signal_to_noise_of_what_is_not_random() -> None:
    model = bf.convert(nn.Embedding(4, 2, padding_idx=0), bf.MeanField())
    ratio = signal_to_noise(model.weight_posterior).view(4, 2)
    assert (ratio[0] == 0).all()
    assert (ratio[1:] > 0).all()
    assert torch.isinf(signal_to_noise(partial())[0])


def test_a_mask_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match="one boolean for each of the 20 existing entries"):
        narrowed(dense(), torch.ones(3, dtype=torch.bool))
