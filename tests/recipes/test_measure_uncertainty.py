"""Uncertainty of a study: every number is that of a prediction made by hand, ready for JSON."""

import copy
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import bayesify as bf
from bayesify.compression import compress, count_flops
from bayesify.conversion.posterior import posteriors
from bayesify.data import DataSet, Normalise, TensorData, load_dataset, loader
from bayesify.data.corruption import STANDARD, corrupted
from bayesify.data.fitted import fitted
from bayesify.evaluation.detection import detect
from bayesify.evaluation.evaluate import summarise
from bayesify.models.catalogue import models
from bayesify.prediction import Predictive
from bayesify.recipes.measure import measures
from bayesify.recipes.measure_uncertainty import measure_uncertainty
from bayesify.recipes.ood import make_ood
from bayesify.recipes.recipe import make_recipe
from bayesify.recipes.run import Parts, build

SCORES = ("accuracy", "nll", "brier", "ece", "marginal_calibration_error")
TABLES = {
    "model": {"name": "mlp", "hidden": [16]},
    "data": {"name": "digits", "batch_size": 150, "validation": 0},
    "method": {"name": "mean_field", "prior_std": 0.5},
    "fit": {"epochs": 6, "learning_rate": 0.01, "progress": False, "accelerator": "cpu"},
    "seed": 3,
}
SPARSE = {"density": 0.2, "first_dense": False, "interval": 7, "prior_std": 0.5}
SAMPLES = {"num_samples": 5}


def trained(**changes: object) -> Parts:
    parts = build(make_recipe(TABLES, changes))
    bf.fit(parts.model, parts.train, **vars(parts.recipe.settings()))
    return parts


@pytest.fixture(scope="module")
def parts() -> Parts:
    return trained()


@pytest.fixture(scope="module")
def sparse() -> Parts:
    return trained(method={"name": "sparse_subspace", **SPARSE})


@pytest.fixture(scope="module")
def colour() -> Parts:
    """Small colour images of bytes, in which the brightest channel is the class."""
    generator = torch.Generator().manual_seed(0)
    targets = torch.arange(240) % 3
    pixels = torch.randint(0, 120, (240, 3, 12, 12), generator=generator)
    pixels[torch.arange(240), targets] += 40
    every = TensorData(pixels.to(torch.uint8), targets, Normalise((0.3,) * 3, (0.2,) * 3))
    train, test = every.select(torch.arange(120)), every.select(torch.arange(120, 240))
    data = DataSet("colours", train, test, "classification", 3)
    recipe = make_recipe(TABLES).with_model_options({"in_features": 432, "out_features": 3})
    net = models["mlp"](**recipe.options("model"))
    model = bf.convert(net, recipe.make_method())
    found = Parts(recipe, data, loader(train, 20, shuffle=True), None, model)
    bf.fit(model, found.train, **vars(recipe.settings()))
    return found


def predicted(model: nn.Module, data: TensorData, num_samples: int = 5) -> Predictive:
    return bf.predict(model, loader(data, 150), num_samples=num_samples, seed=3)


def scored(found: Predictive, targets: Tensor) -> dict[str, float]:
    return summarise([(found, targets)], metrics=SCORES).to_dict()["metrics"]


def test_it_is_found_under_its_kind() -> None:
    assert measures["uncertainty"] is measure_uncertainty


def test_scores_are_those_of_evaluate_on_the_same_seed(parts: Parts) -> None:
    found = measure_uncertainty(parts, SAMPLES)
    torch.manual_seed(3)
    table = bf.evaluate(
        parts.model,
        loader(parts.data.test, 150),
        num_samples=5,
        metrics=SCORES,
        progress=False,
    )
    assert found["scores"] == table.to_dict()["metrics"]
    assert found["num_samples"] == 5
    assert found["weights"] == {"all": 1184, "live": 1184, "random": 1184}
    # Trained for a while, so that the scores say something.
    assert found["scores"]["accuracy"] > 0.8
    assert found["kl"] > 0
    assert found["mean_std"] > 0


def test_only_what_was_asked_for_is_measured(parts: Parts) -> None:
    found = measure_uncertainty(parts, SAMPLES)
    assert (found["ood"], found["corrupted"], found["pruned"]) == ({}, {}, [])
    assert not {"files", "flops"} & found.keys()


