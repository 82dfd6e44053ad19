"""Predictions of a file that `export` wrote, by ONNX Runtime alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from bayesify.data import load_dataset
from bayesify.exporting import Runtime
from bayesify_runtime.tables import Columns, prediction_columns, prepare, read_inputs, run_batches

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class Answer:
    """What an exported file says of a data set or of a file of inputs.

    Attributes:
        columns: One list per column, one entry per example.
        classes: Names of the classes, where the manifest knows them.
        targets: The targets of a data set.
        made_by: How it was made, in words.
    """

    columns: Columns
    classes: Sequence[str] | None
    targets: Tensor | None
    made_by: str


def predict_exported(path: Path, data: str | None, root: str | None, batch_size: int) -> Answer:
    """Run an .onnx file.

    Args:
        path: The file.
        data: A data set (its test part) or a file of inputs; None takes the data set that the
            manifest names.
        root: Folder of the data files.
        batch_size: Examples per pass.
    """
    if path.suffix != ".onnx":
        raise ValueError(
            f"path must be an .onnx file to be run here, got {path}: a .pt2 file is run by "
            "torch.export.load"
        )
    runtime = Runtime(path)
    manifest = runtime.manifest
    inputs, targets = _examples(runtime, path, data, root)
    columns = prediction_columns(run_batches(runtime, inputs, batch_size), manifest)
    return Answer(columns, manifest.get("classes"), targets, _made_by(path, runtime))


def _examples(
    runtime: Runtime, path: Path, data: str | None, root: str | None
) -> tuple[Arrays, Tensor | None]:
    if data is not None and (Path(data).suffix or Path(data).exists()):
        return read_inputs(data, runtime), None
    name = data or runtime.manifest["note"].get("data")
    if name is None:
        raise ValueError(f"data must be named: {path} does not say what the model was trained on")
    entry, *others = runtime.manifest["inputs"]
    if others:
        raise ValueError(
            f"the model takes {len(others) + 1} inputs, a data set has one: give --data an .npz "
            "file with an array for each"
        )
    part = load_dataset(name, root).test
    stored = part.inputs
    if not runtime.manifest.get("preprocessing"):
        stored, _ = part.__getitems__(range(len(part)))
    values = prepare(f"data set {name!r}", stored.numpy(), entry, runtime)
    return {entry["name"]: values}, part.targets


def _made_by(path: Path, runtime: Runtime) -> str:
    what = runtime.manifest["what"]
    if what == "samples":
        what = f"{runtime.manifest['num_samples']} samples"
    return f"{what} of {path.name}"
