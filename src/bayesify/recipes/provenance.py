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
    # A file that a run has just written must not make the code that wrote it look changed.
    question = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    try:
        answer = subprocess.run(
            question, capture_output=True, text=True, check=False, cwd=Path(__file__).parent
        )
    except OSError:
        return "unknown"
    return answer.stdout.strip() or "unknown"


def _processor() -> str:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{platform.machine()} CPU, {cores} cores"
