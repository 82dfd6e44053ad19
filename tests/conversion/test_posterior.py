import copy
import math
import pickle

import pytest
import torch

from bayesify.conversion.posterior import Posterior
from bayesify.distributions import Normal, NormalPrior

SHAPE = (6, 5)
NUM_ENTRIES = 30
LIVE = torch.tensor([1, 2, 5, 8, 13, 21, 29])
RANDOM = torch.tensor([0, 3, 4, 17, 28])
RANDOM_OF_LIVE = torch.tensor([0, 2, 6])

STORAGES = {
    "dense": {},
    "tied": {"tied": True},
    "partial": {"random_index": RANDOM},
    "sparse": {"index": LIVE},
    "sparse_partial": {"index": LIVE, "random_index": RANDOM_OF_LIVE},
}
storages = pytest.mark.parametrize("storage", STORAGES)


def build(storage, dtype=torch.float32, tensor=None):
    options = dict(STORAGES[storage])
    shape = (6, 1) if options.pop("tied", False) else SHAPE
    tensor = torch.randn(SHAPE, dtype=dtype) if tensor is None else tensor
    std = 0.1 + 0.1 * torch.rand(shape)
    return Posterior(tensor, std.to(dtype), Normal(), NormalPrior(), **options)


def is_live(storage):
    return mask(LIVE) if "index" in STORAGES[storage] else torch.ones(SHAPE, dtype=torch.bool)


def is_random(storage):
    options = STORAGES[storage]
    if "random_index" not in options:
        return is_live(storage)
    positions = options["random_index"]
    return mask(LIVE[positions] if "index" in options else positions)


def mask(positions):
    result = torch.zeros(NUM_ENTRIES, dtype=torch.bool)
    result[positions] = True
    return result.view(SHAPE)


@storages
def test_only_the_random_entries_vary(storage):
    posterior = build(storage)
    first, second = posterior.sample(), posterior.sample()
    assert torch.equal(first != second, is_random(storage))
    assert torch.equal(first[~is_random(storage)], posterior.dense_mean()[~is_random(storage)])


@storages
def test_entries_that_do_not_exist_are_zero(storage):
    posterior, live = build(storage), is_live(storage)
    for dense in (posterior.sample(), posterior.dense_mean(), posterior.dense_variance()):
        assert (dense[~live] == 0).all()
    assert (posterior.dense_mean()[live] != 0).all()


@storages
def test_variance_is_positive_exactly_where_random(storage):
    assert torch.equal(build(storage).dense_variance() > 0, is_random(storage))


@pytest.mark.parametrize(
    ("storage", "expected"),
    [
        ("dense", 2 * NUM_ENTRIES),
        ("tied", NUM_ENTRIES + 6),
        ("partial", NUM_ENTRIES + len(RANDOM)),
        ("sparse", 2 * len(LIVE)),
        ("sparse_partial", len(LIVE) + len(RANDOM_OF_LIVE)),
    ],
)
def test_storage_holds_no_more_numbers_than_needed(storage, expected):
    posterior = build(storage)
    assert sum(parameter.numel() for parameter in posterior.parameters()) == expected
    assert posterior.num_live == int(is_live(storage).sum())
    assert posterior.num_random == int(is_random(storage).sum())


@storages
def test_sample_moments_are_the_stated_ones(storage):
    posterior = build(storage, torch.float64)
    num_draws = 4_000
    with torch.no_grad():
        draws = torch.stack([posterior.sample() for _ in range(num_draws)])
        mean, variance = posterior.dense_mean(), posterior.dense_variance()
    # The other entries are constant: averaging them costs a few units of the last place.
    rounding = 1e-12
    assert ((draws.mean(0) - mean).abs() <= 4 * (variance / num_draws).sqrt() + rounding).all()
    spread = 4 * variance * math.sqrt(2 / (num_draws - 1))
    assert ((draws.var(0) - variance).abs() <= spread + rounding).all()


@storages
def test_gradients_reach_the_stored_parameters_and_no_others(storage):
    posterior = build(storage)
    weights = torch.rand(SHAPE)
    (posterior.sample() * weights).sum().backward()
    dense = torch.zeros(NUM_ENTRIES)
    if "index" in STORAGES[storage]:
        dense[LIVE] = posterior.mean.grad
    else:
        dense = posterior.mean.grad
    torch.testing.assert_close(dense.view(SHAPE), weights * is_live(storage))
    assert posterior.rho.grad.shape == posterior.rho.shape
    assert (posterior.rho.grad != 0).all()


@storages
def test_dense_mean_and_variance_carry_gradients(storage):
    posterior = build(storage)
    (posterior.dense_mean().square().sum() + posterior.dense_variance().sum()).backward()
    assert (posterior.mean.grad != 0).all()
    assert (posterior.rho.grad != 0).all()


@storages
def test_kl_is_summed_over_the_random_entries(storage):
    posterior = build(storage, torch.float64)
    random = is_random(storage)
    here = torch.distributions.Normal(
        posterior.dense_mean()[random], posterior.dense_variance()[random].sqrt()
    )
    prior = torch.distributions.Normal(torch.zeros((), dtype=torch.float64), 1.0)
    expected = torch.distributions.kl_divergence(here, prior).sum()
    torch.testing.assert_close(posterior.kl(), expected, rtol=1e-12, atol=0)


