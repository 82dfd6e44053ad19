"""The data sets that a recipe or the command line can name, and where their files live."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bayesify.data.dataset import DataSet
from bayesify.registry import Registry

ROOT_VARIABLE = "BAYESIFY_DATA"
DEFAULT_ROOT = "data"

datasets: Registry[Callable[..., DataSet]] = Registry("data set")


def load_dataset(name: str, root: str | Path | None = None, **options: Any) -> DataSet:
    """Load a registered data set, fetching its files where they are missing.

    Args:
        name: One of `datasets`: "digits", "mnist", "cifar10", "two_moons", ...
        root: Folder of the data files. None takes the environment variable `BAYESIFY_DATA`, or
            else the folder `data` in the working directory.
        options: What this data set offers, such as `augment=True` or `noise_std=0.2`.
    """
    load = datasets[name]
    known = [option for option in inspect.signature(load).parameters if option != "root"]
    for option in options:
        if option not in known:
            raise TypeError(
                f"data set {name!r} has no option {option!r}; it has {', '.join(known) or 'none'}"
            )
    return load(root, **options)


def data_root(root: str | Path | None) -> Path:
    """Return the folder of the data files; see `load_dataset`."""
    if root is not None:
        return Path(root).expanduser()
    return Path(os.environ.get(ROOT_VARIABLE) or DEFAULT_ROOT).expanduser()
