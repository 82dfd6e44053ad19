"""Help teaches, errors are one sentence, and `python -m bayesify` is the same program."""

import os
import subprocess
import sys

import pytest

import bayesify as bf

COMMANDS = (
    "demo",
    "fit",
    "predict",
    "evaluate",
    "compress",
    "export",
    "summary",
    "reproduce",
    "report",
)


def test_help_lists_every_command_in_order(invoke):
    shown = invoke("--help").output
    places = [shown.index(f" {name} ") for name in COMMANDS]
    assert places == sorted(places)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command_shows_an_example(invoke, name):
    result = invoke(name, "--help")
    assert result.exit_code == 0
    assert f"bayesify {name} " in result.output.replace(f"bayesify {name} [OPTIONS]", "")


def test_help_of_fit_names_the_tables_of_a_recipe(invoke):
    shown = invoke("fit", "--help").output
    for table in ("[model]", "[data]", "[method]", "[fit]"):
        assert table in shown


def test_no_arguments_shows_the_help(invoke):
    assert "Usage" in invoke().output


def test_version_is_printed(invoke):
    result = invoke("--version")
    assert (result.exit_code, result.output.strip()) == (0, bf.__version__)


def test_error_of_the_library_is_one_sentence_with_exit_code_2(invoke, tmp_path):
    result = invoke("evaluate", tmp_path / "nothing")
    assert result.exit_code == 2
    assert result.stdout == ""
    expected = f"Error: there is no model file or run folder {tmp_path / 'nothing'}"
    assert result.stderr.strip() == expected


def test_square_brackets_in_an_error_are_shown_as_they_are(invoke, small):
    result = invoke("fit", *small, "--set", "fit.epohcs=3")
    assert result.exit_code == 2
    assert "unknown [fit] option 'epohcs'. Did you mean 'epochs'?" in result.stderr


@pytest.mark.parametrize("place", [0, 1, 2])
def test_debug_lets_the_error_through_wherever_it_stands(invoke, tmp_path, place):
    arguments = ["evaluate", str(tmp_path / "nothing")]
    arguments.insert(place, "--debug")
    result = invoke(*arguments)
    assert isinstance(result.exception, FileNotFoundError)


def test_wrong_flag_is_a_usage_error(invoke):
    result = invoke("fit", "--epocks", 3)
    assert result.exit_code == 2
    assert "--epochs" in result.stderr


def test_module_runs_as_a_program():
    environment = {**os.environ, "NO_COLOR": "1", "COLUMNS": "100"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "bayesify", "evaluate", "no/such/run"],
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode == 2
    assert done.stderr.strip() == "Error: there is no model file or run folder no/such/run"
    assert done.stdout == ""
