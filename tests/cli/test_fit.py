"""`bayesify fit`: recipes, flags, run folders, and going on after Ctrl-C."""

import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
import torch

from bayesify.archive import read_archive
from bayesify.recipes.run_folder import RunFolder

RECIPE = """
seed = 1
[model]
name = "mlp"
hidden = [8]
[data]
name = "digits"
batch_size = 256
[method]
name = "mean_field"
prior_std = 0.3
[fit]
epochs = 3
"""


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return read_archive(RunFolder(folder).model, "model")[0]


def assert_same_weights(one: Path, other: Path) -> None:
    first, second = weights(one), weights(other)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[key], second[key]) for key in first)


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(RECIPE)
    return path


def test_fit_leaves_a_run_folder_and_says_what_comes_next(run_folder, invoke):
    run = RunFolder(run_folder)
    for path in (run.config, run.metrics, run.checkpoint, run.model, run_folder / "log.txt"):
        assert path.is_file()
    config = tomllib.loads(run.config.read_text())
    assert config["model"]["hidden"] == [8]
    assert config["model"]["in_features"] == 64
    assert config["fit"]["beta"] == 0.01
    assert "run_dir" not in config["fit"]


def test_flags_win_over_the_recipe(recipe, invoke, tmp_path):
    folder = tmp_path / "run"
    flags = ["--epochs", 1, "--seed", 7, "--learning-rate", 0.01, "--validation", 100]
    chosen = ["--set", "method.how=local", "--set", "model.hidden=[4, 4]", "--beta", "warm_up"]
    result = invoke("fit", recipe, *flags, *chosen, "--run-dir", folder)
    assert result.exit_code == 0, result.output
    config = tomllib.loads((folder / "config.toml").read_text())
    assert config["seed"] == 7
    assert config["data"]["validation"] == 100
    assert config["model"]["hidden"] == [4, 4]
    assert (config["method"]["how"], config["method"]["prior_std"]) == ("local", 0.3)
    fit = config["fit"]
    assert (fit["epochs"], fit["learning_rate"], fit["beta"]) == (1, 0.01, "warm_up")
    assert "1,337 training and 100 validation examples" in result.stderr
    assert f"bayesify evaluate {folder}" in result.stdout.replace("\n", "")


def test_run_folder_is_named_after_the_recipe_or_its_choices(recipe, invoke, small, tmp_path):
    before = Path.cwd()
    os.chdir(tmp_path)
    try:
        assert invoke("fit", recipe, "--epochs", 1).exit_code == 0
        assert invoke("fit", *small, "--epochs", 1, "--method", "deterministic").exit_code == 0
    finally:
        os.chdir(before)
    assert (tmp_path / "runs" / "run" / "model.safetensors").is_file()
    assert (tmp_path / "runs" / "digits-mlp-deterministic" / "model.safetensors").is_file()


def test_config_of_a_run_is_a_recipe_for_the_same_run(run_folder, invoke, tmp_path):
    folder = tmp_path / "again"
    assert invoke("fit", run_folder / "config.toml", "--run-dir", folder).exit_code == 0
    assert_same_weights(run_folder, folder)


def test_resume_ends_with_the_weights_of_an_uninterrupted_run(recipe, invoke, tmp_path):
    whole, parted = tmp_path / "whole", tmp_path / "parted"
    # A constant rate does not look ahead, so that a run cut short is the beginning of the whole.
    steady = ["--set", "fit.schedule=constant"]
    assert invoke("fit", recipe, *steady, "--run-dir", whole).exit_code == 0
    begun = invoke("fit", recipe, *steady, "--epochs", 1, "--run-dir", parted)
    assert begun.exit_code == 0
    assert invoke("fit", recipe, "--run-dir", parted).exit_code == 2
    result = invoke("fit", parted, "--resume", "--epochs", 3)
    assert result.exit_code == 0, result.output
    assert "epoch 2/3" in result.stderr
    assert "epoch 1/3" not in result.stderr
    assert_same_weights(whole, parted)


def test_resume_by_run_dir_alone_reads_the_recipe_there(run_folder, invoke):
    result = invoke("fit", "--resume", "--run-dir", run_folder)
    assert result.exit_code == 0, result.output
    assert "after 2 epochs" in result.stdout


def test_fit_refuses_to_overwrite_unless_told(run_folder, invoke, small, tmp_path):
    result = invoke("fit", *small, "--run-dir", run_folder)
    assert result.exit_code == 2
    assert "holds a run already" in result.stderr
    folder = tmp_path / "run"
    for _ in range(2):
        done = invoke("fit", *small, "--epochs", 1, "--run-dir", folder, "--overwrite")
        assert done.exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "model.name must be given. Known: "),
        (["--model", "mlp"], "data.name must be given. Known: "),
        (["--model", "mpl", "--data", "digits"], "unknown model 'mpl'. Did you mean 'mlp'?"),
        (["--set", "prior_std"], "--set must read TABLE.KEY=VALUE"),
        (["--set", "prior_std=3"], "--set must read TABLE.KEY=VALUE"),
        (["--set", "methd.prior_std=3"], "unknown key of a recipe 'methd'. Did you mean 'method'?"),
        (["no_such_recipe.toml"], "there is no file no_such_recipe.toml"),
        (["--resume", "--run-dir", "no/such/run"], "is not the folder of a run"),
    ],
)
def test_a_slip_is_answered_by_one_sentence(invoke, arguments, sentence):
    result = invoke("fit", *arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: ")
    assert sentence in result.stderr
    assert result.stderr.count("\n") == 1


def test_regression_runs_from_recipe_to_prediction(invoke, tmp_path):
    folder = tmp_path / "curve"
    flags = ["--model", "mlp", "--data", "curve_1d", "--validation", 0, "--epochs", 2]
    assert invoke("fit", *flags, "--run-dir", folder).exit_code == 0
    result = invoke("evaluate", folder)
    assert result.exit_code == 0, result.output
    assert "rmse" in result.stdout


@pytest.mark.slow
def test_ctrl_c_saves_says_how_to_resume_and_resumes_to_the_same_weights(invoke, tmp_path):
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    flags = ["--model", "mlp", "--set", "model.hidden=[128,128]", "--data", "digits"]
    flags += ["--batch-size", "16", "--epochs", "4"]
    command = [sys.executable, "-W", "error", "-m", "bayesify", "fit", *flags]
    process = subprocess.Popen(
        [*command, "--run-dir", str(stopped)],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    while not RunFolder(stopped).metrics.is_file():
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, shown = process.communicate(timeout=120)
    assert process.returncode == 130, shown
    assert f"stopped; go on with bayesify fit {stopped} --resume" in shown
    assert not RunFolder(stopped).model.is_file()
    assert invoke("predict", stopped).exit_code == 2
    assert invoke("fit", stopped, "--resume").exit_code == 0
    assert invoke("fit", *flags, "--run-dir", whole).exit_code == 0
    assert_same_weights(whole, stopped)
