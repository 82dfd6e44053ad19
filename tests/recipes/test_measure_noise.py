"""Noise, pruning and explanations of a study: every number is one that was found by hand."""

import json

import pytest
import torch
from torch import nn

import bayesify as bf
from bayesify.compression import compress
from bayesify.data import loader
from bayesify.data.noisy import noisy
from bayesify.recipes.measure import measures
from bayesify.recipes.measure_noise import measure_noise
from bayesify.recipes.recipe import make_recipe
from bayesify.recipes.run import Parts, build

TABLES = {
    "model": {"name": "mlp", "hidden": [16]},
    "data": {"name": "digits", "batch_size": 150, "validation": 0},
    "method": {"name": "moment_propagation", "prior_std": 0.5},
    "fit": {"epochs": 6, "learning_rate": 0.01, "progress": False, "accelerator": "cpu"},
    "seed": 3,
}


def trained(**changes: object) -> Parts:
    parts = build(make_recipe(TABLES, changes))
    bf.fit(parts.model, parts.train, **vars(parts.recipe.settings()))
    return parts


@pytest.fixture(scope="module")
def parts() -> Parts:
    return trained()


@pytest.fixture(scope="module")
def plain() -> Parts:
    return trained(method={"name": "deterministic"})


def accuracy(model: nn.Module, data) -> float:
    found = bf.predict(model, loader(data, 150), seed=3, likelihood="classification")
    return float((found.classes == data.targets).float().mean())


def test_it_is_found_under_its_kind() -> None:
    assert measures["noise"] is measure_noise


def test_scores_under_noise_are_those_of_noisy_data(parts: Parts) -> None:
    found = measure_noise(parts, {"decibels": [-6, 20]})
    assert json.loads(json.dumps(found)) == found
    assert found["scores"]["accuracy"] == pytest.approx(accuracy(parts.model, parts.data.test))
    for row in found["noisy"]:
        spoiled = noisy(parts.data.test, row["decibels"])
        assert row["accuracy"] == pytest.approx(accuracy(parts.model, spoiled))
    loud, quiet = found["noisy"]
    assert loud["accuracy"] < quiet["accuracy"]
    assert (found["pruned"], found["explained"]) == ([], None)


def test_class_variance_is_that_of_the_logit_of_the_predicted_class(parts: Parts) -> None:
    (row,) = measure_noise(parts, {"decibels": [1]})["noisy"]
    images, _ = noisy(parts.data.test, 1).__getitems__(list(range(len(parts.data.test))))
    with parts.model.bayesify.method.sampling(parts.model, "moments"), torch.no_grad():
        mean, variance = parts.model(images).pair()
    expected = variance[torch.arange(len(mean)), mean.argmax(1)].mean()
    assert row["class_variance"] == pytest.approx(float(expected), rel=1e-5)


def test_probability_variance_is_that_of_the_softmax_of_the_logits(parts: Parts) -> None:
    (row,) = measure_noise(parts, {"decibels": [1]})["noisy"]
    images, _ = noisy(parts.data.test, 1).__getitems__(list(range(len(parts.data.test))))
    with parts.model.bayesify.method.sampling(parts.model, "moments"), torch.no_grad():
        mean, variance = parts.model(images).pair()
    draws = (mean + variance.sqrt() * torch.randn(4000, *mean.shape)).softmax(-1)
    likeliest = draws.mean(0).argmax(1)
    spread = draws.var(0)[torch.arange(len(mean)), likeliest]
    # 256 points of a sequence, which know a variance to some per cent, one by one.
    assert row["probability_variance"] == pytest.approx(float(spread.mean()), rel=0.03)


def test_pruning_keeps_the_largest_means(parts: Parts) -> None:
    found = measure_noise(parts, {"decibels": [], "keep": [1.0, 0.3, 0.02]})
    first, second, third = found["pruned"]
    assert first["accuracy"] == found["scores"]["accuracy"]
    small = compress(parts.model, by="magnitude", keep=0.3, shrink=False)
    assert second["accuracy"] == pytest.approx(accuracy(small, parts.data.test))
    assert third["accuracy"] < second["accuracy"]


def test_plain_network_has_no_variance_and_is_pruned_by_its_weights(plain: Parts) -> None:
    found = measure_noise(plain, {"decibels": [5], "keep": [1.0, 0.02]})
    assert found["noisy"][0]["class_variance"] is None
    assert found["noisy"][0]["probability_variance"] is None
    whole, small = found["pruned"]
    assert whole["accuracy"] == pytest.approx(found["scores"]["accuracy"])
    assert small["accuracy"] < whole["accuracy"]


def test_explanations_are_measured_where_captum_is(parts: Parts, monkeypatch) -> None:
    found = measure_noise(parts, {"decibels": [], "num_explained": 3})["explained"]
    assert found["infidelity"] > 0
    assert found["sensitivity"] > 0
    monkeypatch.setattr("bayesify.recipes.measure_noise.find_spec", lambda name: None)
    with pytest.warns(UserWarning, match="captum is not installed"):
        assert measure_noise(parts, {"decibels": [], "num_explained": 3})["explained"] is None


def test_the_first_examples_are_measured_where_only_some_are_wanted(parts: Parts) -> None:
    found = measure_noise(parts, {"decibels": [3], "num_images": 40})
    some = parts.data.test.select(torch.arange(40))
    assert found["scores"]["accuracy"] == pytest.approx(accuracy(parts.model, some))
    spoiled = noisy(some, 3)
    assert found["noisy"][0]["accuracy"] == pytest.approx(accuracy(parts.model, spoiled))