def test_it_is_the_same_each_time_and_can_be_written(parts: Parts) -> None:
    options = {**SAMPLES, "ood": ["noise"], "keep": [0.5], "files": True, "flops": True}
    first, second = (measure_uncertainty(parts, options) for _ in range(2))
    assert first == second
    assert json.loads(json.dumps(first, allow_nan=False)) == first


def test_a_batch_is_as_large_as_told(parts: Parts) -> None:
    # Draws are made anew for each batch, so its size shows in the last digits.
    found = measure_uncertainty(parts, {**SAMPLES, "batch_size": 40})["scores"]
    prediction = bf.predict(parts.model, loader(parts.data.test, 40), num_samples=5, seed=3)
    assert found == scored(prediction, parts.data.test.targets)
    assert found != measure_uncertainty(parts, SAMPLES)["scores"]


def test_a_variant_of_the_test_set_is_a_stranger(parts: Parts) -> None:
    data = parts.data.test
    found = measure_uncertainty(parts, {**SAMPLES, "ood": ["shuffled", "noise"]})["ood"]
    assert list(found) == ["shuffled", "noise"]
    for name, measured in found.items():
        strange = make_ood(data, name, seed=3)
        assert measured == detect(predicted(parts.model, data), predicted(parts.model, strange))
    assert found["shuffled"]["entropy"]["auroc"] > 0.7


def test_another_data_set_is_fitted_and_read_as_the_own_is(colour: Parts) -> None:
    found = measure_uncertainty(colour, {**SAMPLES, "ood": ["digits"]})["ood"]["digits"]
    data = colour.data.test
    strange = fitted(load_dataset("digits").test, (3, 12, 12)).with_transform(data.transform)
    assert found == detect(predicted(colour.model, data), predicted(colour.model, strange))


def test_the_own_data_set_is_no_stranger(parts: Parts) -> None:
    found = measure_uncertainty(parts, {**SAMPLES, "ood": ["digits"]})["ood"]["digits"]
    assert found["entropy"]["auroc"] == pytest.approx(0.5)


def test_a_network_that_diverged_can_be_written() -> None:
    broken = build(make_recipe(TABLES))
    bf.fit(broken.model, broken.train, **vars(broken.recipe.settings()) | {"epochs": 1})
    for site in posteriors(broken.model):
        site.mean.data.fill_(math.nan)
    found = measure_uncertainty(broken, {**SAMPLES, "ood": ["shuffled"]})
    assert found["ood"]["shuffled"]["entropy"] == {"auroc": None, "aupr": None, "fpr95": None}
    assert found["scores"]["nll"] is None
    json.dumps(found, allow_nan=False)


def test_images_are_spoiled_as_often_and_as_badly_as_told(colour: Parts) -> None:
    options = {**SAMPLES, "corruptions": ["gaussian_noise", "contrast"], "severities": [1, 5]}
    found = measure_uncertainty(colour, options)["corrupted"]
    assert list(found) == ["gaussian_noise", "contrast"]
    data = colour.data.test
    for name, rows in found.items():
        for row, severity in zip(rows, (1, 5), strict=True):
            prediction = predicted(colour.model, corrupted(data, name, severity, seed=3))
            assert row == {"severity": severity, **scored(prediction, data.targets)}
    mild, bad = found["gaussian_noise"]
    assert bad["nll"] > mild["nll"]


def test_as_many_images_are_spoiled_as_told(colour: Parts) -> None:
    data = colour.data.test
    for num, seen in ((30, 30), (10_000, 120)):
        options = {**SAMPLES, "corruptions": ["fog"], "severities": [3], "num_corrupted": num}
        ((row,),) = measure_uncertainty(colour, options)["corrupted"].values()
        few = corrupted(data.select(torch.arange(seen)), "fog", 3, seed=3)
        assert row == {"severity": 3, **scored(predicted(colour.model, few), data.targets[:seen])}


