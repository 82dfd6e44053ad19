"""Scores of weights: their exact values, and that nothing is left behind."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import bayesify as bf
from bayesify.methods.sensitivity import scores

ALL = ("fisher", "jacobian", "mean_abs_grad", "grad", "magnitude", "random")


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3))


def data(size: int = 30) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(size, 4, generator=generator)
    return TensorDataset(x, torch.randint(0, 3, (size,), generator=generator))


def exact(net: nn.Module, score: str) -> dict[str, Tensor]:
    """Return the sum of squares, one backward pass for every term."""
    net = copy.deepcopy(net).eval()
    total = {name: torch.zeros_like(value) for name, value in weights(net).items()}
    x, y = data().tensors
    for inputs, target in zip(x, y, strict=True):
        output = net(inputs[None])
        terms = [F.cross_entropy(output, target[None])] if score == "fisher" else list(output[0])
        for term in terms:
            gradients = torch.autograd.grad(term, list(weights(net).values()), retain_graph=True)
            for name, gradient in zip(total, gradients, strict=True):
                total[name] += gradient.square() / len(x)
    return total


def weights(net: nn.Module) -> dict[str, Tensor]:
    return {name: net.get_parameter(name) for name in ("0.weight", "3.weight")}


@pytest.mark.parametrize("score", ["fisher", "jacobian"])
def test_random_signs_give_sums_of_squares_without_bias(score: str) -> None:
    net, expected = network(), exact(network(), score)
    found = [bf.sensitivity(net, DataLoader(data(), 10), score, seed=seed) for seed in range(400)]
    for name, truth in expected.items():
        draws = torch.stack([entry[name] for entry in found])
        error = draws.std(0) / math.sqrt(len(found))
        assert ((draws.mean(0) - truth).abs() < 4.5 * error + 1e-9).all()
        # Three batches of independent signs: relative variance of at most 2 / 3 each.
        assert (draws.var(0) <= 2.0 * truth.square() * 1.5).all()


def test_one_example_per_batch_is_exact() -> None:
    expected = exact(network(), "fisher")
    found = bf.sensitivity(network(), DataLoader(data(), 1), "fisher")
    for name, truth in expected.items():
        torch.testing.assert_close(found[name], truth)


def test_gradients_of_batches() -> None:
    net = network().eval()
    batches = list(DataLoader(data(), 10))
    gradients = [
        torch.autograd.grad(F.cross_entropy(net(x), y), list(weights(net).values()))
        for x, y in batches
    ]
    mean = bf.sensitivity(net, batches, "mean_abs_grad")
    first = bf.sensitivity(net, batches, "grad")
    limited = bf.sensitivity(net, batches, "mean_abs_grad", num_batches=1)
    for number, name in enumerate(weights(net)):
        every = torch.stack([gradient[number].abs() for gradient in gradients])
        torch.testing.assert_close(mean[name], every.mean(0))
        torch.testing.assert_close(first[name], every[0])
        torch.testing.assert_close(limited[name], every[0])


def test_magnitude_and_random_need_no_data() -> None:
    net = network()
    found = bf.sensitivity(net, score="magnitude")
    torch.testing.assert_close(found["3.weight"], net[3].weight.detach().abs())
    first, again, other = (
        bf.sensitivity(net, score="random", seed=s)["0.weight"] for s in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("score", ALL)
def test_nothing_is_left_behind(score: str) -> None:
    net = network()
    net[0].weight.requires_grad_(False)
    net[1].eval()
    generator = torch.Generator().manual_seed(5)
    loader = DataLoader(data(), 7, shuffle=True, generator=generator)
    state, modes = copy.deepcopy(net.state_dict()), [module.training for module in net.modules()]
    before = torch.get_rng_state(), generator.get_state()
    found = bf.sensitivity(net, loader, score)
    assert set(found) == {"3.weight"}, "a frozen tensor is not scored"
    assert all(not score.requires_grad for score in found.values())
    assert torch.equal(torch.get_rng_state(), before[0])
    assert torch.equal(generator.get_state(), before[1])
    assert [module.training for module in net.modules()] == modes
    assert not net[0].weight.requires_grad
    assert all(value.grad is None for value in net.parameters())
    for name, value in net.state_dict().items():
        assert torch.equal(value, state[name])


def test_the_same_seed_gives_the_same_scores_whatever_was_drawn_before() -> None:
    loader = DataLoader(data(), 7, shuffle=True, generator=torch.Generator())
    first = bf.sensitivity(network(), loader, "fisher")["0.weight"]
    next(iter(loader))
    torch.rand(3)
    assert torch.equal(first, bf.sensitivity(network(), loader, "fisher")["0.weight"])


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.memory = nn.LSTM(8, 5, batch_first=True)
        self.head = nn.Linear(5, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        values = self.table(tokens)
        values, _ = self.attention(values, values, values, need_weights=False)
        return self.head(self.memory(values)[0][:, -1])


@pytest.mark.parametrize("score", ALL)
def test_every_kind_of_layer_can_be_scored(score: str) -> None:
    torch.manual_seed(0)
    tokens, labels = torch.randint(0, 9, (12, 5)), torch.randint(0, 3, (12,))
    found = bf.sensitivity(Reader(), DataLoader(TensorDataset(tokens, labels), 4), score)
    assert {"table.weight", "attention.in_proj_weight", "memory.weight_hh_l0"} <= set(found)
    assert all(bool((value > 0).any()) for value in found.values())


def test_a_regression_and_a_loss_of_ones_own_are_scored() -> None:
    x = data().tensors[0]
    loader = DataLoader(TensorDataset(x, x[:, :3].clone()), 10)
    by_type = bf.sensitivity(network(), loader, "fisher")
    by_loss = bf.sensitivity(network(), loader, "fisher", likelihood=F.l1_loss)
    assert bool((by_type["0.weight"] > 0).all())
    assert not torch.equal(by_type["0.weight"], by_loss["0.weight"])


def test_what_cannot_be_scored_is_refused() -> None:
    net = network()
    with pytest.raises(ValueError, match="data must be given, a loader"):
        bf.sensitivity(net)
    with pytest.raises(ValueError, match="data gave no examples"):
        bf.sensitivity(net, [])
    with pytest.raises(ValueError, match="data must yield targets"):
        bf.sensitivity(net, [torch.randn(3, 4)], "fisher")
    with pytest.raises(LookupError, match="unknown sensitivity score 'fishy'"):
        bf.sensitivity(net, [torch.randn(3, 4)], "fishy")
    # Derivatives of outputs need no targets.
    assert bf.sensitivity(net, [torch.randn(3, 4)], "jacobian")["0.weight"].shape == (6, 4)
    assert set(scores) == set(ALL)
