"""Predictions from one pass of means and variances, against exact answers and against sampling."""

import pytest
import torch
from torch import Tensor, nn

import bayesify as bf
from bayesify.conversion.posterior import posteriors
from bayesify.moments import MissingRuleError
from bayesify.prediction.by_moments import logit_points


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 40), nn.ReLU(), nn.Linear(40, 30), nn.Tanh(), nn.Linear(30, 4)
    )


def test_a_linear_model_is_exact() -> None:
    torch.manual_seed(0)
    model = bf.convert(nn.Linear(5, 2), bf.MeanField(initial_std=0.3, biases=True))
    x = torch.randn(7, 5)
    found = bf.predict(model, x, by="moments", likelihood=bf.GaussianRegression(0.5))
    variance = model.weight_posterior.dense_variance()
    expected = x.square() @ variance.T + model.bias_posterior.dense_variance()
    torch.testing.assert_close(found.epistemic, expected.detach())
    torch.testing.assert_close(found.aleatoric, torch.full((7, 2), 0.25))
    with bf.mean_weights(model):
        torch.testing.assert_close(found.mean, model(x).detach())
    assert found.num_samples == 0
    assert found.made_by == "one pass of means and variances"


@pytest.mark.parametrize(
    "method",
    [
        bf.MeanField(initial_std=0.05),
        bf.PartialBayes(0.3, score="random", initial_std=0.1),
        bf.SparseSubspace(0.3, initial_std=0.1),
        bf.MonteCarloKL("radial", initial_std=0.05),
        bf.MonteCarloKL("laplace", initial_std=0.05),
        bf.VariationalDropout(),
    ],
    ids=["mean_field", "partial", "sparse", "radial", "laplace", "dropout"],
)
def test_it_agrees_with_sampling(method: bf.Method) -> None:
    model, x = bf.convert(network(), method), torch.randn(20, 6)
    by_moments = bf.predict(model, x, by="moments", likelihood="classification")
    sampled = bf.predict(
        model, x, num_samples=4000, by="sample", likelihood="classification", seed=0
    )
    ratio = (by_moments.std / sampled.std).median()
    assert 0.85 < float(ratio) < 1.15
    assert (by_moments.probs - sampled.probs).abs().max() < 0.02
    together = torch.stack([by_moments.epistemic, sampled.epistemic])
    assert float(torch.corrcoef(together)[0, 1]) > 0.9


def test_without_a_scale_it_is_the_plain_network() -> None:
    net, x = network(), torch.randn(9, 6)
    model = bf.convert(net, bf.PartialBayes(0.0))
    found = bf.predict(model, x, by="moments", likelihood="classification")
    torch.testing.assert_close(found.probs, net(x).softmax(1).detach())
    assert float(found.epistemic.max()) < 1e-6
    small = bf.convert(net, bf.MeanField(initial_std=1e-8))
    found = bf.predict(small, x, by="moments", likelihood="classification")
    torch.testing.assert_close(found.probs, net(x).softmax(1).detach(), rtol=1e-4, atol=1e-6)


def test_probabilities_are_the_average_over_the_logits() -> None:
    torch.manual_seed(1)
    mean, std = 2 * torch.randn(50, 10), torch.full((50, 10), 1.0)
    points = logit_points(mean, 1)
    found = (mean + std * points).softmax(-1).mean(0)
    draws = torch.stack([(mean + std * torch.randn(50, 10)).softmax(-1) for _ in range(20_000)])
    distance = 0.5 * (found - draws.mean(0)).abs().sum(1)
    assert float(distance.mean()) < 0.01
    assert torch.equal(points, logit_points(mean[:3], 1))


def test_classes_may_lie_on_another_axis() -> None:
    model = bf.convert(nn.Conv2d(3, 5, 1), bf.MeanField(initial_std=0.2))
    found = bf.predict(model, torch.randn(2, 3, 4, 6), by="moments", likelihood="classification")
    assert found.probs.shape == (2, 5, 4, 6)
    torch.testing.assert_close(found.probs.sum(1), torch.ones(2, 4, 6))
    nothing = torch.randn(0, 3, 4, 6)
    assert len(bf.predict(model, nothing, by="moments", likelihood="classification")) == 0


def test_a_network_that_predicts_its_noise() -> None:
    torch.manual_seed(0)
    model = bf.convert(nn.Linear(3, 2), bf.MeanField(initial_std=0.3))
    likelihood = bf.GaussianRegression("predicted")
    found = bf.predict(model, torch.randn(4, 3), by="moments", likelihood=likelihood)
    assert found.mean.shape == (4, 1)
    assert bool((found.aleatoric > 0).all())
    assert bool((found.epistemic > 0).all())


class Strange(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.linalg.inv(self.layer(x).diag_embed() + 10 * torch.eye(3)).sum(1)


def test_what_has_no_rule_is_refused_and_the_model_left_as_it_was() -> None:
    model = bf.convert(Strange(), bf.MeanField()).train()
    with pytest.raises(MissingRuleError):
        bf.predict(model, torch.randn(4, 3), by="moments", likelihood="classification")
    assert model.training
    assert {site.how for site in posteriors(model)} == {"sample"}


def test_a_family_without_a_variance_has_no_moments() -> None:
    model = bf.convert(network(), bf.MonteCarloKL("horseshoe", prior="horseshoe"))
    with pytest.raises(ValueError, match="unknown way to predict with monte_carlo_kl 'moments'"):
        bf.predict(model, torch.randn(4, 6), by="moments", likelihood="classification")


def test_evaluate_can_go_by_moments() -> None:
    model = bf.convert(network(), bf.MeanField())
    data = [(torch.randn(30, 6), torch.randint(0, 4, (30,)))]
    bf.fit(model, data, epochs=1, num_data=30, progress=False)
    table = bf.evaluate(model, data, by="moments", progress=False)
    assert 0 <= table["accuracy"] <= 1
