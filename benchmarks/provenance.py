"""Where a figure comes from: what every result file says of itself."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch


def provenance(script: str) -> dict[str, Any]:
    """Return the command, hardware, torch version and commit of a run of this script."""
    is_gpu = torch.cuda.is_available()
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    ).stdout.strip()
    return {
        "command": f"python benchmarks/{Path(script).name}",
        "hardware": torch.cuda.get_device_name() if is_gpu else f"{platform.machine()} CPU",
        "num_threads": torch.get_num_threads(),
        "torch": torch.__version__,
        # A copy of the tree without its history can be told which commit it is of.
        "commit": commit or os.environ.get("BAYESIFY_COMMIT", "unknown"),
    }


def store(path: Path | None, report: dict[str, Any]) -> None:
    """Write a report beside the one of the other kind of machine, if there is one."""
    if path is None:
        return
    stored = json.loads(path.read_text()) if path.is_file() else {}
    stored["gpu" if torch.cuda.is_available() else "cpu"] = report
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(stored, indent=2) + "\n")
