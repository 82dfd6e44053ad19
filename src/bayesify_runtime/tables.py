"""From a file of inputs to a table of predictions, with numpy alone."""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bayesify_runtime.runtime import Runtime

Arrays = dict[str, np.ndarray]
Columns = dict[str, list[Any]]

# Standard deviations on either side that hold 95 % of a normal law.
_NORMAL_95 = 1.959963984540054


def read_inputs(path: str | os.PathLike[str], runtime: Runtime) -> Arrays:
    """Return the inputs of a model by name, normalised as it was trained.

    Args:
        path: An .npy or .csv file for a model of one input, one example per row, which may be
            flat; an .npz file with an array under the name of each input for any model. Where the
            manifest knows a preprocessing, values are on the scale the training data is stored
            in: 0..255 for integer images, 0..1 for images in floating point.
        runtime: The model.
    """
    path = os.fspath(path)
    if not os.path.isfile(path):
        raise FileNotFoundError(f"there is no file {path}")
    entries = runtime.manifest["inputs"]
    arrays = _read_arrays(path, [entry["name"] for entry in entries])
    return {
        entry["name"]: prepare(path, arrays[entry["name"]], entry, runtime) for entry in entries
    }


def read_csv(path: str) -> np.ndarray:
    """Return the numbers of a CSV file, with or without a header."""
    with open(path, newline="", encoding="utf-8") as file:
        rows = [row for row in csv.reader(file) if row]
    if rows and not _is_numeric(rows[0]):
        rows = rows[1:]
    if not rows:
        raise ValueError(f"{path} holds no rows of numbers")
    for number, row in enumerate(rows, start=1):
        if len(row) != len(rows[0]) or not _is_numeric(row):
            got = ", ".join(row)[:60]
            raise ValueError(f"row {number} of {path} must hold {len(rows[0])} numbers, got {got}")
    return np.array(rows, dtype=np.float64)


def prepare(
    name: str, values: np.ndarray, entry: Mapping[str, Any], runtime: Runtime
) -> np.ndarray:
    """Return stored values as the model takes them: in shape, and normalised.

    Args:
        name: Where they come from, for errors.
        values: The values, one example per row.
        entry: What the manifest says of this input.
        runtime: The model.
    """
    if values.ndim < 2 or not np.issubdtype(values.dtype, np.number):
        raise ValueError(
            f"{name} must hold numbers, one row per example, got {values.dtype} of shape "
            f"{values.shape}"
        )
    sizes = entry["shape"][1:]
    if math.prod(values.shape[1:]) != math.prod(sizes):
        raise ValueError(
            f"{name} has inputs of shape {values.shape[1:]}, but the model takes {tuple(sizes)}"
        )
    values = values.reshape(-1, *sizes)
    kind = np.dtype(entry["dtype"])
    if kind.kind in "iu":
        # A .csv file has no integers of its own.
        whole = values.astype(kind)
        if not np.array_equal(whole, values):
            raise ValueError(f"{name} must hold whole numbers: the model takes {kind}")
        return whole
    if runtime.manifest.get("preprocessing") and len(runtime.manifest["inputs"]) == 1:
        return runtime.normalise(values)
    return values.astype(kind)


