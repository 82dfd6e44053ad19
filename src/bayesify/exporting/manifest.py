"""What an exported file says of itself: a JSON manifest that travels inside it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from bayesify.conversion.convert import Record
from bayesify.training.likelihood import Likelihood
from bayesify.version import __version__

FORMAT = "bayesify export"
VERSION = 1
BATCH = "batch"
"""What stands for the size of the batch in a shape."""


def make_manifest(  # noqa: PLR0913 - each is one fact of the file
    record: Record,
    likelihood: Likelihood | None,
    what: str,
    inputs: Mapping[str, Tensor],
    outputs: Mapping[str, Tensor],
    has_batch_axis: Sequence[bool],
    facts: Mapping[str, Any],
    note: Mapping[str, Any] | None,
    calibration: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Return the manifest of a file.

    Args:
        record: What the model remembers of its making.
        likelihood: What its outputs mean, where that is known.
        what: What the file computes.
        inputs: Examples of the inputs, in the order the file takes them.
        outputs: Examples of the outputs.
        has_batch_axis: Which inputs have one row per example.
        facts: Numbers that belong to this way of computing, such as "num_samples".
        note: What the caller sends along; "classes" and "preprocessing" are read by people who
            run the file.
        calibration: How good and how well calibrated the model was found to be.
    """
    note = dict(note or {})
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        "library": __version__,
        "what": what,
        "task": None if likelihood is None else likelihood.task,
        "method": record.method.to_dict(),
        "inputs": [
            _describe(name, tensor, has_axis)
            for (name, tensor), has_axis in zip(inputs.items(), has_batch_axis, strict=True)
        ],
        "outputs": [_describe(name, tensor, True) for name, tensor in outputs.items()],
        **facts,
        "classes": note.pop("classes", None),
        "preprocessing": note.pop("preprocessing", None),
        "calibration": None if calibration is None else dict(calibration),
        "note": note,
    }
    try:
        json.dumps(manifest)
    except (TypeError, ValueError) as error:
        raise TypeError(f"note and calibration must hold only what JSON can hold: {error}") from (
            error
        )
    return manifest


def read_manifest(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the manifest of an exported file, .onnx or .pt2."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    if path.suffix == ".pt2":
        from bayesify.exporting.aot_file import is_aot, read_manifest_of_aot
        from bayesify.exporting.torch_file import read_manifest_of_torch

        return (read_manifest_of_aot if is_aot(path) else read_manifest_of_torch)(path)
    from bayesify.exporting.onnx_file import read_manifest_of_onnx

    return read_manifest_of_onnx(path)


def _describe(name: str, tensor: Tensor, has_batch_axis: bool) -> dict[str, Any]:
    sizes: list[int | str] = list(tensor.shape)
    if has_batch_axis:
        sizes[0] = BATCH
    return {"name": name, "shape": sizes, "dtype": str(tensor.dtype).removeprefix("torch.")}
