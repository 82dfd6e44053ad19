"""Where a figure comes from: what every result file says of itself."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

from bayesify.version import __version__


def provenance(command: str) -> dict[str, Any]:
    """Return the command, commit, hardware and versions of a run."""
    is_gpu = torch.cuda.is_available()
    return {
        "command": command,
        "commit": _commit(),
        "hardware": torch.cuda.get_device_name() if is_gpu else _processor(),
        "num_threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "bayesify": __version__,
    }


def _commit() -> str:
    # A copy of the tree without its history can be told which commit it is of.
    told = os.environ.get("BAYESIFY_COMMIT")
    if told:
        return told
    try:
        commit = _git("rev-parse", "--short", "HEAD").stdout.strip()
        # The package alone: results that a run has just written are no change of the code.
        is_changed = _git("diff", "--quiet", "HEAD", "--", ".").returncode == 1
    except OSError:
        return "unknown"
    return f"{commit}-dirty" if commit and is_changed else commit or "unknown"


def _git(*arguments: str) -> subprocess.CompletedProcess[str]:
    package = Path(__file__).parents[1]
    return subprocess.run(
        ["git", *arguments], capture_output=True, text=True, check=False, cwd=package
    )


def _processor() -> str:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{platform.machine()} CPU, {cores} cores"
