"""Factors on propagated variances: what they mend, on examples they were not fitted to."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import bayesify as bf
from bayesify.conversion.posterior import posteriors


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(6, 6, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(6, 3),
    )


def images(number: int, seed: int) -> Tensor:
    return torch.rand(number, 1, 8, 8, generator=torch.Generator().manual_seed(seed))


def median_ratio(model: nn.Module) -> float:
    x, likelihood = images(40, 7), bf.GaussianRegression(1.0)
    found = bf.predict(model, x, by="moments", likelihood=likelihood)
    sampled = bf.predict(
        model, x, by="sample", likelihood=likelihood, num_samples=1500, seed=0, batch_size=40
    )
    return float((found.epistemic / sampled.epistemic).sqrt().median())


def test_pooling_over_shared_weights_is_mended_on_new_examples() -> None:
    model = bf.convert(network(), bf.MeanField(initial_std=0.1))
    raw = median_ratio(model)
    assert raw < 0.8, "where a weight serves 64 positions the raw variance is too small"
    torch.manual_seed(1)
    factors = bf.correct_moments(model, images(32, 3), num_samples=600)
    assert 0.93 < median_ratio(model) < 1.07
    # One use of each weight after the other: nothing to mend in the first layer.
    assert factors["0"] == pytest.approx(1.0, abs=0.1)
    assert factors["4"] > 2.0


def test_a_linear_model_needs_no_factor() -> None:
    torch.manual_seed(0)
    model = bf.convert(nn.Linear(5, 4), bf.MeanField(initial_std=0.3))
    factors = bf.correct_moments(model, torch.randn(200, 5), num_samples=800)
    assert factors == {"": pytest.approx(1.0, abs=0.03)}


def test_it_is_kept_said_and_saved(tmp_path: Path) -> None:
    model = bf.convert(network(), bf.MeanField(initial_std=0.1)).train()
    x = images(4, 5)
    before = bf.predict(model, x, by="moments", likelihood="classification")
    loader = [(images(16, 3), torch.zeros(16, dtype=torch.long))]
    factors = bf.correct_moments(model, loader, num_samples=50)
    assert model.training
    assert {site.how for site in posteriors(model)} == {"sample"}
    assert not any(module._forward_hooks for module in model.modules())
    after = bf.predict(model, x, by="moments", likelihood="classification")
    assert after.made_by == "one pass of means and variances, corrected by module"
    assert not torch.equal(before.variance, after.variance)
    bf.save(model, tmp_path / "model.safetensors")
    loaded = bf.load(tmp_path / "model.safetensors", network())
    assert loaded.bayesify.moment_factors == factors
    again = bf.predict(loaded, x, by="moments", likelihood="classification")
    assert torch.equal(after.probs, again.probs)


def test_one_draw_says_nothing_about_a_variance() -> None:
    model = bf.convert(network(), bf.MeanField())
    with pytest.raises(ValueError, match="num_samples must be at least 2, got 1"):
        bf.correct_moments(model, images(4, 0), num_samples=1)
    with pytest.raises(TypeError, match="model must come from bayesify"):
        bf.correct_moments(network(), images(4, 0))


def test_a_network_without_randomness_has_no_factors() -> None:
    model = bf.convert(network(), bf.PartialBayes(0.0))
    assert bf.correct_moments(model, images(4, 0), num_samples=3) == {}
