"""`bayesify report`: one page from a folder of results, or one sentence on what is wrong."""

import json

import pytest

CELL = {
    "study": "mcr/gap",
    "title": "Gap of the estimators",
    "kind": "gap",
    "cell": "radial",
    "labels": {"family": "radial"},
    "seed": 0,
    "is_quick": False,
    "provenance": {"commit": "abc1234"},
    "recipe": {"epochs": 2},
    "paper": None,
    "history": [],
    "measured": {"gap": 0.125},
}


@pytest.fixture
def results(tmp_path):
    folder = tmp_path / "results"
    (folder / "mcr").mkdir(parents=True)
    (folder / "mcr" / "radial.json").write_text(json.dumps(CELL), encoding="utf-8")
    return folder


def test_report_is_written_and_counted(invoke, results, tmp_path):
    out = tmp_path / "pages" / "report.html"
    result = invoke("report", results, "--out", out)
    assert result.exit_code == 0, result.output
    assert "(1 run of 1 study)" in result.stdout
    assert "Left out" not in result.stdout
    page = out.read_text("utf-8")
    assert "Gap of the estimators" in page
    assert "0.1250" in page


def test_report_says_how_many_were_quick_or_left_out(invoke, results, tmp_path):
    quick = {**CELL, "is_quick": True}
    (results / "quick.json").write_text(json.dumps(quick), encoding="utf-8")
    (results / "other.json").write_text("{}", encoding="utf-8")
    result = invoke("report", results, "--out", tmp_path / "report.html")
    assert "(2 runs of 1 study, 1 of them quick)" in result.stdout
    assert "Left out, as no cell of a study: 1 other JSON file" in result.stdout


def test_report_reads_and_writes_here_unless_told_otherwise(invoke, results, monkeypatch):
    monkeypatch.chdir(results.parent)
    assert invoke("report").exit_code == 0
    assert (results.parent / "report.html").is_file()


def test_damaged_result_is_one_sentence_that_names_it(invoke, results, tmp_path):
    (results / "mcr" / "half.json").write_text('{"study"', encoding="utf-8")
    result = invoke("report", results, "--out", tmp_path / "report.html")
    assert result.exit_code == 2
    assert "half.json is damaged: it is not JSON" in result.stderr
    assert not (tmp_path / "report.html").exists()


def test_help_shows_an_example(invoke):
    assert "bayesify report results --out pages/report.html" in invoke("report", "--help").output
