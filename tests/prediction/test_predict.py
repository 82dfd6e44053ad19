"""Prediction: the right average, by every way, on every kind of input."""

import math

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bayesify as bf
from bayesify.conversion.posterior import posteriors


def linear(num_inputs: int = 3, num_outputs: int = 1) -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(num_inputs, num_outputs)


@pytest.mark.parametrize("by", ["sample", "local"])
def test_epistemic_variance_is_the_analytic_one(by: str) -> None:
    model = bf.convert(linear(), bf.MeanField(initial_std=0.3))
    x = torch.tensor([[1.0, 2.0, -1.0], [0.0, 0.5, 0.0]])
    likelihood = bf.GaussianRegression(0.5)
    num_samples = 4000
    prediction = bf.predict(model, x, num_samples=num_samples, by=by, likelihood=likelihood, seed=1)
    variance = 0.3**2 * x.square().sum(1, keepdim=True)
    # The standard error of a Gaussian sample variance is variance · sqrt(2/(T−1)).
    error = 4 * variance * math.sqrt(2 / (num_samples - 1))
    assert ((prediction.epistemic - variance).abs() < error).all()
    mean = model.weight_posterior.mean @ x.T
    expected = (mean.T + model.bias).detach()
    assert ((prediction.mean - expected).abs() < 4 * (variance / num_samples).sqrt()).all()
    torch.testing.assert_close(prediction.aleatoric, torch.full((2, 1), 0.25))
    torch.testing.assert_close(prediction.variance, prediction.epistemic + 0.25)


def test_mean_weights_give_one_certain_prediction() -> None:
    net = linear(3, 4)
    model = bf.convert(net, bf.MeanField())
    x = torch.randn(5, 3)
    prediction = bf.predict(model, x, by="mean", likelihood="classification")
    torch.testing.assert_close(prediction.probs, net(x).softmax(1))
    assert prediction.num_samples == 1
    assert prediction.made_by == "mean weights"
    assert [site.how for site in posteriors(model)] == ["sample"]


@pytest.mark.parametrize("memory_limit", [1, None])
def test_vectorised_draws_have_the_law_of_single_ones(memory_limit: int | None) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2))
    model = bf.convert(net, bf.MeanField(initial_std=0.2))
    x = torch.randn(2, 1, 4, 4)
    prediction = bf.predict(
        model,
        x,
        num_samples=2000,
        likelihood=bf.GaussianRegression(1.0),
        memory_limit=memory_limit,
        seed=0,
    )
    assert ("vectorised" in prediction.made_by) == (memory_limit is None)
    with torch.no_grad():
        reference = torch.stack([model(x) for _ in range(2000)])
    error = (reference.var(0) / 2000 * 2).sqrt()
    assert ((prediction.mean - reference.mean(0)).abs() < 4 * error).all()
    ratio = prediction.epistemic / reference.var(0)
    assert ((ratio - 1).abs() < 4 * math.sqrt(2 * 2 / 1999)).all()


def test_a_draw_is_shared_by_the_whole_batch() -> None:
    model = bf.convert(linear(1, 1), bf.MeanField(initial_std=1.0))
    x = torch.ones(4, 1)
    draws = bf.predict(model, x, num_samples=6, likelihood="regression").samples
    assert torch.equal(draws, draws[:, :1].expand_as(draws))


def test_model_that_cannot_be_vectorised_is_looped_over() -> None:
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.layer(x)
            return y if y.sum().item() > 0 else y * 2

    model = bf.convert(Branching(), bf.MeanField())
    prediction = bf.predict(model, torch.randn(4, 3), likelihood="classification")
    assert prediction.made_by.endswith("one pass per draw (the model cannot be vectorised)")
    assert prediction.num_samples == 30


def test_an_error_of_the_model_itself_is_the_one_that_is_shown() -> None:
    model = bf.convert(linear(), bf.MeanField())
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        bf.predict(model, torch.randn(2, 7), likelihood="classification")


def test_tensor_mapping_tuple_and_loader_agree() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, left: torch.Tensor, right: torch.Tensor | None = None) -> torch.Tensor:
            return self.layer(left if right is None else left + right)

    model = bf.convert(Two(), bf.MeanField())
    x, zero = torch.randn(10, 3), torch.zeros(10, 3)
    options = {"by": "mean", "likelihood": "classification", "batch_size": 4}
    expected = bf.predict(model, x, **options).probs
    for data in (
        {"left": x, "right": zero},
        (x, zero),
        DataLoader(TensorDataset(x, torch.zeros(10)), 3),
        [x],
    ):
        torch.testing.assert_close(bf.predict(model, data, **options).probs, expected)


