"""What a person sees of a run: a bar in a terminal, lines in log.txt, rows in metrics.csv."""

from __future__ import annotations

import csv
import io
import logging
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from bayesify.archive import write_atomically

logger = logging.getLogger("bayesify")


class Reporter:
    """Shows and records the progress of one run.

    Args:
        epochs: Number of epochs of the run.
        run_path: The run's folder, or None to record nothing.
        show_bar: Whether to show a bar; None shows one where standard error is a terminal.
        use_tensorboard: Whether to write TensorBoard events.
        is_writer: False on every process but one, which then stays silent.
    """

    def __init__(
        self,
        epochs: int,
        run_path: Path | None,
        *,
        show_bar: bool | None,
        use_tensorboard: bool,
        is_writer: bool,
    ) -> None:
        self.epochs = epochs
        self.run_path = run_path if is_writer else None
        self.show_bar = is_writer and (sys.stderr.isatty() if show_bar is None else show_bar)
        self._bar: Any = None
        self._task: Any = None
        self._is_waiting = False
        self._board: Any = None
        if use_tensorboard and self.run_path is not None:
            self._board = _summary_writer(self.run_path / "tensorboard")

    def __enter__(self) -> Reporter:
        if self.show_bar:
            self._bar = _progress_bar()
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        if self._board is not None:
            self._board.close()

    def start(
        self, num_batches: int | None, epoch: int, batch: int, *, compiles: bool = False
    ) -> None:
        """Show a run of `epochs` × `num_batches` steps that stands at this position.

        Where the first step `compiles` the network it says so: that can take minutes.
        """
        if self._bar is None:
            return
        total = None if num_batches is None else self.epochs * num_batches
        done = epoch * (num_batches or 0) + batch
        waiting = "compiling, for minutes" if compiles and epoch < self.epochs else ""
        self._is_waiting = bool(waiting)
        self._task = self._bar.add_task(
            f"epoch {epoch + 1}/{self.epochs}", total=total, values=waiting
        )
        self._bar.update(self._task, completed=done)

    def step(self, epoch: int, values: Mapping[str, float] | None) -> None:
        """Advance the bar by one batch; values are shown when given."""
        if self._bar is None:
            return
        shown = {} if values is None else {"values": _inline(values)}
        if values is None and self._is_waiting:
            shown = {"values": ""}
        self._is_waiting = False
        self._bar.update(
            self._task, advance=1, description=f"epoch {epoch + 1}/{self.epochs}", **shown
        )

    def epoch(self, row: Mapping[str, float], history: Sequence[Mapping[str, float]]) -> None:
        """Record an epoch everywhere."""
        line = f"epoch {int(row['epoch'])}/{self.epochs}  {_inline(row, skip=('epoch',))}"
        logger.info(line)
        if self.run_path is None:
            return
        with (self.run_path / "log.txt").open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        write_csv(self.run_path / "metrics.csv", history)
        if self._board is not None:
            for name, value in row.items():
                self._board.add_scalar(name, value, int(row["epoch"]))

    def note(self, text: str) -> None:
        """Record one sentence about the run."""
        logger.info(text)
        if self._bar is not None:
            self._bar.console.print(text)
        if self.run_path is not None:
            with (self.run_path / "log.txt").open("a", encoding="utf-8") as file:
                file.write(text + "\n")


def write_csv(path: Path, rows: Sequence[Mapping[str, float]]) -> None:
    """Write rows as CSV in one piece; columns are all keys, in the order they first appear."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(path, lambda file: file.write(text.getvalue().encode()))


def _inline(values: Mapping[str, float], skip: tuple[str, ...] = ()) -> str:
    # "sparsity/fc.weight" and its like, one per layer, are for the table of the run.
    return "  ".join(f"{k} {v:.4g}" for k, v in values.items() if k not in skip and "/" not in k)


def _progress_bar() -> Any:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    return Progress(
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[values]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        refresh_per_second=4,
    )


def _summary_writer(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ImportError(
            "tensorboard=True needs TensorBoard: pip install bayesify[tensorboard]"
        ) from error
    return SummaryWriter(str(folder))
