import json


def test_without_a_study_the_published_ones_are_listed(invoke):
    result = invoke("reproduce")
    assert result.exit_code == 0
    assert "vmlp/mnist_pruning" in result.output


def test_cells_are_listed_without_running(invoke, tmp_path):
    result = invoke("reproduce", "vmlp/regression", "--list", "--results", tmp_path)
    assert result.output.split() == [
        "dense-elbo",
        "dense-weak",
        "additive-elbo",
        "additive-weak",
        "frequentist-elbo",
    ]
    assert not list(tmp_path.iterdir())


def test_a_cell_is_run_with_changes_and_reported(invoke, tmp_path):
    folders = ("--results", tmp_path / "results", "--runs", tmp_path / "runs")
    cell = ("vmlp/regression", "--quick", "--cell", "dense-elbo", "--set", "fit.epochs=2")
    result = invoke("reproduce", *cell, *folders)
    assert result.exit_code == 0, result.output
    path = tmp_path / "results" / "quick" / "vmlp" / "regression" / "dense-elbo-changed-seed0.json"
    found = json.loads(path.read_text())
    assert len(found["history"]) == 2
    assert found["provenance"]["command"] == (
        "bayesify reproduce vmlp/regression --quick --cell dense-elbo --set fit.epochs=2"
    )
    page = tmp_path / "page.html"
    assert invoke("report", tmp_path / "results", "--out", page).exit_code == 0
    assert "40 points" in page.read_text()


def test_unknown_names_are_answered_by_a_sentence(invoke):
    assert "vmlp/regression" in invoke("reproduce", "vmlp/regresion").output
    assert "dense-elbo" in invoke("reproduce", "vmlp/regression", "--cell", "dense").output