@storages
def test_state_round_trip_is_exact(storage):
    posterior, other = build(storage), build(storage)
    other.load_state_dict(posterior.state_dict())
    for twin in (other, copy.deepcopy(posterior), pickle.loads(pickle.dumps(posterior))):
        torch.manual_seed(1)
        expected = posterior.sample()
        torch.manual_seed(1)
        assert torch.equal(twin.sample(), expected)
        assert torch.equal(twin.dense_variance(), posterior.dense_variance())


@storages
def test_bfloat16_is_stored_and_drawn_in_float32_in_between(storage):
    posterior = build(storage, torch.bfloat16)
    assert all(parameter.dtype == torch.bfloat16 for parameter in posterior.parameters())
    assert posterior.sample().dtype == posterior.dense_mean().dtype == torch.bfloat16
    assert posterior.dense_variance().dtype == torch.float32
    assert posterior.kl().dtype == torch.float32
    random = is_random(storage)
    relative = posterior.dense_variance()[random].sqrt()
    assert ((relative > 0.098) & (relative < 0.204)).all(), "the std asked for lies in 0.1 ... 0.2"


@storages
def test_a_bfloat16_draw_is_rounded_once(storage):
    posterior = build(storage, torch.bfloat16)
    exact = copy.deepcopy(posterior).float()
    torch.manual_seed(1)
    expected = exact.sample().bfloat16()
    torch.manual_seed(1)
    assert torch.equal(posterior.sample(), expected)


def test_no_random_entry_at_all_is_the_mean_with_no_kl():
    none = torch.empty(0, dtype=torch.long)
    tensor = torch.randn(SHAPE)
    posterior = Posterior(tensor, torch.ones(SHAPE), Normal(), NormalPrior(), random_index=none)
    assert torch.equal(posterior.value(), tensor)
    assert torch.equal(posterior.dense_variance(), torch.zeros(SHAPE))
    assert posterior.kl() == 0


def test_a_channels_last_tensor_keeps_its_format_and_order():
    tensor = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    dense = Posterior(tensor, torch.full_like(tensor, 0.1), Normal(), NormalPrior())
    assert dense.mean.is_contiguous(memory_format=torch.channels_last)
    partial = Posterior(
        tensor, torch.full_like(tensor, 0.1), Normal(), NormalPrior(), random_index=RANDOM
    )
    differs = (partial.sample() != tensor).flatten().nonzero().flatten()
    assert torch.equal(differs, RANDOM)
    assert torch.equal(partial.dense_mean(), tensor)


def test_tied_scales_of_a_partial_posterior_are_refused():
    with pytest.raises(ValueError, match="std must have one number per entry where only some"):
        Posterior(
            torch.randn(SHAPE), torch.ones(6, 1), Normal(), NormalPrior(), random_index=RANDOM
        )


def test_scales_that_do_not_fit_the_tensor_are_refused():
    with pytest.raises(ValueError, match=r"std must broadcast to the shape \(6, 5\), got \(4, 1\)"):
        Posterior(torch.randn(SHAPE), torch.ones(4, 1), Normal(), NormalPrior())


def test_print_shows_shape_family_and_counts():
    assert repr(build("partial")) == "Posterior(6x5, normal, 5 of 30 random)"


@pytest.mark.parametrize("storage", ["partial", "sparse_partial"])
def test_a_state_dict_has_the_positions_of_the_random_entries(storage):
    posterior, other = build(storage), build(storage)
    state = posterior.state_dict()
    expected = STORAGES[storage]["random_index"]
    assert torch.equal(state["random_index"].long(), expected)
    moved = expected.clone()
    moved[0] += 1
    other.load_state_dict(state | {"random_index": moved})
    assert torch.equal(other.random_index.long(), moved)
    assert torch.equal(other.rho, posterior.rho)


def test_a_state_dict_that_has_no_positions_or_too_many_is_refused():
    partial, dense = build("partial"), build("dense")
    state = partial.state_dict()
    without = {key: value for key, value in state.items() if key != "random_index"}
    with pytest.raises(RuntimeError, match=r"Missing key.*random_index"):
        partial.load_state_dict(without)
    with pytest.raises(RuntimeError, match="random_index must hold 5 positions, got a tensor of"):
        partial.load_state_dict(state | {"random_index": torch.arange(6)})
    with pytest.raises(RuntimeError, match=r"Unexpected key.*random_index"):
        dense.load_state_dict(dense.state_dict() | {"random_index": RANDOM})


def test_a_tied_posterior_gives_one_tensor_of_positions_under_both_names():
    model = torch.nn.Module()
    model.first = model.second = build("partial")
    state = model.state_dict()
    assert state["first.random_index"] is state["second.random_index"]


def test_copies_and_pickles_keep_the_positions():
    posterior = build("partial")
    held = posterior.state_dict()
    for twin in (copy.deepcopy(posterior), pickle.loads(pickle.dumps(posterior))):
        assert torch.equal(twin.random_index.long(), RANDOM)
        assert twin.num_random == len(RANDOM)
    assert len(held["random_index"]) == len(RANDOM)
