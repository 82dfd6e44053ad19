"""`bayesify predict`: predictions with their uncertainty, as a table or a CSV file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table
from torch import Tensor

from bayesify.archive import write_atomically
from bayesify.cli.console import answers
from bayesify.cli.predict_exported import predict_exported
from bayesify.prediction import Predictive
from bayesify.prediction import predict as predict_with
from bayesify.prediction.predictive import ClassificationPredictive, RegressionPredictive
from bayesify.recipes.trained import Trained, load_trained
from bayesify_runtime.tables import Columns, as_csv

_NUM_SHOWN = 10
# What an exported file has settled: choices of the command line that it cannot follow.
_SETTLED = ("num_samples", "by", "device", "seed")


def predict(
    context: typer.Context,
    path: Annotated[
        Path,
        typer.Argument(
            metavar="RUN_OR_MODEL", help="A run's folder, a model file or an exported .onnx file."
        ),
    ],
    data: Annotated[
        str | None,
        typer.Option(
            help="Data set (its test part), or an .npy or .csv file of inputs; .npz for an "
            ".onnx file of several inputs."
        ),
    ] = None,
    num_samples: Annotated[int, typer.Option(help="Posterior samples per prediction.")] = 30,
    by: Annotated[str | None, typer.Option(help="How to predict: sample, local, mean, ...")] = None,
    batch_size: Annotated[int, typer.Option(help="Examples per pass.")] = 256,
    data_root: Annotated[str | None, typer.Option(help="Folder of the data files.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, ...")] = "auto",
    seed: Annotated[int, typer.Option(help="Seed of the samples.")] = 0,
    out: Annotated[Path | None, typer.Option(help="CSV file for every prediction.")] = None,
) -> None:
    """Predict, and say how sure: what is noise (aleatoric), what is ignorance (epistemic).

    [cyan]bayesify predict runs/small --data digits --num-samples 30 --out predictions.csv[/cyan]

    [cyan]bayesify predict runs/small --data my_images.npy[/cyan]

    [cyan]bayesify predict model.onnx --data my_images.npy[/cyan]

    Without --data it predicts the test part of the data set it was trained
    on. A file holds one example per row, on the scale the training data is
    stored in (images 0..255 as integers, 0..1 in floating point).

    The terminal shows the examples the model is least sure of; --out writes
    all of them. Entropies are in nats.
    """
    if path.suffix in (".onnx", ".pt2"):
        _check_settled(context, path)
        answer = predict_exported(path, data, data_root, batch_size)
        columns = _with_targets(answer.columns, answer.targets, answer.classes)
        _show_least_sure(columns, answer.made_by)
        _write(out, columns)
        return
    trained = load_trained(path).on(device)
    inputs, targets = _examples(trained, data, data_root)
    predictive = predict_with(
        trained.model, inputs, num_samples=num_samples, by=by, batch_size=batch_size, seed=seed
    ).to("cpu")
    columns = prediction_columns(predictive, trained.classes, targets)
    _show_least_sure(columns, predictive.made_by)
    _write(out, columns)


def prediction_columns(
    predictive: Predictive, classes: Sequence[str] | None = None, targets: Tensor | None = None
) -> Columns:
    """Return a prediction as columns, one row per example; (N, C) classes or (N, ...) numbers."""
    columns: Columns = {"example": list(range(len(predictive)))}
    if targets is not None:
        columns |= _target_columns(targets, classes)
    if isinstance(predictive, ClassificationPredictive):
        if predictive.probs.ndim != 2:
            shape = tuple(predictive.probs.shape[1:])
            raise ValueError(
                f"a table needs one class per example, got outputs of shape {shape}; use "
                "bayesify.predict in Python for predictions with positions"
            )
        names = classes or [str(index) for index in range(predictive.probs.shape[1])]
        columns["predicted"] = [names[index] for index in predictive.classes.tolist()]
        columns["probability"] = predictive.probs.amax(1).tolist()
        columns["entropy"] = predictive.entropy.tolist()
        columns["aleatoric"] = predictive.aleatoric.tolist()
        columns["epistemic"] = predictive.epistemic.tolist()
        probs = zip(names, predictive.probs.unbind(1), strict=True)
        return columns | {f"probability_{name}": column.tolist() for name, column in probs}
    parts = {"mean": predictive.mean, "std": predictive.std}
    if isinstance(predictive, RegressionPredictive):
        low, high = predictive.interval(0.95)
        parts |= {"aleatoric": predictive.aleatoric, "epistemic": predictive.epistemic}
        parts |= {"low_95": low, "high_95": high}
    for name, values in parts.items():
        columns |= _numbered(name, values)
    return columns


def write_columns(path: Path, columns: Columns) -> None:
    """Write columns as a CSV file, whole or not at all."""
    write_atomically(path, lambda file: file.write(as_csv(columns).encode()))


def _write(out: Path | None, columns: Columns) -> None:
    if out is not None:
        write_columns(out, columns)
        number = len(columns["example"])
        answers.print(f"{number:,} predictions written to [bold]{escape(str(out))}[/bold]")


def _check_settled(context: typer.Context, path: Path) -> None:
    for name in _SETTLED:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            flag = f"--{name.replace('_', '-')}"
            raise ValueError(
                f"{flag} cannot be chosen for {path}: an exported file predicts in one way, on "
                "the CPU; leave it out, or give the run's folder"
            )


def _with_targets(
    columns: Columns, targets: Tensor | None, classes: Sequence[str] | None
) -> Columns:
    if targets is None:
        return columns
    first = {"example": columns["example"]}
    return {**first, **_target_columns(targets, classes), **columns}


def _examples(
    trained: Trained, data: str | None, data_root: str | None
) -> tuple[Tensor, Tensor | None]:
    if data is not None and (Path(data).suffix or Path(data).exists()):
        return trained.read_inputs(data), None
    part = trained.load_data(data, data_root).test
    return part.__getitems__(range(len(part)))


def _target_columns(targets: Tensor, classes: Sequence[str] | None) -> Columns:
    if targets.is_floating_point() or targets.ndim != 1:
        return _numbered("target", targets)
    indices: list[int] = targets.tolist()
    is_named = classes is not None and max(indices, default=0) < len(classes)
    return {"target": [classes[i] for i in indices] if classes and is_named else indices}


def _numbered(name: str, values: Tensor) -> Columns:
    flat = values.reshape(len(values), -1)
    if flat.shape[1] == 1:
        return {name: flat[:, 0].tolist()}
    return {f"{name}_{index}": column.tolist() for index, column in enumerate(flat.unbind(1))}


def _show_least_sure(columns: Columns, made_by: str) -> None:
    number = len(columns["example"])
    doubts = [columns[name] for name in columns if name.split("_")[0] in ("entropy", "std")]
    # What is not a number counts as sure.
    rows = zip(*doubts, strict=True)
    doubt = [sum(0.0 if math.isnan(value) else value for value in row) for row in rows]
    order = sorted(range(number), key=lambda index: -doubt[index] if doubt else 0.0)[:_NUM_SHOWN]
    shown = [name for name in columns if not name.startswith("probability_")][:10]
    which = "least sure" if doubt else "first"
    table = Table(title=f"{which} of {number:,}: {escape(made_by)}")
    for name in shown:
        table.add_column(name, justify="right")
    for index in order:
        table.add_row(*(_cell(columns[name][index]) for name in shown))
    answers.print(table)


def _cell(value: float | str) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)
