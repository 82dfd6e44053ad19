"""Training through moments: the known posterior, no noise where there need be none, every layer."""

from pathlib import Path

import pytest
import torch
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import bayesify as bf
from bayesify.conversion.posterior import posteriors


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 3))


def batches(size: int = 120) -> DataLoader:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(size, 6, generator=generator)
    return DataLoader(TensorDataset(x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long()), 30)


@pytest.mark.parametrize("rules", ["exact", "taylor"])
def test_fit_finds_the_mean_field_optimum_of_a_linear_model(rules: str) -> None:
    """No weight is drawn and a squared error needs no draw of the outputs: it is found exactly."""
    torch.manual_seed(0)
    noise, prior_std, num_data = 0.5, 1.5, 64
    x = torch.randn(num_data, 3) @ torch.tensor([[1.0, 0.4, 0.0], [0, 1, -0.3], [0, 0, 0.8]])
    y = x @ torch.tensor([[0.8], [-1.2], [0.3]]) + noise * torch.randn(num_data, 1)
    precision = (x.T @ x / noise**2 + torch.eye(3) / prior_std**2).double()
    mean = torch.linalg.solve(precision, (x.T @ y).double() / noise**2).T
    method = bf.MomentPropagation(prior_std, initial_std=0.05, rules=rules)
    model = bf.convert(nn.Linear(3, 1, bias=False), method)
    likelihood = bf.GaussianRegression(noise)
    loader = DataLoader(TensorDataset(x, y), num_data)
    options = {"learning_rate": 3e-2, "scale_learning_rate": 3e-2, "progress": False}
    bf.fit(model, loader, epochs=1200, likelihood=likelihood, **options)
    site = model.weight_posterior
    torch.testing.assert_close(site.mean.detach().double(), mean, rtol=1e-3, atol=1e-3)
    ratio = site.dense_variance().detach().double() * precision.diagonal()
    torch.testing.assert_close(ratio, torch.ones_like(ratio), rtol=1e-3, atol=1e-3)


def expected_nll(method: bf.MomentPropagation, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    likelihood = model.bayesify.likelihood
    return method.nll(model, lambda: model(x), lambda output, **_: likelihood.nll(output, y))


def test_a_squared_error_has_no_noise_in_its_gradient() -> None:
    method = bf.MomentPropagation()
    model = bf.convert(network(), method)
    model.bayesify.likelihood = bf.GaussianRegression(0.3)
    x, y = torch.randn(8, 6), torch.randn(8, 3)
    gradients = [
        torch.autograd.grad(expected_nll(method, model, x, y), list(model.parameters()))
        for _ in range(2)
    ]
    for first, second in zip(*gradients, strict=True):
        assert torch.equal(first, second)
        assert bool((first != 0).any())


def test_the_nll_of_classes_is_the_average_over_drawn_weights() -> None:
    torch.manual_seed(0)
    method = bf.MomentPropagation(initial_std=0.15, num_logits=64)
    model = bf.convert(network(), method)
    model.bayesify.likelihood = bf.Classification()
    x, y = torch.randn(40, 6), torch.randint(0, 3, (40,))
    with torch.no_grad():
        by_moments = torch.stack([expected_nll(method, model, x, y) for _ in range(40)])
        drawn = torch.stack([nn.functional.cross_entropy(model(x), y) for _ in range(6000)])
    # The rules take units as uncorrelated, which costs a little beside the error of sampling.
    error = float(drawn.std() / 6000**0.5 + by_moments.std() / 40**0.5)
    assert abs(float(by_moments.mean() - drawn.mean())) < 4 * error + 0.01 * float(drawn.mean())
    with torch.no_grad(), bf.mean_weights(model):
        plain = nn.functional.cross_entropy(model(x), y)
    assert float(drawn.mean() - plain) > 0.05, "the variance must count for the test to tell"


@pytest.mark.parametrize("scale", ["weight", "out"])
@pytest.mark.parametrize("rules", ["exact", "taylor", "pooled"])
def test_it_learns_and_is_read_by_moments(rules: str, scale: str) -> None:
    method = bf.MomentPropagation(0.5, rules=rules, scale=scale)
    model = bf.convert(network(), method)
    before = [value.detach().clone() for value in model.parameters()]
    history = bf.fit(
        model, batches(), batches(), epochs=20, beta=0.05, learning_rate=0.02, progress=False
    )
    assert history.last["accuracy"] > 0.85
    assert history.last["val_nll"] < history.rows[0]["val_nll"]
    for old, new in zip(before, model.parameters(), strict=True):
        assert not torch.equal(old, new)
    found = bf.predict(model, torch.randn(5, 6))
    assert found.made_by == "one pass of means and variances"
    assert bool((found.epistemic > 0).all())
    assert bf.predict(model, torch.randn(5, 6), by="sample", num_samples=3).num_samples == 3


def test_convolutions_norms_and_pooling_train_through_moments() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64, 2),
    )
    x = torch.randn(60, 1, 8, 8)
    loader = DataLoader(TensorDataset(x, (x.mean((1, 2, 3)) > 0).long()), 20)
    model = bf.convert(net, bf.MomentPropagation(0.5))
    history = bf.fit(model, loader, epochs=8, beta=0.01, learning_rate=0.01, progress=False)
    assert history.last["nll"] < 0.7 * history.rows[0]["nll"]
    assert bool((model[1].running_var != 1).all())


