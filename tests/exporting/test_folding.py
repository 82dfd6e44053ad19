"""A folded network computes what the model does, from constants."""

import torch
from torch import nn

import bayesify as bf
from bayesify.conversion.scope import forward_by
from bayesify.exporting.folding import FamilyDraw, FoldedNetwork, WeightMoments, fold_draw
from bayesify.moments import Moments


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))


def test_sparse_weights_are_folded_to_the_moments_of_the_model():
    model = bf.convert(network(), bf.SparseSubspace(density=0.5)).eval()
    folded = FoldedNetwork(model, WeightMoments, None)
    names = {name.rpartition(".")[2] for name, _ in folded.named_buffers()}
    assert names == {"mean", "variance"}
    inputs = torch.randn(5, 4)
    with torch.no_grad(), forward_by(model, "moments"):
        expected = model(inputs)
    found = folded(inputs)
    assert isinstance(found, Moments)
    torch.testing.assert_close(found.pair(), expected.pair())
    assert float(found.variance.min()) > 0


def test_a_certain_weight_stays_a_plain_one():
    model = bf.convert(network(), bf.MeanField(where="2")).eval()
    folded = FoldedNetwork(model, WeightMoments, None)
    assert len(folded.weights) == 1
    assert folded.num_random == 12
    assert "network.0.weight" in dict(folded.named_parameters())
    assert "network.2.weight" not in dict(folded.named_parameters())
    certain = FoldedNetwork(bf.convert(network(), bf.PartialBayes(0.0)), WeightMoments, None)
    assert len(certain.weights) == 0
    assert isinstance(certain(torch.randn(3, 4)), torch.Tensor)


def test_a_shared_scale_is_stored_once_for_each_unit():
    model = bf.convert(network(), bf.MeanField(scale="out")).eval()
    folded = FoldedNetwork(model, WeightMoments, None)
    assert folded.weights[0].variance.shape == (6, 1)
    assert folded.weights[0]().variance.shape == (6, 4)


@torch.no_grad()
def test_draws_have_the_posterior_moments():
    for method in (bf.MeanField(initial_std=0.5), bf.MonteCarloKL("radial", initial_std=0.5)):
        model = bf.convert(network(), method).eval()
        weight = fold_draw(model[0].weight_posterior)
        assert isinstance(weight, FamilyDraw) == (method.name == "monte_carlo_kl")
        draws = torch.stack([weight() for _ in range(4000)])
        mean, variance = model[0].weight_posterior.dense_moments()
        # Five standard errors of a mean of 4000; the radial law has a fourth moment below 9.
        assert float((draws.mean(0) - mean).abs().max()) < 5 * 0.5 / 4000**0.5
        ratio = draws.var(0) / variance
        assert float((ratio - 1).abs().max()) < 5 * (9 / 4000) ** 0.5


def test_the_network_is_left_without_a_value_after_a_call():
    model = bf.convert(network(), bf.MeanField()).eval()
    folded = FoldedNetwork(model, fold_draw, None)
    assert not torch.equal(folded(torch.ones(1, 4)), folded(torch.ones(1, 4)))
    assert "weight" not in folded.network[0].__dict__


@torch.no_grad()
def test_draws_of_another_family_leave_certain_entries_alone():
    method = bf.PartialBayes(0.4, score="magnitude", family="laplace", initial_std=0.5)
    posterior = bf.convert(network(), method).eval()[0].weight_posterior
    weight = fold_draw(posterior)
    assert isinstance(weight, FamilyDraw)
    assert weight.positions.dtype == torch.int64
    draws = torch.stack([weight() for _ in range(4000)])
    mean, variance = posterior.dense_moments()
    assert torch.equal(draws.var(0) > 0, variance > 0)
    assert 0 < int((variance > 0).sum()) < variance.numel()
    # Five standard errors; the Laplace law has a fourth moment of 6 squared variances.
    assert float((draws.mean(0) - mean).abs().max()) < 5 * float((variance.max() / 4000).sqrt())
    error = 5 * (5.0 / 4000) ** 0.5
    assert bool(((draws.var(0) - variance).abs() <= error * variance).all())
