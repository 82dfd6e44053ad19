"""Every pruning has its row, and the paper's numbers stand beside those they belong to."""

import pytest

from bayesify.report.json_value import ResultError
from bayesify.report.pruning_tables import pruning_table, score_table

DASH = " \N{EN DASH} "


def texts(table):
    return [[datum.text for datum in row] for body in table.bodies for row in body.rows]


def num_places(table):
    """Return how many columns each row fills, cells that span rows above it included."""
    found = []
    for body in table.bodies:
        spanning = []
        for row in body.rows:
            spanning = [left - 1 for left in spanning if left > 1]
            found.append(len(row) + len(spanning))
            spanning += [datum.num_rows for datum in row]
    return found


def test_a_pruning_stands_beside_the_paper(folder, paper):
    folder.write(paper=paper)
    table = pruning_table(folder.study())
    assert texts(table) == [
        [
            *("frequentist", "additive", "snr ≤ 0.83", "97.1"),
            *(f"98.0{DASH}95.0{DASH}40.0", f"57.4{DASH}54.0{DASH}23.9"),
            *("98.31", "98.44", "98.05", "98.44", "10.09", "25.73"),
        ]
    ]
    row = table.bodies[0].rows[0]
    assert [datum.is_paper for datum in row] == [column.is_paper for column in table.columns]
    assert table.bodies[0].title == "protocol: elbo"
    assert "Paper: Table 4.3." in table.notes
    assert f"Layers in order: first{DASH}second{DASH}last." in table.notes


def test_without_a_paper_there_are_no_columns_of_it(folder):
    folder.write()
    table = pruning_table(folder.study())
    assert not any(column.is_paper for column in table.columns)
    assert num_places(table) == [len(table.columns)]


def test_several_prunings_share_what_holds_for_the_cell(folder, cell, paper):
    measured = cell()["measured"]
    second = {**measured["prunings"][0], "threshold": 0.22313016, "removed": 0.9}
    measured["prunings"].append(second)
    folder.write(measured=measured, paper=paper)
    folder.write(cell="other", labels={"layer": "dense", "protocol": "elbo"})
    for table in (pruning_table(folder.study()), score_table(folder.study())):
        assert num_places(table) == [len(table.columns)] * 3
    other, first, second = pruning_table(folder.study()).bodies[0].rows
    assert second[0].text == "snr ≤ 0.223"
    assert [datum.num_rows for datum in first if datum.is_paper] == [2] * 4
    assert not any(datum.is_paper for datum in second)
    assert [datum.text for datum in other if datum.is_paper] == ["\N{EN DASH}"] * 4


def test_seeds_are_averaged_with_their_spread(folder, cell):
    for seed, accuracy in enumerate((0.97, 0.98, 0.99)):
        measured = cell()["measured"]
        measured["not_pruned"]["accuracy"] = accuracy
        measured["prunings"][0]["sparsity"]["first"] = accuracy
        folder.write(seed=seed, measured=measured)
    table = pruning_table(folder.study())
    (row,) = table.bodies[0].rows
    assert row[2].text == "3"
    layers, accuracy = row[5], row[6]
    assert (accuracy.text, accuracy.spread) == ("98.00", "± 1.00")
    assert layers.text == f"98.0{DASH}95.0{DASH}40.0"
    assert layers.spread == f"± 1.0{DASH}0.0{DASH}0.0"


def test_a_network_that_was_not_pruned_keeps_its_row(folder, cell):
    measured = {**cell()["measured"], "prunings": []}
    folder.write(measured=measured)
    table = pruning_table(folder.study())
    dash = "\N{EN DASH}"
    expected = ["frequentist", "additive", dash, dash, dash, "98.31", dash, dash]
    assert texts(table) == [expected]


def test_many_layers_are_given_as_a_range(folder, cell):
    measured = cell()["measured"]
    measured["prunings"][0]["sparsity"] = {f"layer {index}": index / 10 for index in range(8)}
    folder.write(measured=measured)
    layers = pruning_table(folder.study()).bodies[0].rows[0][4]
    assert (layers.text, layers.spread) == ("0.0 to 70.0", "8 layers")


