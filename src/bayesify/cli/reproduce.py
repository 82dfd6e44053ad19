"""`bayesify reproduce`: run a published study again."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from bayesify.cli.assignments import read_assignments
from bayesify.cli.console import answers, errors
from bayesify.recipes.reproduce import Reproduction
from bayesify.recipes.reproduce import reproduce as carry_out
from bayesify.recipes.study import Cell, read_study, study_names


def reproduce(
    study: Annotated[
        str | None,
        typer.Argument(help="A study, such as vmlp/mnist_pruning.", show_default=False),
    ] = None,
    cell: Annotated[
        list[str] | None, typer.Option("--cell", help="Only this cell. May be repeated.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A small form, to see that everything runs.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of every run.")] = 0,
    choose: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change the recipe: TABLE.KEY=VALUE. May be repeated."),
    ] = None,
    results: Annotated[Path, typer.Option(help="Folder of the result files.")] = Path("results"),
    runs: Annotated[Path, typer.Option(help="Folder of checkpoints.")] = Path("runs"),
    overwrite: Annotated[
        bool,
        typer.Option(
            "--overwrite", help="Run cells again that have a result, or a run of another recipe."
        ),
    ] = False,
    show: Annotated[bool, typer.Option("--list", help="Only list the cells.")] = False,
) -> None:
    """Run a published study again, one result file per cell.

    [cyan]bayesify reproduce vmlp/mnist_pruning --quick[/cyan]

    Cells that have a result are left alone, and one that was interrupted goes
    on from its checkpoint. Without a study the published ones are listed.
    [cyan]bayesify report[/cyan] then makes a page of all results.
    """
    if study is None:
        _list_studies()
        return
    described = read_study(study)
    how = Reproduction(
        results=results,
        runs=runs,
        cells=tuple(cell or ()),
        is_quick=quick,
        seed=seed,
        overwrite=overwrite,
        changes=read_assignments(choose or []),
    )
    if show:
        for entry in how.chosen(described):
            answers.print(entry.name, highlight=False)
        return
    num_cells = len(how.chosen(described))
    done = {"cells": 0}

    def tell(entry: Cell, state: str) -> None:
        done["cells"] += state == "begins" or state == "there"
        words = {"there": "has a result already", "begins": "begins", "done": "done"}[state]
        errors.print(f"[{done['cells']}/{num_cells}] {entry.name}: {words}", markup=False)

    # Where the files go is a fact about one machine, not about the run.
    words = ["bayesify", "reproduce", study, *(["--quick"] if quick else [])]
    words += [word for name in cell or () for word in ("--cell", name)]
    words += ["--seed", str(seed)] if seed else []
    words += [word for choice in choose or () for word in ("--set", choice)]
    command = shlex.join(words)
    paths = carry_out(described, how, command, tell)
    folder = paths[0].parent if paths else results
    answers.print(f"{len(paths)} results in [bold]{escape(str(folder))}[/bold]. Next:")
    answers.print(f"  bayesify report {escape(str(results))}", highlight=False)


def _list_studies() -> None:
    table = Table("study", "what", "cells")
    for name in study_names():
        described: Any = read_study(name)
        table.add_row(name, described.title, str(len(described.cells())))
    answers.print(table)