def run_batches(runtime: Runtime, inputs: Arrays, batch_size: int = 256) -> Arrays:
    """Return every output of a model by name, of inputs that are given in parts."""
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    number = len(next(iter(inputs.values())))
    if any(len(array) != number for array in inputs.values()):
        sizes = ", ".join(f"{name} has {len(array)}" for name, array in inputs.items())
        raise ValueError(f"inputs must have as many rows each: {sizes}")
    parts = [
        runtime(**{name: array[start : start + batch_size] for name, array in inputs.items()})
        for start in range(0, max(number, 1), batch_size)
    ]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def prediction_columns(answer: Arrays, manifest: Mapping[str, Any]) -> Columns:
    """Return what a model answered as columns, one row per example.

    A classifier's are "predicted", "probability", "entropy", what of it is noise ("aleatoric") and
    what is ignorance ("epistemic"), and the probability of every class; of numbers "mean" and
    "std" with its two parts where the file knows them.
    """
    if manifest["what"] == "mean" and manifest["task"] == "classification":
        answer = _classes_of_logits(answer["mean"])
    if "probs" in answer:
        return _class_columns(answer, manifest.get("classes"))
    mean, variance = answer["mean"], answer.get("variance")
    noise = answer.get("noise_variance")
    parts = {"mean": mean}
    if variance is not None:
        total = np.sqrt(variance + (0.0 if noise is None else noise))
        parts["std"] = total
        if noise is not None:
            parts |= {"aleatoric": noise, "epistemic": variance}
            # Draws are a mixture of normal laws, of which a mean and a variance are not all.
            if manifest["what"] == "moments":
                parts |= {"low_95": mean - _NORMAL_95 * total, "high_95": mean + _NORMAL_95 * total}
    columns: Columns = {"example": list(range(len(mean)))}
    for name, values in parts.items():
        columns |= _numbered(name, values)
    return columns


def as_csv(columns: Columns) -> str:
    """Return columns as the text of a CSV file."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return text.getvalue()


def _read_arrays(path: str, names: Sequence[str]) -> Arrays:
    ending = os.path.splitext(path)[1]
    if ending == ".npz":
        with np.load(path, allow_pickle=False) as stored:
            if set(stored.files) != set(names):
                raise ValueError(
                    f"{path} must hold the arrays {', '.join(names)}, got {', '.join(stored.files)}"
                )
            return {name: stored[name] for name in names}
    if ending not in (".npy", ".csv"):
        raise ValueError(f"{path} must be an .npy, .npz or .csv file, got {ending or 'no suffix'}")
    if len(names) > 1:
        raise ValueError(
            f"{path} holds one array, and the model takes {len(names)} inputs: give an .npz file "
            f"with the arrays {', '.join(names)}"
        )
    if ending == ".npy":
        return {names[0]: np.load(path, allow_pickle=False)}
    return {names[0]: read_csv(path)}


def _is_numeric(row: list[str]) -> bool:
    try:
        return bool([float(entry) for entry in row])
    except ValueError:
        return False


def _classes_of_logits(logits: np.ndarray) -> Arrays:
    """Return what logits say that nothing else is known of: all doubt is noise."""
    powers = np.exp(logits - logits.max(1, keepdims=True))
    probs = powers / powers.sum(1, keepdims=True)
    entropy = -(probs * np.log(np.maximum(probs, np.finfo(probs.dtype).tiny))).sum(1)
    return {
        "probs": probs,
        "entropy": entropy,
        "expected_entropy": entropy,
        "mutual_information": np.zeros_like(entropy),
    }


def _class_columns(answer: Arrays, classes: Sequence[str] | None) -> Columns:
    probs = answer["probs"]
    if probs.ndim != 2:
        raise ValueError(
            f"a table needs one class per example, got outputs of shape {probs.shape[1:]}; use "
            "bayesify_runtime.Runtime in Python for predictions with positions"
        )
    names = list(classes or map(str, range(probs.shape[1])))
    columns: Columns = {
        "example": list(range(len(probs))),
        "predicted": [names[index] for index in probs.argmax(1).tolist()],
        "probability": probs.max(1).tolist(),
        "entropy": answer["entropy"].tolist(),
        "aleatoric": answer["expected_entropy"].tolist(),
        "epistemic": answer["mutual_information"].tolist(),
    }
    each = zip(names, probs.T, strict=True)
    return columns | {f"probability_{name}": column.tolist() for name, column in each}


def _numbered(name: str, values: np.ndarray) -> Columns:
    flat = values.reshape(len(values), math.prod(values.shape[1:]))
    if flat.shape[1] == 1:
        return {name: flat[:, 0].tolist()}
    return {f"{name}_{index}": column.tolist() for index, column in enumerate(flat.T)}
