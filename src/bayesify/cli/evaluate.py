"""`bayesify evaluate`: score a trained model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.markup import escape

from bayesify.cli.console import answers
from bayesify.data import DataSet, TensorData, datasets, loader
from bayesify.evaluation import evaluate as evaluate_model
from bayesify.recipes.ood import make_ood, ood_variants
from bayesify.recipes.run_folder import RunFolder, write_json
from bayesify.recipes.trained import Trained, load_trained
from bayesify.registry import unknown
from bayesify.version import __version__


def evaluate(
    path: Annotated[
        Path, typer.Argument(metavar="RUN_OR_MODEL", help="A run's folder or a model file.")
    ],
    data: Annotated[
        str | None, typer.Option(help="Data set; by default the one it was trained on.")
    ] = None,
    ood: Annotated[
        list[str] | None,
        typer.Option(help="Out-of-distribution data: a data set or a variant. May be repeated."),
    ] = None,
    num_samples: Annotated[int, typer.Option(help="Posterior samples per prediction.")] = 30,
    by: Annotated[str | None, typer.Option(help="How to predict: sample, local, mean, ...")] = None,
    metric: Annotated[
        list[str] | None, typer.Option(help="A metric; by default the task's. May be repeated.")
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Examples per pass.")] = 256,
    data_root: Annotated[str | None, typer.Option(help="Folder of the data files.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, ...")] = "auto",
    seed: Annotated[int, typer.Option(help="Seed of the samples.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="JSON file; a run's folder gets evaluation.json.")
    ] = None,
) -> None:
    """Score a model on test data, and on how well it tells strange data apart.

    [cyan]bayesify evaluate runs/small[/cyan]

    [cyan]bayesify evaluate runs/lenet --data mnist --ood fashion_mnist --ood rotated[/cyan]

    Strange data is another data set with inputs of the same shape, or a
    variant of the test data itself: inverted, noise, rotated, shuffled.
    Both are normalised as the training data was.
    """
    trained = load_trained(path).on(device)
    familiar = trained.load_data(data, data_root)
    strange = {name: _strange(name, trained, familiar, data_root) for name in ood or []}
    torch.manual_seed(seed)
    found = evaluate_model(
        trained.model,
        loader(familiar.test, batch_size),
        ood={name: loader(part, batch_size) for name, part in strange.items()},
        num_samples=num_samples,
        by=by,
        metrics=metric or None,
        progress=None,
    )
    answers.print(f"[bold]{escape(str(trained.path))}[/bold] on {familiar.name}")
    answers.print(found)
    content = {
        "model": str(trained.path),
        "data": familiar.name,
        "seed": seed,
        **found.to_dict(),
        "versions": {"bayesify": __version__, "torch": torch.__version__},
    }
    _write(content, path, out)


def _strange(name: str, trained: Trained, familiar: DataSet, root: str | None) -> TensorData:
    if name in ood_variants:
        return make_ood(familiar.test, name)
    if name not in datasets:
        raise LookupError(unknown("out-of-distribution data", name, [*ood_variants, *datasets]))
    return trained.load_data(name, root).test


def _write(content: dict[str, Any], path: Path, out: Path | None) -> None:
    if out is None and path.is_dir():
        out = RunFolder(path).evaluation
    if out is not None:
        write_json(out, content)
        answers.print(f"written to [bold]{escape(str(out))}[/bold]")
