"""Where a figure comes from: what every result file says of itself."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import torch

from bayesify.recipes.provenance import provenance as provenance_of


def provenance(script: str) -> dict[str, Any]:
    """Return the command, hardware, versions and commit of a run of this script."""
    flags = [word for word in sys.argv[1:] if not Path(word).is_absolute()]
    return provenance_of(shlex.join(["python", f"benchmarks/{Path(script).name}", *flags]))


def store(path: Path | None, report: dict[str, Any]) -> None:
    """Write a report beside the one of the other kind of machine, if there is one."""
    if path is None:
        return
    stored = json.loads(path.read_text()) if path.is_file() else {}
    stored["gpu" if torch.cuda.is_available() else "cpu"] = report
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(stored, indent=2) + "\n")