def test_scores_stand_before_and_after_pruning(folder):
    folder.write()
    table = score_table(folder.study())
    shared = [column.shared for column in table.columns]
    assert shared[3:12] == ["NLL"] * 3 + ["ECE, %"] * 3 + ["Brier score"] * 3
    (row,) = texts(table)
    assert row[3:] == [
        *("0.0512", "0.0600", "2.3000"),
        *("1.23", "1.10", "20.00"),
        *("0.0250", "0.0300", "0.9000"),
        *("784-120-60-10", "5.0"),
    ]


def test_size_is_left_out_where_none_was_measured(folder, cell):
    measured = cell()["measured"]
    del measured["prunings"][0]["shape_after"], measured["prunings"][0]["file_ratio"]
    folder.write(measured=measured)
    assert score_table(folder.study()).columns[-1].title == "random"


def test_seeds_with_other_prunings_are_refused_by_file(folder, cell):
    folder.write(seed=0)
    measured = cell()["measured"]
    measured["prunings"][0]["by"] = "magnitude"
    path = folder.write(seed=1, measured=measured)
    with pytest.raises(ResultError, match=r"expected \['snr'\], got \['magnitude'\]") as caught:
        pruning_table(folder.study())
    assert str(path) in str(caught.value)


def test_a_share_to_keep_is_named(folder, cell):
    measured = cell()["measured"]
    (first,) = measured["prunings"]
    del first["threshold"]
    measured["prunings"] = [
        {**first, "by": by, "keep": keep}
        for by, keep in (("snr", 0.05), ("magnitude", 0.05), ("snr", 0.005), ("snr", None))
    ]
    folder.write(measured=measured)
    first_row, *rows = texts(pruning_table(folder.study()))
    assert first_row[2] == "snr, keep 5 %"
    assert [row[0] for row in rows] == [
        "magnitude, keep 5 %",
        "snr, keep 0.5 %",
        "snr",
    ]


def test_seeds_that_keep_other_shares_are_refused(folder, cell):
    for seed, keep in enumerate((0.05, 0.02)):
        measured = cell()["measured"]
        measured["prunings"][0] |= {"threshold": None, "keep": keep}
        folder.write(seed=seed, measured=measured)
    with pytest.raises(ResultError, match=r"\['snr, keep 5 %'\], got \['snr, keep 2 %'\]"):
        pruning_table(folder.study())


def test_the_plain_network_of_a_warm_start_has_a_column_where_there_is_one(folder, cell):
    folder.write(cell="cold", labels={"start": "bayesian", "layer": "additive"})
    assert "plain" not in [column.title for column in pruning_table(folder.study()).columns]
    measured = {**cell()["measured"], "plain": {"accuracy": 0.9855, "nll": 0.13}}
    folder.write(cell="warm", labels={"start": "frequentist", "layer": "dense"}, measured=measured)
    table = pruning_table(folder.study())
    place = [column.title for column in table.columns].index("plain")
    assert [row[place] for row in texts(table)] == ["\N{EN DASH}", "98.55"]
    assert "Plain: the network that a warm start began from." in table.notes
    assert num_places(table) == [len(table.columns)] * 2


def test_notes_say_whether_smaller_networks_and_files_hold_what_they_should(folder, cell):
    measured = cell()["measured"]
    (first,) = measured["prunings"]
    assert score_table_notes(folder, measured) == ()
    first |= {"scores_after_shrinking": {"accuracy": 0.9830}, "loads_identical": True}
    moved, loads = score_table_notes(folder, measured)
    assert moved.endswith("accuracy moves by at most 0.25 points.")
    assert loads == "Every file predicts the same on a test batch after it is loaded."
    measured["prunings"].append({**first, "loads_identical": False})
    _, loads = score_table_notes(folder, measured)
    assert loads == "1 file of 2 did not predict the same on a test batch after loading."


def score_table_notes(folder, measured):
    path = folder.write(measured=measured)
    notes = score_table(folder.study()).notes
    path.unlink()
    return notes
