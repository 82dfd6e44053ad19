"""What was measured is read whole, or refused with the place of the fault."""

import copy

import pytest

from bayesify.report.json_value import JsonValue, ResultError
from bayesify.report.measurements import OtherMeasurement, read_measurement


def read(kind, measured):
    return read_measurement(kind, JsonValue("cell.json", measured, "measured"))


def test_pruning_is_read(cell):
    found = read("pruning", cell()["measured"])
    (pruning,) = found.prunings
    assert (pruning.by, pruning.threshold, pruning.removed) == ("snr", 0.83, 0.971)
    assert list(pruning.sparsity) == ["first", "second", "last"]
    assert pruning.random["accuracy"] == 0.1009
    assert found.error_by_samples.num_samples == (1.0, 10.0)
    assert found.reliability.confidence == (None, 0.5, 0.95)


def test_what_may_be_absent_may_be_absent(cell):
    measured = cell()["measured"]
    del measured["error_by_samples"], measured["reliability"]
    for key in ("random", "shape_after", "file_ratio", "threshold"):
        del measured["prunings"][0][key]
    found = read("pruning", measured)
    assert found.error_by_samples is None
    assert found.reliability is None
    (pruning,) = found.prunings
    absent = (pruning.random, pruning.shape_after, pruning.file_ratio, pruning.threshold)
    assert absent == (None,) * 4
    assert (pruning.keep, pruning.shrunk, pruning.loads_identical) == (None,) * 3
    assert found.plain is None


def test_what_may_be_there_is_read(cell):
    measured = {**cell()["measured"], "plain": {"accuracy": 0.98}}
    more = {"keep": 0.05, "scores_after_shrinking": {"accuracy": 0.97}, "loads_identical": False}
    measured["prunings"][0] |= {**more, "dense_bytes": 10, "file_bytes": 1}
    found = read("pruning", measured)
    assert found.plain == {"accuracy": 0.98}
    (pruning,) = found.prunings
    assert (pruning.keep, pruning.shrunk) == (0.05, {"accuracy": 0.97})
    assert pruning.loads_identical is False


def test_regression_and_speed_are_read(cell):
    found = read("regression", cell("regression")["measured"])
    assert found.bands.epistemic_std == (0.1, 0.05, 0.2)
    assert (found.train_x, found.train_y) == ((0.1, 0.9), (0.2, 0.8))
    first, second = read("speed", cell("speed")["measured"]).rows
    assert (first.median_us, first.paper_ratio) == (101.6, 8.28)
    assert (second.ratio, second.paper_us) == (None, None)
    assert (second.how, second.timed, second.optimizer) == ("", "", "")


def test_confidence_is_read_in_the_order_of_its_levels(cell):
    measured = cell("confidence")["measured"]
    measured["sets"] = {"level": [1, 0.5], "accuracy": [None, 0.9], "size": [0.0, 1.0]}
    measured["kl"] = None
    del measured["mean_std"]
    found = read("confidence", measured)
    assert found.scores["accuracy"] == 0.9231
    assert (found.levels, found.accuracy, found.size) == ((0.5, 1.0), (0.9, None), (1.0, 0.0))
    assert (found.kl, found.mean_std) == (None, None)


def test_uncertainty_is_read(cell):
    found = read("uncertainty", cell("uncertainty")["measured"])
    assert (found.scores["brier"], found.num_samples, found.mean_std) == (0.112, 5, 0.00512)
    assert found.ood["svhn"]["mutual_information"]["aupr"] == 0.9
    assert list(found.corrupted) == ["fog", "snow"]
    assert found.corrupted["snow"][5]["nll"] == 2.0
    assert {share: scores["accuracy"] for share, scores in found.pruned.items()} == {
        0.05: 0.3,
        0.1: 0.6,
    }
    assert found.num_weights == {"all": 1000, "live": 100, "random": 50}
    assert found.file_ratios == {"float32": 0.1, "bfloat16": 0.0625}
    assert (found.rounded["nll"], found.flops["training"]) == (0.2502, 360.0)


def test_uncertainty_may_be_of_scores_alone(cell):
    measured = cell("uncertainty")["measured"]
    needed = {key: measured[key] for key in ("scores", "num_samples", "weights")}
    found = read("uncertainty", {**needed, "mean_std": None})
    assert (found.ood, found.corrupted, found.pruned) == ({}, {}, {})
    assert (found.mean_std, found.file_ratios, found.rounded, found.flops) == (None,) * 4


def test_a_kind_that_is_not_known_is_read_as_scalars():
    assert read("gap", {"a": {"b": 1}}) == OtherMeasurement({"a.b": 1})
    with pytest.raises(ResultError, match=r"measured must be an object, got \[1\]"):
        read("gap", [1])


def damaged(content, *place, value):
    content = copy.deepcopy(content)
    at = content
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = value
    return content


@pytest.mark.parametrize(
    ("kind", "place", "value", "message"),
    [
        ("pruning", ["prunings", 0, "removed"], "all", r"prunings\[0\]\.removed must be a number"),
        ("pruning", ["not_pruned", "nll"], [], r"not_pruned\.nll must be a number"),
        ("pruning", ["error_by_samples", "std"], [0.1], "one length: num_samples, mean, std"),
        ("pruning", ["reliability", "count"], [1], "one length: confidence, accuracy and count"),
        ("pruning", ["reliability", "count"], [1, 1, 1], "not empty; bin 0"),
        ("regression", ["bands", "std"], [0.1], "one length: x, mean, std, epistemic_std, truth"),
        ("regression", ["train", "y"], [], "one length: x, y"),
        ("confidence", ["sets", "size"], [0.1], "one length: level, accuracy and size"),
        ("confidence", ["scores", "nll"], "low", r"scores\.nll must be a number"),
        ("uncertainty", ["weights"], 5, "weights must be an object"),
        ("uncertainty", ["num_samples"], 1.5, "num_samples must be a whole number"),
        (
            "uncertainty",
            ["corrupted", "fog", 1, "severity"],
            "bad",
            r"corrupted\.fog\[1\]\.severity must be a whole number",
        ),
        (
            "uncertainty",
            ["ood", "svhn", "entropy", "auroc"],
            "high",
            r"ood\.svhn\.entropy\.auroc must be a number",
        ),
        (
            "uncertainty",
            ["files", "float32_ratio"],
            None,
            r"files\.float32_ratio must be a number",
        ),
        ("speed", ["rows", 1, "median_us"], "fast", r"rows\[1\]\.median_us must be a number"),
    ],
)
def test_damage_is_refused_with_its_place(cell, kind, place, value, message):
    measured = damaged(cell(kind)["measured"], *place, value=value)
    with pytest.raises(ResultError, match=f"cell.json is damaged.*{message}"):
        read(kind, measured)
