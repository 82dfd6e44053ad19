"""Uncertainty stands beside the paper's, averaged over seeds, and only what was measured."""

import pytest

from bayesify.report.uncertainty_tables import (
    at_severity,
    corruption_words,
    severities_of,
    uncertainty_tables,
)

DASH = "\N{EN DASH}"
MINUS = "\N{MINUS SIGN}"
SCORES = "Scores on the test set"
OOD = "Strangers told apart"
SPOILED = "Scores on spoiled test images"
COST = "Cost"
PRUNED = "Scores after pruning the trained network"
NAMES = {"network": "sparse"}


def tables(folder):
    return {table.caption: table for table in uncertainty_tables(folder.study())}


def texts(table):
    return [[datum.text for datum in row] for body in table.bodies for row in body.rows]


def titles(table):
    return [column.title for column in table.columns]


def test_scores_weights_and_std_stand_in_one_row(folder):
    folder.write("uncertainty", labels=NAMES)
    table = tables(folder)[SCORES]
    assert titles(table) == [
        "network",
        "accuracy, %",
        "NLL",
        "Brier score",
        "ECE, %",
        "marginal calibration error, %",
        "live",
        "random",
        "mean std of a weight",
    ]
    assert table.heads[-2:] == (("of all weights, %", 2), ("", 1))
    assert texts(table) == [
        ["sparse", "92.31", "0.2512", "0.1120", "1.23", "1.01", "10.00", "5.00", "0.00512"]
    ]


def test_the_papers_scores_stand_beside_ours(folder):
    paper = {"source": "Table 1", "accuracy": 0.9458, "marginal_calibration_error": 0.005}
    folder.write("uncertainty", labels=NAMES, paper=paper)
    folder.write("uncertainty", cell="other", labels={"network": "rigl"})
    table = tables(folder)[SCORES]
    assert [head for head, num in table.heads if num == 2] == [
        "accuracy, %",
        "marginal calibration error, %",
        "of all weights, %",
    ]
    rigl, sparse = texts(table)
    assert sparse[1:3] == ["92.31", "94.58"]
    assert sparse[6:8] == ["1.01", "0.50"]
    assert rigl[1:3] == ["92.31", DASH]
    assert table.notes == ("Paper: Table 1.",)


@pytest.mark.parametrize("value", [True, "high", None])
def test_what_is_no_number_is_not_taken_for_the_papers(folder, value):
    folder.write("uncertainty", labels=NAMES, paper={"nll": value})
    assert not any(column.is_paper for column in tables(folder)[SCORES].columns)


def test_seeds_are_averaged_with_their_spread_where_there_is_any(folder, cell):
    for seed, accuracy in enumerate((0.9, 0.94)):
        measured = cell("uncertainty")["measured"]
        measured["scores"]["accuracy"] = accuracy
        measured["ood"]["svhn"]["entropy"]["auroc"] = accuracy
        measured["corrupted"]["fog"][0]["accuracy"] = accuracy
        folder.write("uncertainty", labels=NAMES, seed=seed, measured=measured)
    found = tables(folder)
    (row,) = found[SCORES].bodies[0].rows
    assert [(datum.text, datum.spread) for datum in row[:3]] == [
        ("sparse", ""),
        ("2", ""),
        ("92.00", "± 2.83"),
    ]
    # How many weights there are is a choice, which seeds do not change.
    assert (row[-3].text, row[-3].spread) == ("10.00", "")
    (row,) = found[OOD].bodies[0].rows
    assert (row[2].text, row[2].spread) == ("92.00", "± 2.83")
    row = found[SPOILED].bodies[0].rows[0]
    # Corruptions are averaged first: of (0.9 + 0.8) / 2 and (0.94 + 0.8) / 2.
    assert (row[2].text, row[2].spread) == ("86.00", "± 1.41")
    assert [datum.spread for datum in found[COST].bodies[0].rows[0][2:4]] == ["", ""]
    assert found[SCORES].notes == (
        "Several seeds: mean ± sample standard deviation between seeds.",
    )


def test_seeds_that_differ_in_size_show_it(folder, cell):
    for seed, live in enumerate((100, 120)):
        measured = cell("uncertainty")["measured"]
        measured["weights"]["live"] = live
        folder.write("uncertainty", labels=NAMES, seed=seed, measured=measured)
    (row,) = tables(folder)[SCORES].bodies[0].rows
    assert (row[-3].text, row[-3].spread) == ("11.00", "± 1.41")


def test_strangers_stand_under_the_score_that_tells_them(folder):
    folder.write("uncertainty", labels=NAMES)
    table = tables(folder)[OOD]
    assert table.heads == (("", 1), ("svhn, by entropy", 2), ("svhn, by mutual information", 2))
    assert titles(table)[1:] == ["AUROC, %", "AUPR, %"] * 2
    assert texts(table) == [["sparse", "95.00", "96.00", "91.00", "90.00"]]


def test_one_sample_has_no_mutual_information(folder, cell):
    measured = {**cell("uncertainty")["measured"], "num_samples": 1}
    folder.write("uncertainty", labels=NAMES, measured=measured)
    assert texts(tables(folder)[OOD]) == [["sparse", "95.00", "96.00", DASH, DASH]]