def test_corruptions_may_be_named_together_or_one_alone(colour: Parts) -> None:
    options = {"num_samples": 1, "severities": [1], "num_corrupted": 4}
    found = measure_uncertainty(colour, {**options, "corruptions": "standard"})["corrupted"]
    assert tuple(found) == STANDARD
    assert len(STANDARD) == 15
    alone = measure_uncertainty(colour, {**options, "corruptions": "fog"})["corrupted"]
    assert alone == {"fog": found["fog"]}
    with pytest.raises(LookupError, match="fog"):
        measure_uncertainty(colour, {**options, "corruptions": "fogg"})


def test_the_trained_network_is_pruned_by_its_share_and_left_alone(parts: Parts) -> None:
    before = copy.deepcopy(parts.model.state_dict())
    found = measure_uncertainty(parts, {**SAMPLES, "keep": [0.5, 0.02]})["pruned"]
    assert [each["keep"] for each in found] == [0.5, 0.02]
    data = parts.data.test
    for each in found:
        small = compress(parts.model, by="snr", keep=each["keep"], shrink=False)
        assert each["scores"] == scored(predicted(small, data), data.targets)
    whole = measure_uncertainty(parts, SAMPLES)["scores"]["nll"]
    half, little = (each["scores"]["nll"] for each in found)
    assert whole < half < little
    after = parts.model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(value, after[key]) for key, value in before.items())


def test_file_sizes_are_those_of_saved_files(sparse: Parts, tmp_path: Path) -> None:
    files = measure_uncertainty(sparse, {**SAMPLES, "files": True})["files"]
    options = sparse.recipe.options("model")
    dense = bf.convert(models["mlp"](**options), bf.MeanField(initial_std=0.01))
    model = copy.deepcopy(sparse.model)
    for name, each in (
        ("dense", dense),
        ("float32", model),
        ("bfloat16", copy.deepcopy(model).bfloat16()),
    ):
        path = tmp_path / name
        bf.save(each, path, architecture="mlp", options=options)
        assert files[f"{name}_bytes"] == path.stat().st_size
    for name in ("float32", "bfloat16"):
        assert files[f"{name}_ratio"] == files[f"{name}_bytes"] / files["dense_bytes"]
    assert files["bfloat16_ratio"] < files["float32_ratio"] < 1


def test_bfloat16_scores_are_those_of_the_rounded_network(sparse: Parts) -> None:
    found = measure_uncertainty(sparse, {**SAMPLES, "files": True})
    data, rounded = sparse.data.test, copy.deepcopy(sparse.model).bfloat16().float()
    assert found["files"]["bfloat16_scores"] == scored(predicted(rounded, data), data.targets)
    assert found["files"]["bfloat16_scores"]["nll"] != found["scores"]["nll"]
    # The network itself is not rounded.
    assert {each.dtype for each in sparse.model.parameters()} == {torch.float32}
    assert found["scores"] == scored(predicted(sparse.model, data), data.targets)


def test_flops_are_counted_and_averaged_over_steps_that_look_at_all_weights(
    parts: Parts, sparse: Parts
) -> None:
    for each in (parts, sparse):
        found = measure_uncertainty(each, {"num_samples": 1, "flops": True})["flops"]
        counted = count_flops(each.model, each.data.test[0][0][None])
        is_sparse = each is sparse
        assert found == {
            "inference": counted.inference,
            "dense_inference": 2 * 1184,
            "training": counted.average_training(7) if is_sparse else counted.training,
            "dense_training": counted.dense_training,
        }
        assert (found["inference"] < 0.25 * found["dense_inference"]) == is_sparse


@pytest.mark.parametrize("method", [{"name": "deterministic"}, {"name": "rigl", **SPARSE}])
def test_a_network_without_scales_predicts_once(method: dict[str, object]) -> None:
    fixed = trained(method=method)
    options = {"num_samples": 9, "by": "sample", "ood": ["noise"], "files": True, "flops": True}
    found = measure_uncertainty(fixed, options)
    assert (found["num_samples"], found["kl"], found["mean_std"]) == (1, 0.0, None)
    assert found["weights"]["random"] == 0
    assert found["scores"] == scored(predicted(fixed.model, fixed.data.test), _targets(fixed))
    # Without scales a file is half of one with them, and a sparse one smaller still.
    is_sparse = method["name"] == "rigl"
    assert (found["weights"]["live"] > 0) == is_sparse
    assert found["files"]["float32_ratio"] < 0.8
    inference, dense = found["flops"]["inference"], found["flops"]["dense_inference"]
    assert (inference < dense) == is_sparse


