"""Each kind of study has its tables; a kind that is not known has one of its scalars."""

import pytest

from bayesify.report.study_tables import regression_table, speed_table, study_tables


def texts(table):
    return [[datum.text for datum in row] for body in table.bodies for row in body.rows]


@pytest.mark.parametrize(
    ("kind", "captions"),
    [
        ("pruning", ["Sparsity and test accuracy", "Likelihood, calibration and size"]),
        ("regression", ["Error and coverage"]),
        (
            "confidence",
            [
                "Accuracy of the confidence set, %",
                "Size of the confidence set, % of the test set",
                "Scores on the whole test set",
            ],
        ),
        (
            "uncertainty",
            [
                "Scores on the test set",
                "Strangers told apart",
                "Scores on spoiled test images",
                "Cost",
                "Scores after pruning the trained network",
            ],
        ),
        ("speed", ["frequentist, additive, on NVIDIA H200"]),
        ("gap", ["What was measured"]),
    ],
)
def test_tables_follow_the_kind(folder, kind, captions):
    folder.write(kind)
    assert [table.caption for table in study_tables(folder.study())] == captions


def test_coverage_stands_under_its_level(folder):
    folder.write("regression", paper={"source": "Fig 4.11", "mse": 0.012, "is_shown": True})
    table = regression_table(folder.study())
    assert [column.title for column in table.columns] == (
        ["start", "layer", "RMSE", "NLL", "50", "95", "paper"]
    )
    assert texts(table) == [
        ["frequentist", "additive", "0.0712", "\N{MINUS SIGN}1.2000", "52.0", "96.1", "mse 0.012"]
    ]


def test_regressions_are_averaged_over_seeds(folder, cell):
    for seed, rmse in enumerate((0.1, 0.3)):
        measured = {**cell("regression")["measured"], "rmse": rmse}
        folder.write("regression", seed=seed, measured=measured)
    row = regression_table(folder.study()).bodies[0].rows[0]
    assert (row[3].text, row[3].spread) == ("0.2000", "± 0.1414")


def test_times_stand_under_the_table_of_the_paper(folder):
    folder.write("speed")
    study = folder.study()
    table = speed_table(study, study.groups[0])
    assert [body.title for body in table.bodies] == ["table 3.1", "table 3.2"]
    dash = "\N{EN DASH}"
    assert texts(table) == [
        ["additive", "eager", "102", "313", "5.64", "8.28"],
        ["dense", "compiled", "15.1", dash, dash, dash],
    ]


def test_times_are_averaged_over_seeds_but_the_paper_is_not(folder, cell):
    for seed in (0, 1):
        measured = cell("speed")["measured"]
        measured["rows"][0]["median_us"] = 100.0 + 20 * seed
        folder.write("speed", seed=seed, measured=measured)
    study = folder.study()
    row = speed_table(study, study.groups[0]).bodies[0].rows[0]
    assert (row[2].text, row[2].spread) == ("110", "± 14")
    assert (row[3].text, row[3].spread) == ("313", "")


def test_choices_of_a_benchmark_have_columns_and_the_papers_ratio_is_found(folder):
    rows = [
        {"table": "3.1", "layer": "nn.Linear", "how": "", "pass": "training", "paper_us": 40.0},
        {"table": "3.1", "layer": "dense", "how": "local", "pass": "training", "paper_us": 320.0},
        {"table": "step", "layer": "dense", "how": "local", "pass": "step", "optimizer": "adam"},
    ]
    rows = [
        {"mode": "eager", "optimizer": None, "median_us": 10.0, "ratio": 2.0} | row for row in rows
    ]
    folder.write("speed", measured={"rows": rows})
    study = folder.study()
    table = speed_table(study, study.groups[0])
    names = ["layer", "how", "mode", "timed", "optimizer"]
    assert [column.title for column in table.columns] == [*names, *("here", "paper") * 2]
    assert [body.title for body in table.bodies] == ["table 3.1", "step"]
    dash = "\N{EN DASH}"
    assert texts(table) == [
        ["nn.Linear", dash, "eager", "training", dash, "10.0", "40.0", "2.00", "1.00"],
        ["dense", "local", "eager", "training", dash, "10.0", "320", "2.00", "8.00"],
        ["dense", "local", "eager", "step", "adam", "10.0", dash, "2.00", dash],
    ]


def test_a_benchmark_without_rows_is_an_empty_table(folder):
    folder.write("speed", measured={"rows": []})
    study = folder.study()
    assert texts(speed_table(study, study.groups[0])) == []
