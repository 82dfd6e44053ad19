"""A published experiment: one recipe, the axes along which it varies, and what is measured.

A study is a TOML file beside this one, `studies/<paper>/<table>.toml`, and is never edited once
published (a test holds its checksum): what has to change becomes a new study. Every combination
of the axes' choices is one cell. A choice may add to the study's quick form: `quick = {...}`.
"""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from bayesify.recipes.recipe import Recipe, deep_merged, make_recipe
from bayesify.registry import unknown

_KEYS = ("title", "kind", "about", "recipe", "measure", "axes", "skip", "quick", "paper")


@dataclass(frozen=True)
class Cell:
    """One run of a study.

    Attributes:
        study: The study's name, such as "vmlp/mnist_pruning".
        name: The choices on each axis, joined by hyphens.
        labels: The choice on each axis.
        recipe: What is trained.
        measure: Options of what is measured.
        paper: The paper's numbers for this cell, None where it has none.
    """

    study: str
    name: str
    labels: Mapping[str, str]
    recipe: Recipe
    measure: Mapping[str, Any]
    paper: Mapping[str, Any] | None


@dataclass(frozen=True)
class Study:
    """A published experiment, as its file describes it."""

    name: str
    title: str
    kind: str
    about: str
    tables: Mapping[str, Any]

    def cells(
        self, *, is_quick: bool = False, seed: int = 0, changes: Mapping[str, Any] | None = None
    ) -> list[Cell]:
        """Return every cell.

        Args:
            is_quick: Whether to take the small form that only shows that everything runs.
            seed: Seed of the runs.
            changes: Tables of a recipe that win over the study's own, and "measure".
        """
        found = []
        for labels, choices in self._combinations():
            tables = deep_merged(self.tables["recipe"], {"seed": seed})
            measure = dict(self.tables.get("measure", {}))
            quick = self._quick(tables, choices) if is_quick else {}
            for change in (*choices, quick, changes or {}):
                measure |= change.get("measure", {})
                rest = {key: change[key] for key in change if key not in ("measure", "quick")}
                tables = deep_merged(tables, rest)
            name = "-".join(labels.values()) or "all"
            recipe = make_recipe(tables)
            found.append(Cell(self.name, name, labels, recipe, measure, self._paper(labels)))
        return found

    def _quick(
        self, tables: Mapping[str, Any], choices: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        # A shorter warm start is none for cells that have none.
        has = any("warm_start" in table for table in (tables, *choices))
        quick = self.tables.get("quick", {})
        for choice in choices:
            quick = deep_merged(quick, choice.get("quick", {}))
        return {key: value for key, value in quick.items() if has or key != "warm_start"}

    def _combinations(self) -> Iterator[tuple[dict[str, str], list[Mapping[str, Any]]]]:
        axes = self.tables.get("axes", {})
        skipped = self.tables.get("skip", [])
        for names in itertools.product(*axes.values()):
            labels = dict(zip(axes, names, strict=True))
            if not any(_matches(entry, labels) for entry in skipped):
                yield labels, [axes[axis][name] for axis, name in labels.items()]

    def _paper(self, labels: Mapping[str, str]) -> Mapping[str, Any] | None:
        axes = self.tables.get("axes", {})
        for entry in self.tables.get("paper", []):
            if _matches({key: entry[key] for key in entry if key in axes}, labels):
                return {key: value for key, value in entry.items() if key not in axes}
        return None


def study_names() -> list[str]:
    """Return the name of every published study."""
    folders = (entry for entry in _root().iterdir() if entry.is_dir())
    return sorted(
        f"{folder.name}/{file.name.removesuffix('.toml')}"
        for folder in folders
        for file in folder.iterdir()
        if file.name.endswith(".toml")
    )


def read_study(name: str) -> Study:
    """Return a published study by name, such as "vmlp/mnist_pruning"."""
    if name not in study_names():
        raise LookupError(unknown("study", name, study_names()))
    folder, _, table = name.partition("/")
    text = (_root() / folder / f"{table}.toml").read_text(encoding="utf-8")
    return make_study(name, tomllib.loads(text))


def make_study(name: str, tables: Mapping[str, Any]) -> Study:
    """Return the study that the tables of a file describe."""
    for key in tables:
        if key not in _KEYS:
            raise ValueError(unknown("key of a study", key, _KEYS))
    for key in ("title", "kind", "recipe"):
        if key not in tables:
            raise ValueError(f"{key} must be given in the study {name}")
    return Study(name, tables["title"], tables["kind"], tables.get("about", ""), tables)


def _matches(wanted: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    return all(labels.get(axis) == value for axis, value in wanted.items())


def _root() -> Any:
    return files("bayesify.recipes") / "studies"
