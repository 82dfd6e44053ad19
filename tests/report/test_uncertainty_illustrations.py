"""Scores are drawn against severity, cell by cell, and against every axis of numbers."""

import math

import pytest

from bayesify.report.illustrations import study_illustrations
from bayesify.report.looks import Looks
from bayesify.report.uncertainty_illustrations import axis_lines, numeric_axes, severity_line

SEVERITY = "Scores on spoiled test images against severity"


def write(folder, cell, *, seeds=1, accuracy=0.9231, corrupted=None, **labels):
    for seed in range(seeds):
        measured = cell("uncertainty")["measured"]
        measured["scores"]["accuracy"] = accuracy + 0.02 * seed
        if corrupted is not None:
            measured["corrupted"] = corrupted
        folder.write(
            "uncertainty",
            cell="-".join(labels.values()) or "x",
            labels=labels,
            seed=seed,
            history=[],
            measured=measured,
        )


def captions(folder):
    return [each.caption.split(";")[0].rstrip(".") for each in study_illustrations(folder.study())]


def test_cells_are_held_against_each_other_by_severity(folder, cell):
    write(folder, cell, network="dense")
    write(folder, cell, network="sparse")
    (found,) = study_illustrations(folder.study())
    assert found.caption == (
        f"{SEVERITY}; at 0 stands the test set as it is. Mean over 2 corruptions."
    )
    assert found.is_wide
    assert found.alternative == (
        "Scores against the severity of corruptions. "
        "dense, accuracy, %: 92.31 at 0, 55 at 5; sparse, accuracy, %: 92.31 at 0, 55 at 5; "
        "dense, NLL: 0.2512 at 0, 1.5 at 5; sparse, NLL: 0.2512 at 0, 1.5 at 5; "
        "dense, ECE, %: 1.23 at 0, 15 at 5; sparse, ECE, %: 1.23 at 0, 15 at 5."
    )


def test_a_line_begins_at_the_test_set_and_has_the_spread_between_seeds(folder, cell):
    write(folder, cell, network="dense", seeds=3)
    study = folder.study()
    line = severity_line(Looks(study), study.groups[0], "accuracy")
    assert line.x == [0.0, 1.0, 5.0]
    assert line.mean == pytest.approx([94.31, 85.0, 55.0])
    assert line.std == pytest.approx([2.0, 0.0, 0.0], abs=1e-9)
    assert "mean and one standard deviation over seeds" in study_illustrations(study)[0].caption


def test_a_lone_seed_has_no_band_and_a_missing_score_is_a_gap(folder, cell):
    write(folder, cell, network="dense", corrupted={"fog": [{"severity": 2, "accuracy": 0.5}]})
    study = folder.study()
    looks = Looks(study)
    right = severity_line(looks, study.groups[0], "accuracy")
    assert (right.mean, right.std) == (pytest.approx([92.31, 50.0]), None)
    assert math.isnan(severity_line(looks, study.groups[0], "nll").mean[1])
    assert "NLL: 0.2512 at 0, nothing at 2" in study_illustrations(study)[0].alternative


def test_each_choice_of_the_last_axis_has_a_row_of_panels(folder, cell):
    for network in ("dense", "sparse"):
        for data in ("cifar", "svhn"):
            write(folder, cell, network=network, data=data)
    (found,) = study_illustrations(folder.study())
    assert "data: cifar, dense, accuracy, %: 92.31 at 0" in found.alternative
    assert "data: svhn, sparse, ECE, %: 1.23 at 0" in found.alternative


def test_cells_that_were_not_spoiled_are_left_out(folder, cell):
    write(folder, cell, network="dense")
    write(folder, cell, network="sparse", corrupted={})
    (found,) = study_illustrations(folder.study())
    assert "dense, NLL" in found.alternative
    assert "sparse" not in found.alternative


def test_an_axis_of_numbers_is_drawn_with_a_line_per_choice_of_the_other(folder, cell):
    for rank, density in enumerate(("50", "1", "10")):
        for network in ("rigl", "ssvi"):
            accuracy = 0.9 - 0.1 * rank - (0.05 if network == "rigl" else 0.0)
            labels = {"method": network, "density": density}
            write(folder, cell, accuracy=accuracy, corrupted={}, seeds=2, **labels)
    (found,) = study_illustrations(folder.study())
    assert found.caption == (
        "Scores on the test set against density; mean and one standard deviation over seeds."
    )
    assert found.alternative.startswith(
        "Scores against density. rigl, accuracy, %: 76 at 1, 86 at 50; "
        "ssvi, accuracy, %: 81 at 1, 91 at 50; rigl, NLL: 0.2512 at 1"
    )
    rigl, ssvi = axis_lines(folder.study().groups, "density", "accuracy")
    assert (rigl.name, ssvi.name, rigl.colour, ssvi.colour) == ("rigl", "ssvi", 0, 1)
    assert rigl.x == [1.0, 10.0, 50.0]
    assert rigl.mean == pytest.approx([76.0, 66.0, 86.0])
    assert rigl.std == pytest.approx([100 * 0.02 / math.sqrt(2)] * 3)


@pytest.mark.parametrize(
    ("labels", "axes"),
    [
        ([{"density": "1"}, {"density": "50"}], ["density"]),
        ([{"density": "1"}, {"density": "1"}], []),
        ([{"m": "1"}, {"m": "closed"}], []),
        ([{"m": "1"}, {}], []),
        ([{"std": "0001", "m": "1"}, {"std": "003", "m": "2"}], ["std", "m"]),
    ],
)
def test_an_axis_of_numbers_has_numbers_only_and_more_than_one(folder, cell, labels, axes):
    for index, each in enumerate(labels):
        folder.write("uncertainty", cell=str(index), labels=each, history=[])
    assert numeric_axes(folder.study().groups) == axes
    drawn = [each for each in captions(folder) if "test set against" in each]
    assert drawn == [f"Scores on the test set against {axis}" for axis in axes]


def test_a_number_whose_dot_was_left_out_is_drawn_where_it_belongs(folder, cell):
    for std in ("0005", "001", "003"):
        write(folder, cell, std=std)
    (line,) = axis_lines(folder.study().groups, "std", "nll")
    assert line.x == [0.005, 0.01, 0.03]
    assert line.name == ""


def test_more_lines_than_colours_differ_in_style(folder, cell):
    for network in "abcdefgh":
        for density in ("1", "2"):
            write(folder, cell, network=network, density=density)
    lines = axis_lines(folder.study().groups, "density", "nll")
    assert len({(line.colour, line.style) for line in lines}) == 8


def test_protocols_have_figures_of_their_own(folder, cell):
    for protocol in ("long", "short"):
        for density in ("1", "2"):
            write(folder, cell, density=density, protocol=protocol)
    assert captions(folder) == [
        f"{what} ({protocol})"
        for protocol in ("long", "short")
        for what in (SEVERITY, "Scores on the test set against density")
    ]


def test_without_numbers_to_draw_nothing_is_drawn(folder, cell):
    write(folder, cell, network="dense", corrupted={})
    assert captions(folder) == []
