"""`bayesify export`: a trained model as a file that other programs run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.markup import escape
from torch import Tensor

from bayesify.cli.console import answers
from bayesify.exporting import export as export_to
from bayesify.exporting import read_manifest
from bayesify.exporting.export import What
from bayesify.recipes.trained import Trained, load_trained

# As many as tell the shape of a batch, and show that the file computes what torch does.
_NUM_EXAMPLES = 8


def export(
    path: Annotated[
        Path, typer.Argument(metavar="RUN_OR_MODEL", help="A run's folder or a model file.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="The file, .onnx or .pt2.", show_default="model.onnx, beside the model file"
        ),
    ] = None,
    what: Annotated[
        str, typer.Option(help="What the file computes: moments, mean or samples.")
    ] = "moments",
    num_samples: Annotated[int, typer.Option(help="Draws that a file of samples averages.")] = 16,
    data: Annotated[
        str | None,
        typer.Option(help="Data set, or .npy or .csv file of inputs, to try the file with."),
    ] = None,
    data_root: Annotated[str | None, typer.Option(help="Folder of the data files.")] = None,
) -> None:
    """Write a model to a file that runs without this library, and without torch.

    [cyan]bayesify export runs/small --out model.onnx --what moments[/cyan]

    Before it is put in place the file is run on a few examples, by default
    of the data set the model was trained on, and compared with torch.
    """
    trained = load_trained(path)
    target = out or trained.path.with_suffix(".onnx")
    export_to(
        trained.model,
        target,
        example_inputs=_examples(trained, data, data_root),
        what=cast(What, what),
        num_samples=num_samples,
        note=_note(trained),
    )
    outputs = ", ".join(entry["name"] for entry in read_manifest(target)["outputs"])
    size = f"{target.stat().st_size:,} bytes"
    answers.print(f"[bold]{escape(str(target))}[/bold]: {size}; it returns {outputs}")


def _examples(trained: Trained, data: str | None, data_root: str | None) -> Tensor:
    if data is not None and (Path(data).suffix or Path(data).exists()):
        return trained.read_inputs(data)[:_NUM_EXAMPLES]
    part = trained.load_data(data, data_root).test
    return part.__getitems__(range(min(len(part), _NUM_EXAMPLES)))[0]


def _note(trained: Trained) -> dict[str, Any]:
    known = trained.data
    preprocessing = None
    if known.get("mean") is not None:
        preprocessing = {"mean": known["mean"], "std": known["std"]}
    return {
        "classes": known.get("classes"),
        "preprocessing": preprocessing,
        "data": known.get("name"),
    }
