"""`bayesify summary`: of a model, of a run, and of a recipe before it is run."""

import pytest


@pytest.mark.parametrize("name", ["", "model.safetensors", "config.toml"])
def test_summary_lists_random_and_deterministic_tensors(run_folder, invoke, name):
    result = invoke("summary", run_folder / name)
    assert result.exit_code == 0, result.output
    assert "2 of 4 tensors Bayesian by mean_field" in result.stdout
    assert "610 weights: 592 random, 18 deterministic" in result.stdout


def test_summary_of_an_unfinished_run_reads_its_recipe(run_folder, invoke, tmp_path):
    (tmp_path / "config.toml").write_bytes((run_folder / "config.toml").read_bytes())
    assert "592 random" in invoke("summary", tmp_path).stdout


def test_summary_says_when_there_is_nothing_to_summarise(invoke, tmp_path):
    result = invoke("summary", tmp_path)
    assert result.exit_code == 2
    assert "is not the folder of a run" in result.stderr
    foreign = tmp_path / "foreign.safetensors"
    foreign.write_bytes(b"not a model")
    result = invoke("summary", foreign)
    assert result.exit_code == 2
    assert "cannot be read as a bayesify file" in result.stderr
