"""`bayesify evaluate`: a table, and the same numbers in evaluation.json."""

import json

import pytest

import bayesify as bf


def test_evaluate_writes_what_it_shows(run_folder, invoke):
    result = invoke("evaluate", run_folder, "--ood", "shuffled", "--ood", "inverted")
    assert result.exit_code == 0, result.output
    found = json.loads((run_folder / "evaluation.json").read_text())
    assert found["data"] == "digits"
    assert found["num_examples"] == 360
    assert found["num_samples"] == 30
    assert set(found["ood"]) == {"shuffled", "inverted"}
    assert 0 <= found["ood"]["shuffled"]["auroc"] <= 1
    assert f"{found['metrics']['nll']:.4f}" in result.stdout
    assert found["versions"]["bayesify"] == bf.__version__


def test_evaluate_follows_from_its_seed(run_folder, invoke, tmp_path):
    found = []
    for seed in (0, 0, 1):
        path = tmp_path / "found.json"
        arguments = ["--num-samples", 3, "--seed", seed, "--out", path]
        assert invoke("evaluate", run_folder, *arguments).exit_code == 0
        found.append(json.loads(path.read_text())["metrics"]["nll"])
    assert found[0] == found[1] != found[2]


def test_evaluate_takes_metrics_ways_and_a_model_file(run_folder, invoke, tmp_path):
    path = tmp_path / "found.json"
    arguments = ["--metric", "brier", "--by", "mean", "--out", path]
    result = invoke("evaluate", run_folder / "model.safetensors", *arguments)
    assert result.exit_code == 0, result.output
    found = json.loads(path.read_text())
    assert list(found["metrics"]) == ["brier"]
    assert found["made_by"] == "mean weights"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["--ood", "shufled"],
            "unknown out-of-distribution data 'shufled'. Did you mean 'shuffled'",
        ),
        (["--ood", "two_moons"], "data set 'two_moons' has inputs of shape (2,)"),
        (["--metric", "nlll"], "unknown metric 'nlll'. Did you mean 'nll'?"),
        (["--by", "magic"], "unknown way to predict with mean_field 'magic'"),
        (["--data", "digitz"], "unknown data set 'digitz'. Did you mean 'digits'?"),
    ],
)
def test_evaluate_answers_a_slip_by_one_sentence(run_folder, invoke, arguments, sentence):
    result = invoke("evaluate", run_folder, *arguments)
    assert result.exit_code == 2
    assert sentence in result.stderr
