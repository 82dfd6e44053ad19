"""Confidence sets stand under their levels, beside the paper's, and are averaged over seeds."""

import pytest

from bayesify.report.confidence_tables import at_level, confidence_tables, levels_of

DASH = "\N{EN DASH}"
PAPER = {
    "source": "Table 2",
    "accuracy": {"0.5": 0.6307, "1": 0.6071, "most": 0.9},
    "accuracy_std": {"0.5": 0.0147},
}


def texts(table):
    return [[datum.text for datum in row] for body in table.bodies for row in body.rows]


def test_accuracy_and_size_stand_under_their_levels(folder):
    folder.write("confidence", labels={"m": "1"})
    accuracy, size, scores = confidence_tables(folder.study())
    assert [column.title for column in accuracy.columns] == ["m", "50", "90", "100"]
    assert accuracy.heads == (("", 1), ("confidence at least, %", 3))
    assert texts(accuracy) == [["1", "93.00", "96.00", "99.00"]]
    assert texts(size) == [["1", "98.00", "90.00", "80.00"]]
    assert texts(scores) == [["1", "92.31", "0.2512", "0.1120", "1.23", "123,456", "0.00512"]]
    assert "share of samples that vote for its class" in accuracy.notes[0]


def test_the_papers_accuracies_stand_beside_ours_with_their_spread(folder):
    folder.write("confidence", labels={"m": "1"}, paper=PAPER)
    folder.write("confidence", cell="other", labels={"m": "closed"})
    accuracy, size, _ = confidence_tables(folder.study())
    assert [column.title for column in accuracy.columns] == ["m", *("here", "paper") * 3]
    assert accuracy.heads[1:] == tuple((f"confidence ≥ {level} %", 2) for level in (50, 90, 100))
    assert texts(accuracy) == [
        ["1", "93.00", "63.07", "96.00", DASH, "99.00", "60.71"],
        ["closed", "93.00", DASH, "96.00", DASH, "99.00", DASH],
    ]
    first = accuracy.bodies[0].rows[0]
    assert [datum.spread for datum in first if datum.is_paper] == ["± 1.47", "", ""]
    assert accuracy.notes[-1] == "Paper: Table 2."
    assert not any(column.is_paper for column in size.columns)


def test_scores_that_the_paper_gives_stand_beside_ours(folder):
    folder.write("confidence", labels={"m": "1"}, paper={"accuracy": 0.951, "ece": 0.004})
    accuracy, _, scores = confidence_tables(folder.study())
    assert not any(column.is_paper for column in accuracy.columns)
    (row,) = texts(scores)
    assert row == ["1", "92.31", "95.10", "0.2512", "0.1120", "1.23", "0.40", "123,456", "0.00512"]


def test_seeds_are_averaged_where_they_have_a_set(folder, cell):
    for seed, right in enumerate((0.98, None, 0.96)):
        measured = cell("confidence")["measured"]
        measured["sets"]["accuracy"][2] = right
        measured["sets"]["size"][2] = 0.5 if right else 0.0
        folder.write("confidence", labels={"m": "1"}, seed=seed, measured=measured)
    study = folder.study()
    accuracy, size, _ = confidence_tables(study)
    last = accuracy.bodies[0].rows[0][-1]
    assert (last.text, last.spread) == ("97.00", "± 1.41")
    assert size.bodies[0].rows[0][-1].text == "33.33"
    assert at_level(study.groups[0], "accuracy", 1.0) == [0.98, 0.96]


def test_a_set_that_is_always_empty_has_no_accuracy(folder, cell):
    measured = cell("confidence")["measured"]
    measured["sets"]["accuracy"][2] = None
    folder.write("confidence", labels={"m": "1"}, measured=measured)
    accuracy, _, _ = confidence_tables(folder.study())
    assert texts(accuracy)[0][-1] == DASH


def test_cells_may_have_levels_of_their_own(folder, cell):
    measured = cell("confidence")["measured"]
    measured["sets"] = {"level": [0.7], "accuracy": [0.9], "size": [0.8]}
    folder.write("confidence", labels={"m": "1"})
    folder.write("confidence", cell="b", labels={"m": "2"}, measured=measured)
    study = folder.study()
    assert levels_of(study.groups) == [0.5, 0.7, 0.9, 1.0]
    accuracy, _, _ = confidence_tables(study)
    assert texts(accuracy)[1] == ["2", DASH, "90.00", DASH, DASH]


@pytest.mark.parametrize("value", [True, "high", None])
def test_what_is_no_number_is_not_taken_for_the_papers(folder, value):
    folder.write("confidence", labels={"m": "1"}, paper={"nll": value, "accuracy_std": 3})
    *_, scores = confidence_tables(folder.study())
    assert not any(column.is_paper for column in scores.columns)
