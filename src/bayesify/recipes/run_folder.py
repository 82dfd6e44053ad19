"""The folder of a run: what lies in it, and under which name."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bayesify.archive import write_atomically
from bayesify.recipes.recipe import Recipe, read_recipe
from bayesify.version import __version__


@dataclass(frozen=True)
class RunFolder:
    """The files of one run; `fit` writes the checkpoint, metrics.csv and log.txt."""

    path: Path

    @property
    def config(self) -> Path:
        """The recipe with every default written out."""
        return self.path / "config.toml"

    @property
    def checkpoint(self) -> Path:
        """The state to resume from."""
        return self.path / "checkpoint.safetensors"

    @property
    def warm_start(self) -> RunFolder:
        """The folder of the plain network that is trained first."""
        return RunFolder(self.path / "warm_start")

    def member(self, index: int) -> RunFolder:
        """The folder of what a member of an ensemble begins from, the first one's apart."""
        return RunFolder(self.path / "members" / str(index))

    @property
    def metrics(self) -> Path:
        """One row of numbers per epoch."""
        return self.path / "metrics.csv"

    @property
    def model(self) -> Path:
        """The trained model, once the run has ended."""
        return self.path / "model.safetensors"

    @property
    def evaluation(self) -> Path:
        """What `evaluate` found last."""
        return self.path / "evaluation.json"

    @property
    def has_begun(self) -> bool:
        """Whether there is a run here to resume, or to overwrite."""
        return self.checkpoint.is_file() or (self.path / "warm_start").is_dir()

    def clear(self) -> None:
        """Remove what an earlier run left that a new one could take for its own."""
        for path in (self.model, self.checkpoint, self.evaluation):
            path.unlink(missing_ok=True)
        for folder in ("warm_start", "members"):
            shutil.rmtree(self.path / folder, ignore_errors=True)

    def read_recipe(self, changes: Mapping[str, Any] | None = None) -> Recipe:
        """Return the recipe of the run that lies here, after changes to it."""
        if not self.config.is_file():
            raise FileNotFoundError(
                f"{self.path} is not the folder of a run: it holds no {self.config.name}"
            )
        return read_recipe(self.config, changes)

    def write_recipe(self, recipe: Recipe) -> None:
        """Write the recipe, every default included."""
        header = f"# Every choice of this run, written by bayesify {__version__}.\n\n"
        content = (header + recipe.to_toml()).encode()
        write_atomically(self.config, lambda file: file.write(content))


_INNERMOST = re.compile(r"\[[^\[\]{}]*\]|\{[^\[\]{}]*\}")
_BREAK = re.compile(r"\n *")


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file, whole or not at all; lists and objects that hold no others are a line."""
    text = json.dumps(content, indent=2, allow_nan=False) + "\n"
    # A string of JSON holds no line break: only the layout changes.
    text = _INNERMOST.sub(lambda match: _BREAK.sub(" ", match[0]), text)
    write_atomically(path, lambda file: file.write(text.encode()))


def model_path(path: str | Path) -> Path:
    """Return the model file of a run folder, or the path itself where it is a file.

    Raises:
        FileNotFoundError: There is no such file, or the run in that folder has not ended.
    """
    path = Path(path)
    if not path.is_dir():
        if not path.is_file():
            raise FileNotFoundError(f"there is no model file or run folder {path}")
        return path
    folder = RunFolder(path)
    if folder.model.is_file():
        return folder.model
    if folder.has_begun:
        raise FileNotFoundError(
            f"the run in {path} has not ended, so it has no {folder.model.name} yet: go on with "
            f"bayesify fit {path} --resume"
        )
    raise FileNotFoundError(f"{path} is not the folder of a run: it holds no {folder.model.name}")
