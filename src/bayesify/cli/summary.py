"""`bayesify summary`: what of a network is random, and what is not, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from torch import nn

from bayesify.cli.console import answers
from bayesify.recipes.recipe import read_recipe
from bayesify.recipes.run import build
from bayesify.recipes.run_folder import RunFolder
from bayesify.recipes.trained import load_trained


def summary(
    path: Annotated[
        Path,
        typer.Argument(metavar="MODEL_OR_RECIPE", help="A model file, a run's folder or a recipe."),
    ],
) -> None:
    """List every tensor of a network: its posterior, or why it has none.

    [cyan]bayesify summary runs/small[/cyan]

    [cyan]bayesify summary run.toml[/cyan]   (before training: nothing is trained or written)
    """
    from bayesify.conversion.summary import summary as summarise

    answers.print(f"[bold]{escape(str(path))}[/bold]")
    answers.print(summarise(_model(path)))


def _model(path: Path) -> nn.Module:
    if path.suffix == ".toml":
        return build(read_recipe(path)).model
    run = RunFolder(path)
    if path.is_dir() and run.config.is_file() and not run.model.is_file():
        return build(run.read_recipe()).model
    return load_trained(path).model
