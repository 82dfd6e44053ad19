"""Timing variants on one GPU: a process each, compiled side by side and timed in turn."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch

Row = dict[str, Any]
Result = TypeVar("Result")


def in_turn(names: Sequence[str], name: str, folder: Path, prepare: Callable[[], None]) -> Any:
    """Prepare (compile), wait until all others have, and return the lock that is one's turn."""
    prepare()
    torch.cuda.synchronize()
    (folder / f"ready-{names.index(name)}").touch()
    while len(list(folder.glob("ready-*"))) < len(names):
        time.sleep(0.2)
    turn = (folder / "turn").open("w")
    fcntl.flock(turn, fcntl.LOCK_EX)
    return turn


def give_row(names: Sequence[str], name: str, folder: Path, row: Row) -> None:
    """Hand what was measured to the parent process."""
    (folder / f"row-{names.index(name)}.json").write_text(json.dumps({"what": name, **row}))


def rows_of(script: str, names: Sequence[str], *options: str) -> list[Row]:
    """Run `script --one FOLDER OPTIONS --variant NAME` for every name and return their rows.

    A variant that fails makes the others wait for nothing: its place is marked as ready.
    """
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        command = [sys.executable, script, "--one", made, *options, "--variant"]
        children = {name: subprocess.Popen([*command, name]) for name in names}
        failed: set[str] = set()
        while any(child.poll() is None for child in children.values()):
            for name, child in children.items():
                if child.poll() and name not in failed:
                    failed.add(name)
                    (folder / f"ready-{names.index(name)}").touch()
            time.sleep(0.2)
        files = [folder / f"row-{number}.json" for number in range(len(names))]
        return [
            json.loads(file.read_text()) if file.exists() else {"what": name, "failed": True}
            for name, file in zip(names, files, strict=True)
        ]


def graphed(step: Callable[[], Result]) -> Callable[[], Result]:
    """Return a whole step, optimisers included, captured in one CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(5):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        value = step()

    def replay() -> Result:
        graph.replay()
        return value

    replay.captured = step  # pyright: ignore  the graph calls its kernels and writes its weights
    return replay


def milliseconds(call: Callable[[], object], inner: int = 5) -> float:
    """Return the time of one call, an average over a few, by the GPU's own clock."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(inner):
        call()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / inner