def test_attention_trains_through_moments() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    net = nn.Sequential(layer, nn.Flatten(), nn.Linear(40, 2))
    x = torch.randn(40, 5, 8)
    loader = DataLoader(TensorDataset(x, (x[:, 0, 0] > 0).long()), 20)
    model = bf.convert(net, bf.MomentPropagation(0.5))
    history = bf.fit(model, loader, epochs=10, beta=0.01, learning_rate=0.01, progress=False)
    assert history.last["nll"] < history.rows[0]["nll"]
    assert bf.predict(model, x[:3]).probs.shape == (3, 2)


def test_a_file_and_a_resumed_run(tmp_path: Path) -> None:
    method = bf.MomentPropagation(0.5, num_logits=4)
    options = {"learning_rate": 0.01, "seed": 0, "progress": False}
    whole = bf.convert(network(), method)
    bf.fit(whole, batches(), epochs=4, run_dir=tmp_path / "whole", **options)
    part = bf.convert(network(), method)
    bf.fit(part, batches(), epochs=2, run_dir=tmp_path / "part", schedule="constant", **options)
    again = bf.convert(network(), method)
    bf.fit(again, batches(), epochs=2, run_dir=tmp_path / "part", resume=True, **options)
    for first, second in zip(part.parameters(), again.parameters(), strict=True):
        assert torch.equal(first, second)
    bf.save(whole, tmp_path / "model.safetensors")
    loaded = bf.load(tmp_path / "model.safetensors", network())
    x = torch.randn(4, 6)
    assert torch.equal(bf.predict(whole, x).probs, bf.predict(loaded, x).probs)
    assert loaded.bayesify.method == method


def test_rules_of_the_method_are_put_back() -> None:
    from bayesify.moments.moments import current_rules

    model = bf.convert(network(), bf.MomentPropagation(rules="taylor"))
    bf.predict(model, torch.randn(2, 6), likelihood="classification")
    assert current_rules() == "exact"
    assert {site.how for site in posteriors(model)} == {"sample"}


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(
        ValueError, match="rules must be one of 'exact', 'taylor', 'shared', 'pooled', got 'best'"
    ):
        bf.MomentPropagation(rules="best")
    with pytest.raises(ValueError, match="num_logits must be a whole number >= 1, got 0"):
        bf.MomentPropagation(num_logits=0)


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 20), nn.Linear(20, 3)

    def forward(self, x: Tensor) -> Tensor:
        run = torch.utils.checkpoint.checkpoint
        return self.last(run(lambda x: torch.relu(self.first(x)), x, use_reentrant=False))


def test_a_gradient_checkpoint_repeats_the_moments() -> None:
    torch.manual_seed(0)
    net = Checkpointed()
    plain = nn.Sequential(net.first, nn.ReLU(), net.last)
    x, y = torch.randn(8, 6), torch.randn(8, 3)
    method, gradients = bf.MomentPropagation(initial_std=0.2), []
    for each in (net, plain):
        model = bf.convert(each, method)
        model.bayesify.likelihood = bf.GaussianRegression(0.3)
        expected_nll(method, model, x, y).backward()
        gradients.append([value.grad for value in model.parameters()])
    for first, second in zip(*gradients, strict=True):
        torch.testing.assert_close(first, second)
