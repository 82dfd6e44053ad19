"""Products with live weights alone: what the dense product gives, and its gradients."""

import copy
import pickle

import pytest
import torch
from torch import nn

import bayesify as bf
from bayesify.conversion import sparse_linear
from bayesify.conversion.sparse_linear import can_be_compressed, layout_of


@pytest.fixture(autouse=True)
def small_layers_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse_linear, "LEAST_TRAINED", sparse_linear.LEAST_WEIGHTS)


def model(kind: type = bf.SparseSubspace, density: float = 0.05) -> nn.Module:
    torch.manual_seed(0)
    net = nn.Linear(300, 200).double()
    return bf.convert(net, kind(density, how="local"))


def outputs(of: nn.Module, inputs: torch.Tensor, monkeypatch: pytest.MonkeyPatch, largest: float):
    monkeypatch.setattr(sparse_linear, "LARGEST_DENSITY", largest)
    of.zero_grad()
    x = inputs.clone().requires_grad_()
    torch.manual_seed(1)
    output = of(x)
    (output * torch.arange(output.numel()).view_as(output).cos()).sum().backward()
    gradients = {name: p.grad.clone() for name, p in of.named_parameters() if p.grad is not None}
    return output.detach(), x.grad, gradients


@pytest.mark.parametrize("kind", [bf.SparseSubspace, bf.RigL])
@pytest.mark.parametrize("shape", [(7, 300), (2, 3, 300), (1, 300)])
def test_value_and_gradients_are_those_of_the_dense_product(
    kind: type, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = model(kind)
    inputs = torch.randn(shape, dtype=torch.float64)
    assert can_be_compressed(layer.weight_posterior, inputs)
    compressed = outputs(layer, inputs, monkeypatch, 0.1)
    dense = outputs(layer, inputs, monkeypatch, 0.0)
    torch.testing.assert_close(compressed[0], dense[0])
    torch.testing.assert_close(compressed[1], dense[1])
    assert compressed[2].keys() == dense[2].keys()
    for name, gradient in dense[2].items():
        torch.testing.assert_close(compressed[2][name], gradient)


def test_mean_weights_go_the_same_way(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = model()
    x = torch.randn(5, 300, dtype=torch.float64)
    with bf.mean_weights(layer):
        torch.testing.assert_close(layer(x), bf.revert(layer)(x))


def test_a_layout_follows_the_subspace() -> None:
    layer = model()
    site = layer.weight_posterior
    first = layout_of(site)
    assert layout_of(site) is first
    moved = site.index.clone()
    moved[0] = next(n for n in range(60_000) if n not in set(moved.tolist()))
    site.index = moved.sort().values
    assert layout_of(site) is not first
    x = torch.randn(5, 300, dtype=torch.float64)
    with bf.mean_weights(layer):
        torch.testing.assert_close(layer(x), bf.revert(layer)(x))


def test_a_copy_has_a_layout_of_its_own() -> None:
    layer = model()
    layout_of(layer.weight_posterior)
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert twin.weight_posterior._layout is None


def test_what_is_dense_small_or_watched_stays_dense() -> None:
    x = torch.randn(5, 300, dtype=torch.float64)
    assert not can_be_compressed(model(density=0.2).weight_posterior, x)
    assert not can_be_compressed(
        bf.convert(nn.Linear(300, 200), bf.MeanField()).weight_posterior, x
    )
    site = model().weight_posterior
    assert not can_be_compressed(site, x.float())
    assert not can_be_compressed(site, x[:0])
    site.keeps_gradient = True
    assert not can_be_compressed(site, x)
    small = bf.convert(nn.Linear(30, 20).double(), bf.SparseSubspace(0.05))
    assert not can_be_compressed(small.weight_posterior, torch.randn(5, 30, dtype=torch.float64))


@pytest.mark.parametrize("kind", [bf.SparseSubspace, bf.RigL])
def test_training_moves_and_learns_with_it(kind: type) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(20, 300), nn.ReLU(), nn.Linear(300, 200), nn.ReLU(), nn.Linear(200, 2)
    )
    x = torch.randn(200, 20, generator=torch.Generator().manual_seed(0))
    data = [(x[k : k + 50], (x[k : k + 50, 0] > 0).long()) for k in range(0, 200, 50)]
    layer = bf.convert(net, kind(0.05, interval=3))
    before = layer.get_submodule("2.weight_posterior").index.clone()
    history = bf.fit(
        layer, data, epochs=15, num_data=200, beta=0.01, learning_rate=5e-3, progress=False
    )
    assert history.last["accuracy"] > 0.9
    site = layer.get_submodule("2.weight_posterior")
    assert not torch.equal(site.index, before)
    assert layout_of(site).index is site.index


def test_small_layers_are_compressed_to_predict_and_not_to_train(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sparse_linear, "LEAST_TRAINED", 500_000)
    site, x = model().weight_posterior, torch.randn(5, 300, dtype=torch.float64)
    assert not can_be_compressed(site, x)
    with torch.no_grad():
        assert can_be_compressed(site, x)


def test_a_state_that_is_read_in_place_is_noticed() -> None:
    layer, other = (
        bf.convert(nn.Linear(300, 200), bf.SparseSubspace(0.05, seed=seed)) for seed in (0, 1)
    )
    x = torch.randn(5, 300)
    with torch.no_grad(), bf.mean_weights(layer), bf.mean_weights(other):
        layer(x)
        layer.load_state_dict(other.state_dict())
        torch.testing.assert_close(layer(x), other(x))


def test_entries_out_of_order_stay_dense() -> None:
    layer = model()
    site = layer.weight_posterior
    x = torch.randn(5, 300, dtype=torch.float64)
    with torch.no_grad(), bf.mean_weights(layer):
        expected = layer(x)
        turned = torch.arange(site.num_live).flip(0)
        site.index, site.mean.data = site.index[turned], site.mean[turned]
        assert not can_be_compressed(site, x)
        torch.testing.assert_close(layer(x), expected)