def _targets(parts: Parts) -> Tensor:
    return parts.data.test.targets


@pytest.mark.parametrize("precision", ["bf16-mixed", "32-true"])
def test_predictions_are_made_at_the_precision_of_training(parts: Parts, precision: str) -> None:
    recipe = make_recipe(TABLES, {"fit": {"precision": precision}})
    recipe = recipe.with_model_options(parts.recipe.options("model"))
    found = measure_uncertainty(replace(parts, recipe=recipe), SAMPLES)["scores"]
    is_mixed = precision == "bf16-mixed"
    with torch.autocast("cpu", torch.bfloat16, enabled=is_mixed):
        expected = scored(predicted(parts.model, parts.data.test), _targets(parts))
    assert found == expected
    whole = scored(predicted(parts.model, parts.data.test), _targets(parts))
    assert (found != whole) == is_mixed


def test_slips_in_the_options_are_named(parts: Parts, colour: Parts) -> None:
    with pytest.raises(TypeError, match="num_sample"):
        measure_uncertainty(parts, {"num_sample": 3})
    with pytest.raises(TypeError, match="images of type uint8"):
        measure_uncertainty(parts, {"num_samples": 1, "corruptions": ["fog"]})
    with pytest.raises(ValueError, match="severity must be a whole number from 1 to 5, got 6"):
        measure_uncertainty(colour, {"num_samples": 1, "corruptions": ["fog"], "severities": [6]})


def test_halves_are_the_same_in_every_run_and_make_up_the_whole(parts: Parts) -> None:
    found = measure_uncertainty(parts, {**SAMPLES, "halves": True})
    again = measure_uncertainty(
        replace(parts, recipe=replace(parts.recipe, seed=4)), {**SAMPLES, "halves": True}
    )
    assert "plain_halves" not in found
    num_test = len(parts.data.test)
    sizes = {"first": (num_test + 1) // 2, "second": num_test // 2}
    for score in ("accuracy", "nll", "brier"):
        parted = sum(sizes[half] * found["halves"][half][score] for half in sizes) / num_test
        assert parted == pytest.approx(found["scores"][score], rel=1e-6)
    # Another seed draws other weights, but asks about the same examples.
    assert again["scores"]["nll"] != found["scores"]["nll"]
    order = torch.randperm(num_test, generator=torch.Generator().manual_seed(0))
    first = order[: sizes["first"]]
    own = bf.predict(parts.model, loader(parts.data.test, 150), **SAMPLES, seed=parts.recipe.seed)
    expected = summarise([(own[first], parts.data.test.targets[first])], metrics=SCORES)
    assert found["halves"]["first"] == pytest.approx(expected.to_dict()["metrics"], rel=1e-6)


def test_the_plain_network_is_scored_beside_the_one_it_became(parts: Parts) -> None:
    torch.manual_seed(0)
    plain = bf.revert(parts.model)
    found = measure_uncertainty(replace(parts, plain=plain), {**SAMPLES, "halves": True})
    model = bf.convert(plain, bf.Deterministic())
    own = bf.predict(model, loader(parts.data.test, 150), likelihood="classification")
    targets = parts.data.test.targets
    order = torch.randperm(len(targets), generator=torch.Generator().manual_seed(0))
    second = order[(len(targets) + 1) // 2 :]
    expected = summarise([(own[second], targets[second])], metrics=SCORES).to_dict()["metrics"]
    assert found["plain_halves"]["second"] == pytest.approx(expected, rel=1e-6)


def test_batch_norms_are_measured_anew_where_asked(colour: Parts) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(432, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    model = bf.convert(net, bf.MeanField()).eval()
    parts = replace(colour, model=model)
    before = model[2].running_mean.clone()
    measure_uncertainty(parts, SAMPLES)
    assert torch.equal(model[2].running_mean, before)
    measure_uncertainty(parts, {**SAMPLES, "norm_batches": 3})
    assert not torch.equal(model[2].running_mean, before)
