"""`bayesify export`: a trained model as a file that other programs run."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, cast

import torch
import typer
from rich.markup import escape
from torch import Tensor
from torch.utils.data import Subset

from bayesify.cli.console import answers
from bayesify.conversion.convert import require_record
from bayesify.data import TensorData, loader
from bayesify.evaluation import evaluate
from bayesify.exporting import export as export_to
from bayesify.exporting import read_manifest
from bayesify.exporting.export import What
from bayesify.moments import moment_rules
from bayesify.recipes.trained import Trained, load_trained

# As many as tell the shape of a batch, and show that the file computes what torch does.
_NUM_EXAMPLES = 8
_BATCH_SIZE = 256
# What each kind of file is as a way to predict, and what is measured of a task.
_WAYS = {"moments": "moments", "mean": "mean", "samples": "sample"}
_METRICS = {"classification": ("accuracy", "nll", "ece"), "regression": ("rmse", "nll", "coverage")}


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
    rules: Annotated[
        str | None,
        typer.Option(
            help="Rules of moments: exact; taylor, faster and less faithful; shared, which "
            "carries what positions of an image share; or pooled, the fastest."
        ),
    ] = None,
    int8: Annotated[bool, typer.Option("--int8", help="Store weights in eight bits.")] = False,
    aot: Annotated[
        bool, typer.Option("--aot", help="Compile a .pt2 file for this kind of processor.")
    ] = False,
    data: Annotated[
        str | None,
        typer.Option(help="Data set, or .npy or .csv file of inputs, to try the file with."),
    ] = None,
    data_root: Annotated[str | None, typer.Option(help="Folder of the data files.")] = None,
    num_measured: Annotated[
        int,
        typer.Option(
            help="Test examples to measure accuracy, NLL and calibration error on; 0 for none."
        ),
    ] = 2000,
) -> None:
    """Write a model to a file that runs without this library, and without torch.

    [cyan]bayesify export runs/small --out model.onnx --what moments[/cyan]

    Before it is put in place the file is run on a few examples, by default
    of the data set the model was trained on, and compared with torch. How
    good and how well calibrated this way to predict is on the test data
    travels with the file, in its manifest under "calibration".
    """
    if num_measured < 0:
        raise ValueError(f"--num-measured must be 0 or more, got {num_measured}")
    trained = load_trained(path)
    target = out or trained.path.with_suffix(".onnx")
    test = _test_part(trained, data, data_root)
    calibration = None
    if test is not None and num_measured and what in _WAYS:
        # Before anything is measured: a rule that does not exist is refused here.
        with moment_rules(cast(Any, rules)) if rules else nullcontext():
            calibration = _measured(trained, test, what, num_samples, num_measured)
        calibration = calibration and {"data": data or trained.data.get("name"), **calibration}
    export_to(
        trained.model,
        target,
        example_inputs=_examples(trained, data, test),
        what=cast(What, what),
        num_samples=num_samples,
        rules=cast(Any, rules),
        quantize="int8" if int8 else None,
        aot=aot,
        note=_note(trained),
        calibration=calibration,
    )
    outputs = ", ".join(entry["name"] for entry in read_manifest(target)["outputs"])
    size = f"{target.stat().st_size:,} bytes"
    answers.print(f"[bold]{escape(str(target))}[/bold]: {size}; it returns {outputs}")
    if calibration is not None:
        answers.print(_sentence(calibration))


def _test_part(trained: Trained, data: str | None, data_root: str | None) -> TensorData | None:
    """Return the test examples, or None where a file of inputs takes their place."""
    if data is not None and (Path(data).suffix or Path(data).exists()):
        return None
    return trained.load_data(data, data_root).test


def _examples(trained: Trained, data: str | None, test: TensorData | None) -> Tensor:
    if test is None:
        return trained.read_inputs(cast(str, data))[:_NUM_EXAMPLES]
    return test.__getitems__(range(min(len(test), _NUM_EXAMPLES)))[0]


def _measured(
    trained: Trained, test: TensorData, what: str, num_samples: int, most: int
) -> dict[str, Any] | None:
    """Return how well the exported way predicts, or None where its task has no metrics."""
    task = getattr(require_record(trained.model).likelihood, "task", None)
    way = _WAYS[what]
    if task not in _METRICS or way not in require_record(trained.model).method.ways:
        return None
    # Spread over the whole: a data set may be sorted by class.
    number = min(most, len(test))
    places = torch.linspace(0, len(test) - 1, number, dtype=torch.float64).round().long()
    torch.manual_seed(0)
    found = evaluate(
        trained.model,
        loader(Subset(test, places.tolist()), _BATCH_SIZE),
        by=way,
        num_samples=num_samples,
        metrics=_METRICS[task],
        progress=None,
    ).to_dict()
    by = "torch, float32"  # not by the file, which may be rounded to eight bits
    return {"part": "test", "by": by, "num_examples": found["num_examples"], **found["metrics"]}


def _sentence(calibration: dict[str, Any]) -> str:
    scores = [
        f"{name} {value:.4f}" for name, value in calibration.items() if isinstance(value, float)
    ]
    number = f"{calibration['num_examples']:,}"
    return f"on {number} test examples of {calibration['data']}: {', '.join(scores)}"


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
