"""A trained model from a file, and data that fit it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bayesify.data import DataSet, Normalise, load_dataset
from bayesify.exporting import load
from bayesify.exporting.model_file import read_note
from bayesify.recipes.recipe import OWN_DATA_KEYS
from bayesify.recipes.run_folder import model_path
from bayesify_runtime.tables import read_csv


@dataclass(frozen=True, eq=False)
class Trained:
    """A model and what its file remembers of the data it was trained on.

    Attributes:
        path: The model file.
        model: The model.
        recipe: The tables of the recipe it was trained by; empty for a model saved by hand.
        data: What `describe_data` wrote; empty for a model saved by hand.
    """

    path: Path
    model: nn.Module
    recipe: Mapping[str, Any]
    data: Mapping[str, Any]

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Names of the classes, where they are known."""
        names = self.data.get("classes")
        return None if names is None else tuple(names)

    def load_data(self, name: str | None = None, root: str | None = None) -> DataSet:
        """Load a data set as the model saw its own, normalised by the same statistics.

        Args:
            name: The data set; None takes the one the model was trained on.
            root: Folder of the data files; None takes the usual one.
        """
        own = self.recipe.get("data", {})
        name = name or own.get("name")
        if name is None:
            raise ValueError(
                f"data must be named: {self.path} does not say what the model was trained on"
            )
        options = {}
        if name == own.get("name"):
            left_out = ("name", *OWN_DATA_KEYS)
            options = {key: value for key, value in own.items() if key not in left_out}
            root = root or own.get("root")
        data = load_dataset(name, root, **options)
        self._check_shape(f"data set {name!r}", data.input_shape)
        if self.data.get("mean") is not None:
            return data.normalised(tuple(self.data["mean"]), tuple(self.data["std"]))
        return data

    def read_inputs(self, path: str | Path) -> Tensor:
        """Read inputs from an .npy or .csv file, one example per row, and normalise them.

        Values are on the scale the data set stores them in: 0..255 for integer images, 0..1 for
        images in floating point. A row may be flat; it is given the shape of an input.
        """
        values = read_numbers(Path(path))
        shape = tuple(self.data.get("input_shape") or values.shape[1:])
        if math.prod(values.shape[1:]) != math.prod(shape):
            self._check_shape(str(path), tuple(values.shape[1:]))
        values = values.reshape(-1, *shape)
        if self.data.get("mean") is not None:
            return Normalise(tuple(self.data["mean"]), tuple(self.data["std"]))(values)
        return values.float()

    def on(self, device: str) -> Trained:
        """Return the same with its model on a device: "auto" is a GPU where there is one."""
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        return dataclasses.replace(self, model=self.model.to(device))

    def _check_shape(self, name: str, shape: tuple[int, ...]) -> None:
        expected = tuple(self.data.get("input_shape") or shape)
        if shape != expected:
            raise ValueError(
                f"{name} has inputs of shape {shape}, but the model was trained on "
                f"{self.data['name']!r} with inputs of shape {expected}"
            )


def load_trained(path: str | Path) -> Trained:
    """Load the model of a run folder or of a model file that names a registered model."""
    path = model_path(path)
    note = read_note(path)["note"]
    return Trained(path, load(path), note.get("recipe", {}), note.get("data", {}))


def read_numbers(path: Path) -> Tensor:
    """Return the numbers of an .npy file, or of a .csv file with or without a header."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    if path.suffix == ".npy":
        values = np.load(path, allow_pickle=False)
    elif path.suffix == ".csv":
        values = read_csv(str(path))
    else:
        raise ValueError(f"{path} must be an .npy or a .csv file, got {path.suffix or 'no suffix'}")
    if values.ndim < 2 or not np.issubdtype(values.dtype, np.number):
        raise ValueError(
            f"{path} must hold numbers, one row per example, got {values.dtype} of shape "
            f"{values.shape}"
        )
    if values.dtype in (np.uint16, np.uint32, np.uint64):
        values = values.astype(np.int64)
    return torch.from_numpy(np.ascontiguousarray(values))
