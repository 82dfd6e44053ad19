"""Confidence sets of a study: one pass over the test set, everything ready for JSON."""

import json
import math
from dataclasses import replace

import pytest
import torch
from torch import nn

import bayesify as bf
from bayesify.conversion.posterior import posteriors
from bayesify.data import TensorData, loader
from bayesify.evaluation.confidence_set import confidence_sets
from bayesify.recipes.measure import measures
from bayesify.recipes.measure_confidence import (
    best_kl,
    kl_estimate_std,
    mean_std,
    measure_confidence,
)
from bayesify.recipes.recipe import make_recipe
from bayesify.recipes.run import Parts, build

TABLES = {
    "model": {"name": "mlp", "hidden": [16]},
    "data": {"name": "digits", "batch_size": 150, "validation": 0},
    "method": {"name": "mean_field", "prior_std": 0.5},
    "fit": {"epochs": 6, "learning_rate": 0.01, "progress": False, "accelerator": "cpu"},
    "seed": 3,
}


def trained(**changes: object) -> Parts:
    parts = build(make_recipe(TABLES, changes))
    settings = vars(parts.recipe.settings())
    bf.fit(parts.model, parts.train, **settings)
    return parts


@pytest.fixture(scope="module")
def parts() -> Parts:
    return trained()


class CountedData(TensorData):
    """Data that remember how many examples each read asked for."""

    def __init__(self, data: TensorData) -> None:
        super().__init__(data.inputs, data.targets, data.transform)
        self.reads: list[int] = []

    def __getitems__(self, indices):
        self.reads.append(len(indices))
        return super().__getitems__(indices)


def counted(parts: Parts) -> tuple[Parts, list[int]]:
    data = CountedData(parts.data.test)
    return replace(parts, data=replace(parts.data, test=data)), data.reads


def test_it_is_found_under_its_kind() -> None:
    assert measures["confidence"] is measure_confidence


def test_scores_and_sets_are_those_of_one_prediction(parts: Parts) -> None:
    levels = [0.5, 0.9, 1.0]
    found = measure_confidence(parts, {"num_samples": 12, "levels": levels})
    data = parts.data.test
    prediction = bf.predict(parts.model, loader(data, 150), num_samples=12, seed=3)
    expected = confidence_sets(prediction, data.targets, levels)
    assert found["num_samples"] == 12
    assert found["sets"]["level"] == levels
    assert found["sets"]["accuracy"] == [each.accuracy for each in expected]
    assert found["sets"]["size"] == [each.size for each in expected]
    right = (prediction.classes == data.targets).double().mean()
    assert found["scores"]["accuracy"] == pytest.approx(float(right))
    assert found["scores"].keys() == {"accuracy", "nll", "brier", "ece"}
    # Trained for a while, so that the sets say something.
    assert found["scores"]["accuracy"] > 0.8
    assert found["sets"]["accuracy"][2] > found["sets"]["accuracy"][0]
    assert found["sets"]["size"][2] < found["sets"]["size"][0]


def test_it_is_the_same_each_time_and_can_be_written(parts: Parts) -> None:
    first, second = (measure_confidence(parts, {"num_samples": 5}) for _ in range(2))
    assert first == second
    assert json.loads(json.dumps(first, allow_nan=False)) == first
    assert first["sets"]["level"] == [0.5, 0.6, 0.7, 0.8, 0.9, 1.0]


def test_every_example_is_read_once_in_batches_of_the_recipe_or_as_told(parts: Parts) -> None:
    for options, expected in (({}, [150, 150, 60]), ({"batch_size": 200}, [200, 160])):
        watched, reads = counted(parts)
        measure_confidence(watched, {"num_samples": 3, **options})
        assert reads == expected


def test_an_empty_set_has_no_accuracy() -> None:
    noisy = trained(fit={"epochs": 1})
    for site in posteriors(noisy.model):
        site.rho.data.fill_(5.0)  # so much noise that no two draws agree for long
    sets = measure_confidence(noisy, {"num_samples": 60, "levels": [0.0, 1.0]})["sets"]
    assert (sets["accuracy"][1], sets["size"][1]) == (None, 0.0)
    assert sets["size"][0] == 1.0


def test_a_network_without_a_posterior_agrees_with_itself() -> None:
    plain = trained(method={"name": "deterministic"})
    found = measure_confidence(plain, {"num_samples": 9, "levels": [1.0], "by": "sample"})
    assert (found["num_samples"], found["kl"], found["mean_std"]) == (1, 0.0, None)
    assert found["kl_estimate_std"] == 0.0
    assert found["sets"]["size"] == [1.0]
    assert found["sets"]["accuracy"] == pytest.approx([found["scores"]["accuracy"]])


def test_a_slip_in_the_options_is_named(parts: Parts) -> None:
    with pytest.raises(TypeError, match="num_sample"):
        measure_confidence(parts, {"num_sample": 3})
    with pytest.raises(ValueError, match=r"levels must lie in \[0, 1\], got 50"):
        measure_confidence(parts, {"num_samples": 1, "levels": [50]})


@pytest.mark.parametrize("scale", ["weight", "out"])
def test_mean_std_counts_every_weight_once(scale: str) -> None:
    net = nn.Sequential(nn.Linear(2, 5), nn.Linear(5, 3))
    model = bf.convert(net, bf.MeanField(initial_std=0.25, scale=scale))
    second = posteriors(model)[1]
    second.rho.data.fill_(math.log(math.expm1(0.5)))
    # 10 weights of 0.25 and 15 of 0.5.
    assert mean_std(model) == pytest.approx((10 * 0.25 + 15 * 0.5) / 25, rel=1e-6)


def test_the_kl_is_exact_however_it_was_estimated_in_training() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(20, 30), nn.Linear(30, 2))
    models = {
        name: bf.convert(
            net, bf.MonteCarloKL(estimator=name, num_samples=2, initial_std=0.05, prior="normal")
        )
        for name in ("closed", "repar")
    }
    exact = bf.kl(models["closed"]).item()
    assert best_kl(models["closed"]) == pytest.approx(exact, rel=1e-6)
    assert best_kl(models["repar"]) == pytest.approx(exact, rel=1e-6)
    assert kl_estimate_std(models["closed"]) == 0.0
    assert kl_estimate_std(models["repar"]) > 0.0


def test_a_kl_that_is_not_finite_is_not_written() -> None:
    model = bf.convert(nn.Linear(2, 2), bf.MeanField())
    posteriors(model)[0].mean.data.fill_(math.inf)
    assert best_kl(model) is None
    assert kl_estimate_std(model) is None
