import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bayesify as bf


def test_deterministic_predicts_as_the_network() -> None:
    net = nn.Linear(3, 4)
    model = bf.convert(net, bf.Deterministic())
    x = torch.randn(5, 3)
    prediction = bf.predict(model, x, num_samples=30, likelihood="classification")
    torch.testing.assert_close(prediction.probs, net(x).softmax(1))
    assert prediction.num_samples == 1


def test_dropout_samples_differ_while_norms_stay_in_evaluation() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 50), nn.BatchNorm1d(50), nn.Dropout(0.5), nn.Linear(50, 2))
    model = bf.convert(net, bf.MCDropout())
    x = torch.randn(8, 3)
    running = model[1].running_mean.clone()
    prediction = bf.predict(model, x, num_samples=20, likelihood="classification")
    assert (prediction.epistemic > 0).all()
    assert torch.equal(model[1].running_mean, running)
    off = bf.predict(model, x, by="mean", likelihood="classification")
    torch.testing.assert_close(off.probs, net.eval()(x).softmax(1))


def test_dropout_moments_are_those_of_the_rate() -> None:
    model = bf.convert(nn.Sequential(nn.Dropout(0.1), nn.Identity()), bf.MCDropout(rate=0.4))
    x = torch.ones(1, 2000)
    prediction = bf.predict(model, x, num_samples=50, likelihood=bf.GaussianRegression(1.0))
    kept = prediction.samples.ne(0).float().mean().item()
    assert kept == pytest.approx(0.6, abs=4 * (0.24 / 1e5) ** 0.5)


def test_members_start_apart_and_learn_on_their_own() -> None:
    x = torch.randn(40, 3)
    y = (x[:, 0] > 0).long()
    net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    options = {"epochs": 3, "optimizer": "sgd", "learning_rate": 0.1, "progress": False}
    loader = DataLoader(TensorDataset(x, y), 20)
    ensemble = bf.convert(net, bf.DeepEnsemble(num_members=3, seed=4))
    starts = [member[0].weight.clone() for member in ensemble.members]
    assert not torch.equal(starts[0], starts[1])
    alone = bf.convert(ensemble.members[1], bf.Deterministic())
    bf.fit(ensemble, loader, **options)
    bf.fit(alone, loader, **options)
    # Trained together or alone, a member ends in the same place.
    for a, b in zip(ensemble.members[1].parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    prediction = bf.predict(ensemble, x, num_samples=30)
    assert prediction.num_samples == 3
    expected = torch.stack([member(x).softmax(1) for member in ensemble.members]).mean(0)
    torch.testing.assert_close(prediction.probs, expected.detach())


def test_copies_start_at_the_same_weights() -> None:
    net = nn.Linear(3, 2)
    ensemble = bf.convert(net, bf.DeepEnsemble(num_members=2, start="copy"))
    assert all(torch.equal(member.weight, net.weight) for member in ensemble.members)


def test_obstacles_are_named() -> None:
    with pytest.raises(bf.ConversionError, match=r"no nn\.Dropout layer"):
        bf.convert(nn.Linear(2, 2), bf.MCDropout())
    with pytest.raises(bf.ConversionError, match="every dropout layer has rate 0"):
        bf.convert(nn.Sequential(nn.Dropout(0.0)), bf.MCDropout())
    with pytest.raises(ValueError, match=r"rate must lie in \(0, 1\)"):
        bf.MCDropout(rate=1.5)
    with pytest.raises(ValueError, match="num_members must be at least 1"):
        bf.DeepEnsemble(num_members=0)

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))

    with pytest.raises(bf.ConversionError, match="no reset_parameters: use start='copy'"):
        bf.convert(Own(), bf.DeepEnsemble())


def test_dropout_inside_a_transformer_layer_is_sampled() -> None:
    # In evaluation the layer has a fused path that skips the dropout layers it holds.
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.5, batch_first=True)
    x = torch.randn(3, 4, 8)
    with torch.no_grad():
        reference = torch.stack([layer.train()(x) for _ in range(400)]).var(0).mean()
    model = bf.convert(nn.Sequential(layer), bf.MCDropout())
    for memory_limit in (1, None):
        prediction = bf.predict(
            model,
            x,
            num_samples=400,
            likelihood=bf.GaussianRegression(1.0),
            memory_limit=memory_limit,
        )
        assert prediction.epistemic.mean().item() == pytest.approx(reference.item(), rel=0.1)
    assert torch.backends.mha.get_fastpath_enabled()


def test_dropout_between_recurrent_layers_is_sampled() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.GRU(3, 4, num_layers=2, dropout=0.5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layers(x)[1][-1]

    model = bf.convert(Recurrent(), bf.MCDropout(rate=0.3))
    assert model.layers.dropout == 0.3
    x = torch.randn(5, 2, 3)
    with model.bayesify.method.sampling(model.eval(), "sample"):
        assert not torch.equal(model(x), model(x))
    assert torch.equal(model(x), model(x))


def test_ensemble_reports_the_nll_of_one_network() -> None:
    x = torch.randn(40, 3)
    net = nn.Linear(3, 2)
    model = bf.convert(net, bf.DeepEnsemble(num_members=5, start="copy"))
    alone = bf.convert(net, bf.Deterministic())
    loader = DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), 40)
    found, expected = (
        bf.fit(entry, loader, epochs=1, progress=False).last["nll"] for entry in (model, alone)
    )
    assert found == pytest.approx(expected, rel=1e-6)
