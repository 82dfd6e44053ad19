"""A study of noise on the page: what was measured, and what differs by more than chance."""

import copy

import pytest

from bayesify.report.json_value import ResultError
from bayesify.report.noise_illustrations import noise_illustrations
from bayesify.report.noise_tables import noise_tables
from bayesify.report.study_tables import study_tables

DASH = "\N{EN DASH}"
MINUS = "\N{MINUS SIGN}"
MEASURED = {
    "scores": {"accuracy": 0.99, "nll": 0.03, "ece": 0.01},
    "noisy": [
        {"decibels": -6.0, "accuracy": 0.6, "nll": 1.0, "ece": 0.1, "class_variance": 4.0},
        {"decibels": 40.0, "accuracy": 0.98, "nll": 0.05, "ece": 0.01, "class_variance": 1.0},
    ],
    "pruned": [{"keep": 0.1, "accuracy": 0.97, "nll": 0.1, "ece": 0.01}],
    "explained": {"infidelity": 0.25, "sensitivity": 0.5},
    "mean_std": 0.01,
}


def measured(shift=0.0, *, is_plain=False):
    made = copy.deepcopy(MEASURED)
    made["scores"]["accuracy"] += shift
    made["noisy"][0]["accuracy"] += 10 * shift
    if is_plain:
        for row in made["noisy"]:
            row["class_variance"] = None
    return made


def write(folder, name, shifts, **options):
    for seed, shift in enumerate(shifts):
        folder.write(
            "noise",
            cell=name,
            labels={"network": name},
            seed=seed,
            measured=measured(shift, **options),
        )


def texts(table):
    return [[datum.text for datum in row] for body in table.bodies for row in body.rows]


def test_numbers_stand_under_their_ratio(folder):
    write(folder, "moments", [0.0])
    write(folder, "plain", [0.0], is_plain=True)
    under, pruned, explained = study_tables(folder.study())
    assert texts(under) == [
        ["moments", "99.00", "60.00", "98.00", "4.00", "1.00"],
        ["plain", "99.00", "60.00", "98.00", DASH, DASH],
    ]
    assert [column.title for column in under.columns][1:] == ["no noise", *("-6 dB", "40 dB") * 2]
    assert texts(pruned)[0] == ["moments", "97.00"]
    assert pruned.columns[-1].title == "90 % pruned"
    assert texts(explained)[0] == ["moments", "0.2500", "0.5000"]


def test_variance_of_the_probability_is_shown_where_it_was_measured(folder):
    for cell, values in {"moments": (0.02, 0.001), "plain": (None, None)}.items():
        made = measured(is_plain=cell == "plain")
        for row, value in zip(made["noisy"], values, strict=True):
            row["probability_variance"] = value
        folder.write("noise", cell=cell, labels={"network": cell}, seed=0, measured=made)
    study = folder.study()
    under = noise_tables(study)[0]
    assert [row[-4:] for row in texts(under)] == [
        ["4.00", "1.00", "0.0200", "0.00100"],
        [DASH] * 4,
    ]
    assert [column.shared for column in under.columns[-4:]] == [
        *["variance of the logit"] * 2,
        *["variance of the probability"] * 2,
    ]
    noise, _ = noise_illustrations(study, study.groups, "")
    assert "variance of the probability over that at -6 dB: 1 to 0.05" in noise.alternative


def test_what_differs_is_told_where_there_are_seeds(folder):
    write(folder, "moments", [0.0, 1e-4, -1e-4])
    write(folder, "sampled", [1e-4, 0.0, -1e-4])
    write(folder, "plain", [-5e-3, -5.1e-3, -4.9e-3], is_plain=True)
    table = noise_tables(folder.study())[-1]
    accuracy, loudest, *_ = texts(table)
    assert accuracy[0] == "accuracy"
    assert float(accuracy[1].replace(MINUS, "-")) < 0.01
    assert "moments and plain" in accuracy[2]
    assert "moments and sampled" not in accuracy[2]
    assert loudest[0] == "accuracy at -6 dB"


def test_figures_show_noise_and_pruning(folder):
    write(folder, "moments", [0.0, 1e-3])
    study = folder.study()
    noise, pruning = noise_illustrations(study, study.groups, "")
    assert "variance of the logit over that at -6 dB: 1 to 0.25" in noise.alternative
    assert "mean and one standard deviation over seeds" in noise.caption
    assert "Accuracy against pruning" in pruning.alternative


def test_a_damaged_file_is_named(folder):
    broken = copy.deepcopy(MEASURED)
    broken["noisy"][0].pop("decibels")
    folder.write("noise", cell="broken", labels={"network": "broken"}, measured=broken)
    with pytest.raises(ResultError, match="decibels"):
        folder.study()