def test_seed_repeats_and_leaves_the_global_generator_alone() -> None:
    model = bf.convert(linear(3, 2), bf.MeanField())
    x = torch.randn(4, 3)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, second = (
        bf.predict(model, x, likelihood="classification", seed=9).probs for _ in range(2)
    )
    assert torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), before)


def test_modes_and_ways_are_put_back_even_after_an_error() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))
    model = bf.convert(net, bf.MeanField())
    model.train()
    model[1].eval()
    modes = [module.training for module in model.modules()]
    running = model[1].running_mean.clone()
    bf.predict(model, torch.randn(6, 3), by="local", likelihood="classification")
    with pytest.raises(RuntimeError):
        bf.predict(model, torch.randn(6, 9), by="local", likelihood="classification")
    assert [module.training for module in model.modules()] == modes
    assert all(site.how == "sample" for site in posteriors(model))
    assert torch.equal(model[1].running_mean, running)


@pytest.mark.parametrize("count", [0, 1])
def test_empty_and_single_batches(count: int) -> None:
    model = bf.convert(linear(3, 2), bf.MeanField())
    prediction = bf.predict(model, torch.randn(count, 3), likelihood="classification")
    assert prediction.probs.shape == (count, 2)
    assert (
        len(bf.predict(model, torch.randn(count, 3), num_samples=1, likelihood="regression"))
        == count
    )


def test_predictions_hold_no_graph() -> None:
    model = bf.convert(linear(3, 1), bf.MeanField())
    prediction = bf.predict(model, torch.randn(2, 3), likelihood="regression")
    assert not prediction.mean.requires_grad
    assert not prediction.aleatoric.requires_grad


def test_mistakes_are_explained() -> None:
    model = bf.convert(linear(), bf.MeanField())
    x = torch.randn(2, 3)
    with pytest.raises(ValueError, match="likelihood must be given"):
        bf.predict(model, x)
    with pytest.raises(ValueError, match="unknown way to predict with mean_field 'moment'"):
        bf.predict(model, x, by="moment", likelihood="regression")
    with pytest.raises(ValueError, match="num_samples must be at least 1"):
        bf.predict(model, x, num_samples=0, likelihood="regression")
    with pytest.raises(TypeError, match=r"must come from bayesify\.convert"):
        bf.predict(linear(), x)


def test_named_likelihood_keeps_what_fit_learned() -> None:
    x = torch.randn(64, 1)
    model = bf.convert(linear(1, 1), bf.MeanField())
    loader = DataLoader(TensorDataset(x, x + 0.1 * torch.randn(64, 1)), 64)
    bf.fit(model, loader, epochs=3, progress=False)
    learned, named = (
        bf.predict(model, x, num_samples=2, likelihood=entry).aleatoric
        for entry in (None, "regression")
    )
    assert torch.equal(learned, named)


def test_model_trained_in_true_bfloat16_predicts_float32_inputs() -> None:
    x = torch.randn(16, 3)
    loader = DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), 8)
    model = bf.convert(linear(3, 2), bf.MeanField())
    bf.fit(model, loader, epochs=1, precision="bf16-true", progress=False)
    assert bf.predict(model, x).probs.dtype == torch.float32


def test_list_of_batches_is_a_loader_as_it_is_for_fit() -> None:
    model = bf.convert(linear(3, 2), bf.MeanField())
    x = torch.randn(6, 3)
    batches = [(x[:4], torch.zeros(4)), (x[4:], torch.zeros(2))]
    options = {"by": "mean", "likelihood": "classification"}
    found, expected = (bf.predict(model, data, **options).probs for data in (batches, x))
    torch.testing.assert_close(found, expected)


def test_data_of_the_wrong_kind_is_explained() -> None:
    model = bf.convert(linear(3, 2), bf.MeanField())
    x = torch.randn(4, 3)
    for data in (x.numpy(), TensorDataset(x), 3):
        with pytest.raises(TypeError, match=r"data must be a tensor.* DataLoader"):
            bf.predict(model, data, likelihood="classification")
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        bf.predict(model, x, batch_size=0, likelihood="classification")


def test_attention_is_drawn_without_a_warning():
    # On a CPU torch has no rule to carry several draws through it: it loops and would warn.
    model = bf.convert(
        bf.build_model("text_transformer", vocabulary_size=20, length=6),
        bf.MeanField(where="block.attention"),
    )
    words = torch.randint(2, 20, (5, 6))
    prediction = bf.predict(model, words, num_samples=3, likelihood="classification")
    assert prediction.probs.shape == (5, 2)
    assert "vectorised" in prediction.made_by
