"""Tables of any study: labels tell cells apart, seeds are averaged, differences stand out."""

from bayesify.report.tables import (
    Body,
    Column,
    Table,
    fact_table,
    labelled,
    labelled_columns,
    scalar_table,
    seed_table,
    study_notes,
)


def texts(table):
    return [[datum.text for datum in row] for body in table.bodies for row in body.rows]


def titles(table):
    return [column.title for column in table.columns]


def test_labels_are_columns_and_the_protocol_is_none(folder):
    folder.write()
    study = folder.study()
    assert [column.title for column in labelled_columns(study)] == ["start", "layer"]
    row = labelled(study, study.groups[0], num_rows=2)
    assert [(each.text, each.num_rows) for each in row] == [("frequentist", 2), ("additive", 2)]
    assert all(each.is_header for each in row)


def test_cells_that_labels_do_not_tell_apart_are_named(folder):
    folder.write(cell="one")
    folder.write(cell="two")
    study = folder.study()
    assert [column.title for column in labelled_columns(study)] == ["cell", "start", "layer"]
    assert [labelled(study, group, 1)[0].text for group in study.groups] == ["one", "two"]


def test_the_number_of_seeds_is_shown_where_there_are_several(folder):
    folder.write(seed=0)
    assert study_notes(folder.study()) == ()
    folder.write(seed=1)
    study = folder.study()
    assert labelled_columns(study)[-1].title == "seeds"
    assert labelled(study, study.groups[0], 1)[-1].text == "2"
    assert "sample standard deviation" in study_notes(study)[0]


def test_scalars_of_an_unknown_kind_stand_beside_the_papers(folder):
    measured = {"gap": 0.25, "nested": {"num": 3, "is_done": True, "name": "x"}, "list": [1.5, 2]}
    for seed in (0, 1):
        folder.write("gap", seed=seed, measured={**measured, "gap": 0.25 + 0.1 * seed})
    folder.write("gap", cell="other", labels={"layer": "dense"}, paper={"source": "T2", "gap": 0.5})
    table = scalar_table(folder.study())
    assert titles(table) == ["measured", "here", "paper", "frequentist, additive (elbo)"]
    assert texts(table)[0] == ["gap", "0.2500", "0.5000", "0.3000"]
    assert table.bodies[0].rows[0][3].spread == "± 0.0707"
    rows = {row[0]: row[3] for row in texts(table)}
    assert rows["nested.is_done"] == "yes"
    assert rows["nested.name"] == "x"
    assert rows["list"] == "1.5, 2"
    assert table.notes[-1] == "Paper: T2."


def test_a_long_list_is_left_out_and_a_whole_number_is_whole(folder):
    folder.write("gap", measured={"num": 12, "curve": [0.5] * 200, "nothing": None})
    assert texts(scalar_table(folder.study())) == [["num", "12"], ["nothing", "\N{EN DASH}"]]


def test_nothing_measured_gives_an_empty_table(folder):
    folder.write("gap", measured={})
    assert texts(scalar_table(folder.study())) == []


def test_runs_that_agree_share_a_column_and_others_do_not(folder):
    folder.write(seed=0, recipe={"epochs": 2, "rate": 0.1})
    folder.write(seed=1, recipe={"epochs": 2, "rate": 0.2})
    cells = folder.study().cells
    common = seed_table("x", cells, lambda cell: {"epochs": cell.recipe["epochs"]})
    assert titles(common) == ["", "every seed"]
    assert texts(common) == [["epochs", "2"]]
    apart = seed_table("x", cells, lambda cell: cell.recipe, marked=["rate"])
    assert titles(apart) == ["", "seed 0", "seed 1"]
    assert texts(apart) == [["epochs", "2", "2"], ["rate", "0.1", "0.2"]]
    assert [[each.is_marked for each in row] for row in apart.bodies[0].rows] == [
        [False, False, False],
        [False, True, True],
    ]


def test_facts_are_written_as_words():
    facts = {"a": None, "b": False, "c": [0.1, 2], "d": 0.30000000000000004}
    assert [row[1] for row in texts(fact_table("x", "y", facts))] == [
        "\N{EN DASH}",
        "no",
        "0.1, 2",
        "0.3",
    ]


def test_columns_share_a_head():
    columns = (Column("a"), Column("b"), Column("here", "c"), Column("paper", "c"), Column("d"))
    table = Table("x", columns, (Body("", ()),))
    assert table.has_heads
    assert table.heads == (("", 1), ("", 1), ("c", 2), ("", 1))
    assert not Table("x", columns[:2], ()).has_heads
