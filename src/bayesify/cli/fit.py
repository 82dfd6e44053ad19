"""`bayesify fit`: train what a recipe describes."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from bayesify.cli.assignments import read_assignments, read_value
from bayesify.cli.console import answers, errors
from bayesify.conversion.method import methods
from bayesify.conversion.posterior import posteriors
from bayesify.data import datasets
from bayesify.models.catalogue import models
from bayesify.recipes.recipe import Recipe, make_recipe, read_recipe
from bayesify.recipes.run import Parts, run_recipe
from bayesify.recipes.run_folder import RunFolder
from bayesify.registry import Registry
from bayesify.training import History

_INTERRUPTED = 130


def _names(word: str, registry: Registry[Any]) -> str:
    return f"{word}: {', '.join(registry)}."


def fit(
    recipe: Annotated[
        Path | None,
        typer.Argument(
            help="A recipe (TOML), or the folder of an earlier run.", show_default=False
        ),
    ] = None,
    model: Annotated[str | None, typer.Option(help=_names("Model", models))] = None,
    data: Annotated[str | None, typer.Option(help=_names("Data", datasets))] = None,
    method: Annotated[str | None, typer.Option(help=_names("Method", methods))] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the training data.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Examples per step.")] = None,
    validation: Annotated[
        float | None, typer.Option(help="Share of the training data to hold out; 0 for none.")
    ] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Step size of the means.")] = None,
    beta: Annotated[
        str | None, typer.Option(help="Weight of the KL: a number or a schedule.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of everything random.")] = None,
    choose: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any other choice: TABLE.KEY=VALUE. May be repeated."),
    ] = None,
    run_dir: Annotated[Path | None, typer.Option(help="Folder of the run.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where the run stopped.")] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a run that lies in the folder.")
    ] = False,
) -> None:
    r"""Train a network as a recipe, flags, or both describe it. Flags win.

    [bold]Without a recipe:[/bold]

    [cyan]bayesify fit --model mlp --data digits --method mean_field --epochs 20[/cyan]

    [bold]With one,[/bold] some of it changed by flags:

    [cyan]bayesify fit run.toml --epochs 5 --set method.prior_std=0.2[/cyan]

    [bold]Stopped with Ctrl-C,[/bold] or killed? Go on to the very same weights:

    [cyan]bayesify fit runs/run --resume[/cyan]

    A recipe is a TOML file with the tables \[model], \[data] and \[method],
    each with a name and its options, \[fit] with any field of FitSettings,
    and a seed. Options that the data decide, such as in_features, may be
    left out. A flag that names another model, data set or method drops the
    recipe's options of the old one.

    The run's folder holds config.toml (every choice made), metrics.csv,
    log.txt, checkpoint.safetensors and, at the end, model.safetensors.
    """
    named: dict[str, Any] = {"model": {"name": model}, "method": {"name": method}}
    named["data"] = {"name": data, "batch_size": batch_size, "validation": _share(validation)}
    named["fit"] = {
        "epochs": epochs,
        "learning_rate": learning_rate,
        "beta": None if beta is None else read_value(beta),
    }
    changes = _changes({**named, "seed": seed}, choose or [])
    described, run = _recipe_and_folder(recipe, run_dir, changes, resume=resume)
    # Under torchrun every process trains and one speaks.
    is_speaker = os.environ.get("RANK", "0") == "0"
    try:
        with _epochs_logged() if is_speaker else nullcontext():
            parts, history = run_recipe(
                described,
                run,
                resume=resume,
                overwrite=overwrite,
                on_start=(lambda parts: _announce(parts, run)) if is_speaker else None,
            )
    except KeyboardInterrupt as error:
        hint = f"; go on with [bold]bayesify fit {escape(str(run.path))} --resume[/bold]"
        errors.print(f"[yellow]stopped[/yellow]{hint if run.has_begun else ''}")
        raise typer.Exit(_INTERRUPTED) from error
    if is_speaker:
        _report(parts, history, run)


def _recipe_and_folder(
    recipe: Path | None, run_dir: Path | None, changes: dict[str, Any], *, resume: bool
) -> tuple[Recipe, RunFolder]:
    if recipe is not None and recipe.is_dir():
        return RunFolder(recipe).read_recipe(changes), RunFolder(run_dir or recipe)
    if recipe is None and resume and run_dir is not None:
        return RunFolder(run_dir).read_recipe(changes), RunFolder(run_dir)
    described = make_recipe({}, changes) if recipe is None else read_recipe(recipe, changes)
    if run_dir is None and "run_dir" in described.fit:
        run_dir = Path(described.fit["run_dir"])
    if run_dir is None:
        names = (described.data["name"], described.model["name"], described.method["name"])
        run_dir = Path("runs") / ("-".join(names) if recipe is None else recipe.stem)
    return described, RunFolder(run_dir)


def _changes(flags: dict[str, Any], assignments: list[str]) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    for table, value in flags.items():
        if isinstance(value, dict):
            value = {key: entry for key, entry in value.items() if entry is not None} or None
        if value is not None:
            changes[table] = value
    for table, value in read_assignments(assignments).items():
        known = changes.get(table, {})
        changes[table] = {**known, **value} if isinstance(value, dict) else value
    return changes


def _share(validation: float | None) -> float | int | None:
    # A flag knows only numbers: 500 is a count, as it would be in a recipe.
    is_count = validation is not None and validation.is_integer()
    return int(validation) if is_count and validation is not None else validation


def _announce(parts: Parts, run: RunFolder) -> None:
    recipe = parts.recipe
    num_random = sum(site.num_random for site in posteriors(parts.model))
    num_parameters = sum(entry.numel() for entry in parts.model.parameters())
    held_out = 0 if parts.validation is None else len(_examples(parts.validation))
    errors.print(
        f"[bold]{recipe.method['name']}[/bold] {recipe.model['name']} on {recipe.data['name']}: "
        f"{len(_examples(parts.train)):,} training and {held_out:,} validation examples, "
        f"{num_parameters:,} parameters, {num_random:,} random weights"
    )
    errors.print(f"run folder: {escape(str(run.path))}")


def _examples(loader: Any) -> Any:
    return loader.dataset


@contextmanager
def _epochs_logged() -> Iterator[None]:
    """Print a line per epoch where there is no terminal to draw a progress bar in."""
    logger = logging.getLogger("bayesify")
    handler = logging.StreamHandler(sys.stderr)
    before = logger.level
    if not sys.stderr.isatty():
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


def _report(parts: Parts, history: History, run: RunFolder) -> None:
    row = {key: value for key, value in history.last.items() if key not in ("epoch", "beta")}
    num_epochs = len(history.rows)
    plural = "s" * (num_epochs != 1)
    table = Table(title=f"after {num_epochs} epoch{plural}, {history.seconds:.1f} s")
    for name in row:
        table.add_column(name, justify="right")
    table.add_row(*(f"{value:.4g}" for value in row.values()))
    answers.print(table)
    folder = escape(str(run.path))
    answers.print(f"The model is [bold]{escape(str(run.model))}[/bold]. Next:")
    strange = "" if parts.data.task == "regression" else " --ood shuffled"
    answers.print(f"  bayesify evaluate {folder}{strange}", highlight=False)
    answers.print(f"  bayesify predict {folder} --out predictions.csv", highlight=False)