def test_cells_may_meet_different_strangers(folder, cell):
    measured = cell("uncertainty")["measured"]
    measured["ood"]["noise"] = {"entropy": {"auroc": None, "aupr": 0.5}}
    del measured["ood"]["svhn"]
    folder.write("uncertainty", labels={"network": "a"})
    folder.write("uncertainty", cell="b", labels={"network": "b"}, measured=measured)
    assert texts(tables(folder)[OOD]) == [
        ["a", "95.00", "96.00", "91.00", "90.00", DASH, DASH, DASH, DASH],
        ["b", DASH, DASH, DASH, DASH, DASH, "50.00", DASH, DASH],
    ]


def test_corruptions_are_averaged_by_severity(folder):
    folder.write("uncertainty", labels=NAMES)
    table = tables(folder)[SPOILED]
    assert titles(table) == ["network", "1", "5", "mean"]
    assert table.heads == (("", 1), ("severity", 3))
    assert [body.title for body in table.bodies] == ["accuracy, %", "NLL", "ECE, %"]
    assert texts(table) == [
        ["sparse", "85.00", "55.00", "70.00"],
        ["sparse", "0.4000", "1.5000", "0.9500"],
        ["sparse", "3.00", "15.00", "9.00"],
    ]
    assert table.notes == ("Mean over 2 corruptions.",)


def test_spoiled_cells_stand_under_their_protocols_and_others_are_left_out(folder, cell):
    measured = {**cell("uncertainty")["measured"], "corrupted": {}}
    folder.write("uncertainty", labels={"network": "a", "protocol": "long"})
    folder.write("uncertainty", cell="b", labels={"network": "b", "protocol": "long"})
    folder.write(
        "uncertainty", cell="c", labels={"network": "c", "protocol": "short"}, measured=measured
    )
    table = tables(folder)[SPOILED]
    assert [body.title for body in table.bodies] == [
        f"{score}, protocol: long" for score in ("accuracy, %", "NLL", "ECE, %")
    ]
    assert [row[0] for row in texts(table)] == ["a", "b"] * 3


def test_severities_and_corruptions_may_differ(folder, cell):
    measured = cell("uncertainty")["measured"]
    measured["corrupted"] = {"fog": [{"severity": 3, "accuracy": 0.7}]}
    folder.write("uncertainty", labels={"network": "a"})
    folder.write("uncertainty", cell="b", labels={"network": "b"}, measured=measured)
    study = folder.study()
    assert severities_of(study.groups) == [1, 3, 5]
    assert corruption_words(study.groups) == "Mean over 1 to 2 corruptions."
    assert corruption_words(study.groups[1:]) == "Mean over 1 corruption."
    assert at_severity(study.groups[1], "accuracy", 1) is None
    assert at_severity(study.groups[1], "accuracy", 3).mean == 0.7
    assert at_severity(study.groups[1], "accuracy", None).mean == 0.7
    assert texts(tables(folder)[SPOILED])[:3] == [
        ["a", "85.00", DASH, "55.00", "70.00"],
        ["b", DASH, "70.00", DASH, "70.00"],
        ["a", "0.4000", DASH, "1.5000", "0.9500"],
    ]


def test_cost_is_held_against_a_dense_network(folder):
    folder.write("uncertainty", labels=NAMES)
    table = tables(folder)[COST]
    assert titles(table)[1:] == [
        "float32",
        "bfloat16",
        "change of NLL in bfloat16",
        "inference",
        "training",
    ]
    assert texts(table) == [["sparse", "10.00", "6.25", f"{MINUS}0.0010", "10.00", "12.00"]]
    assert len(table.notes) == 2


@pytest.mark.parametrize(
    ("absent", "shown"),
    [
        ("files", ["inference", "training"]),
        ("flops", ["float32", "bfloat16", "change of NLL in bfloat16"]),
    ],
)
def test_cost_shows_what_was_measured(folder, cell, absent, shown):
    measured = cell("uncertainty")["measured"]
    del measured[absent]
    folder.write("uncertainty", labels=NAMES, measured=measured)
    table = tables(folder)[COST]
    assert titles(table)[1:] == shown
    assert len(table.notes) == 1


def test_pruned_shares_stand_below_each_other_from_the_largest(folder, cell):
    measured = {**cell("uncertainty")["measured"], "pruned": []}
    folder.write("uncertainty", labels={"network": "dense"})
    folder.write("uncertainty", cell="b", labels={"network": "sparse"}, measured=measured)
    table = tables(folder)[PRUNED]
    assert texts(table) == [
        ["dense", "10", "60.00", "1.5000", "0.4000", "5.00", "2.00"],
        ["5", "30.00", "1.5000", "0.4000", "5.00", "2.00"],
    ]
    assert table.bodies[0].rows[0][0].num_rows == 2


def test_what_was_not_measured_has_no_table(folder, cell):
    measured = cell("uncertainty")["measured"]
    del measured["files"], measured["flops"]
    measured |= {"ood": {}, "corrupted": {}, "pruned": []}
    folder.write("uncertainty", labels=NAMES, measured=measured)
    assert list(tables(folder)) == [SCORES]


def test_a_plain_network_has_no_weights_to_count_and_a_broken_one_no_scores(folder, cell):
    measured = cell("uncertainty")["measured"]
    measured |= {"weights": {"all": 0, "live": 0, "random": 0}, "mean_std": None}
    measured["scores"] = {"accuracy": 0.1, "nll": None}
    folder.write("uncertainty", labels=NAMES, measured=measured)
    found = tables(folder)
    assert texts(found[SCORES]) == [["sparse", "10.00", *[DASH] * 7]]
    assert texts(found[COST])[0][3] == DASH
