"""A small trained run, made once by the command line itself."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from bayesify.cli import app

SMALL = ["--model", "mlp", "--set", "model.hidden=[8]", "--data", "digits", "--batch-size", "256"]

Invoke = Callable[..., Any]


@pytest.fixture(scope="session")
def invoke() -> Invoke:
    """Return a function that runs a command and gives its exit code and its output."""

    def run(*arguments: object) -> Any:
        return CliRunner().invoke(app, [str(entry) for entry in arguments])

    return run


@pytest.fixture(scope="session")
def small() -> list[str]:
    """Return the flags of a run that takes a fraction of a second."""
    return list(SMALL)


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory, invoke: Invoke) -> Path:
    """Return the folder of a finished run."""
    folder = tmp_path_factory.mktemp("cli") / "run"
    result = invoke("fit", *SMALL, "--epochs", 2, "--beta", 0.01, "--run-dir", folder)
    assert result.exit_code == 0, result.output
    return folder
