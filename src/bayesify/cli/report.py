"""`bayesify report`: one HTML page about reproduced studies."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from bayesify.cli.console import answers
from bayesify.report.averages import counted
from bayesify.report.page import write_report


def report(
    results: Annotated[
        Path, typer.Argument(metavar="RESULTS", help="Folder of results, one JSON file per run.")
    ] = Path("results"),
    out: Annotated[Path, typer.Option(help="Where the page goes.")] = Path("report.html"),
) -> None:
    """Write one HTML page: studies beside their papers' numbers, with figures.

    The page needs no other file and no network. Quick runs are marked and
    kept apart from full ones; runs that differ in their seed are averaged.

    [cyan]bayesify report[/cyan]

    [cyan]bayesify report results --out pages/report.html[/cyan]
    """
    written = write_report(results, out)
    runs = counted(written.num_cells, "run")
    held = f"{runs} of {counted(written.num_studies, 'study', 'studies')}"
    quick = f", {written.num_quick} of them quick" if written.num_quick else ""
    # A path must not be broken in two: people copy it.
    path = f"[bold]{escape(str(written.path))}[/bold]"
    answers.print(f"Report: {path}   ({held}{quick})", soft_wrap=True)
    if written.skipped:
        files = counted(len(written.skipped), "other JSON file")
        answers.print(f"Left out, as no cell of a study: {files}")
