"""Results of reproduced studies: one JSON file per cell and seed, read, checked and grouped.

A cell is one row of a study: one start, one layer, one protocol. Runs of a cell that differ in
nothing but their seed form a group; quick runs and full ones never share a study.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from bayesify.report.json_value import JsonValue, ResultError, scalars
from bayesify.report.labels import PROTOCOL, natural, roles_of
from bayesify.report.measurements import Measurement, Scores, read_measurement

# Labels are shown in this order, and any others after them.
_LABEL_ORDER = (PROTOCOL, "start", "layer")
_MARKS = ("study", "cell", "kind", "measured")
_LEAST_MARKS = 2

Key = TypeVar("Key")
Value = TypeVar("Value")


@dataclass(frozen=True)
class Paper:
    """What the paper reports for a cell.

    Attributes:
        source: Where in the paper; may be empty.
        sparsity: Fraction pruned of each layer, in the order of the layers.
        accuracy: Accuracies by what was pruned.
        everything: All of it, as it stands in the file.
    """

    source: str
    sparsity: tuple[float | None, ...]
    accuracy: Scores
    everything: Mapping[str, Any]


@dataclass(frozen=True)
class Cell:
    """One run of one cell of a study, as it stands in its file."""

    file: str
    study: str
    title: str
    kind: str
    name: str
    labels: Mapping[str, str]
    seed: int
    is_quick: bool
    provenance: Mapping[str, Any]
    recipe: Mapping[str, Any]
    paper: Paper | None
    history: tuple[Mapping[str, Any], ...]
    measured: Measurement


@dataclass(frozen=True)
class CellGroup:
    """A cell under every seed it was run with, in the order of the seeds."""

    name: str
    labels: Mapping[str, str]
    cells: tuple[Cell, ...]

    @property
    def paper(self) -> Paper | None:
        """What the paper reports for it, or None."""
        return next((cell.paper for cell in self.cells if cell.paper is not None), None)

    @property
    def protocol(self) -> str:
        """The protocol it was run under; empty where none is named."""
        return self.labels.get(PROTOCOL, "")

    @property
    def differing_choices(self) -> tuple[str, ...]:
        """Choices of the recipe, other than the seed, in which its runs differ."""
        recipes = [scalars(cell.recipe) for cell in self.cells]
        choices = dict.fromkeys(choice for recipe in recipes for choice in recipe)
        return tuple(
            choice
            for choice in choices
            if choice.rpartition(".")[2] != "seed"
            and any(recipe.get(choice) != recipes[0].get(choice) for recipe in recipes)
        )

    @property
    def short_name(self) -> str:
        """Its labels in words, all but the protocol."""
        words = [text for label, text in self.labels.items() if label != PROTOCOL]
        return ", ".join(words) or self.name


@dataclass(frozen=True)
class Study:
    """The cells of a study that may stand in one table: of one kind, and all quick or all full."""

    name: str
    title: str
    kind: str
    is_quick: bool
    groups: tuple[CellGroup, ...]

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Every run, group by group."""
        return tuple(cell for group in self.groups for cell in group.cells)

    @property
    def protocols(self) -> Mapping[str, tuple[CellGroup, ...]]:
        """The groups by their protocol."""
        return _grouped((group.protocol, group) for group in self.groups)


@dataclass(frozen=True)
class Results:
    """Everything a folder holds: its studies, and the JSON files that belong to none."""

    studies: tuple[Study, ...]
    skipped: tuple[str, ...]

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Every run of every study."""
        return tuple(cell for study in self.studies for cell in study.cells)


def read_results(folder: str | os.PathLike[str]) -> Results:
    """Read every JSON file below a folder.

    Raises:
        ResultError: A file is damaged, or two files hold the same cell and seed.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder of results {folder}")
    cells, skipped = [], []
    for path in sorted(folder.rglob("*.json")):
        cell = read_cell(path)
        if cell is None:
            skipped.append(path.relative_to(folder).as_posix())
        else:
            cells.append(cell)
    _check_seeds(cells)
    return Results(_studies(cells), tuple(skipped))


def read_cell(path: Path) -> Cell | None:
    """Return the run that a file holds, or None if it holds something else."""
    file = str(path)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ResultError(f"{file} is damaged: it is not JSON ({error})") from error
    if _is_benchmark(content):
        return _benchmark(JsonValue(file, content))
    if not _is_cell(content):
        return None
    whole = JsonValue(file, content)
    kind = whole.field("kind").text()
    paper = whole.optional("paper")
    return Cell(
        file=file,
        study=whole.field("study").text(),
        title=whole.field("title").text(),
        kind=kind,
        name=whole.field("cell").text(),
        labels=_labels(whole.field("labels")),
        seed=whole.field("seed").whole(),
        is_quick=whole.field("is_quick").flag(),
        provenance=_object(whole.field("provenance")),
        recipe=_object(whole.field("recipe")),
        paper=None if paper is None else _paper(paper),
        history=tuple(_object(row) for row in whole.field("history").items()),
        measured=read_measurement(kind, whole.field("measured")),
    )


def _is_cell(content: Any) -> bool:
    # A cell that has lost a key is a damaged cell, not something else.
    return isinstance(content, dict) and sum(mark in content for mark in _MARKS) >= _LEAST_MARKS


def _is_benchmark(content: Any) -> bool:
    return isinstance(content, dict) and "rows" in content and "study" in content


def _benchmark(whole: JsonValue) -> Cell:
    """Return the times of a benchmark as the only cell of a study of speed."""
    study = whole.field("study").text()
    name = study.rpartition("/")[2]
    title = whole.optional("title")
    return Cell(
        file=whole.file,
        study=study,
        title=f"Speed of {name}" if title is None else title.text(),
        kind="speed",
        name=name,
        labels={},
        seed=0,
        is_quick=False,
        provenance=_object(whole.field("provenance")),
        recipe={},
        paper=None,
        history=(),
        measured=read_measurement("speed", whole),
    )


def _labels(value: JsonValue) -> dict[str, str]:
    fields = value.fields()
    names = [name for name in _LABEL_ORDER if name in fields]
    names += [name for name in fields if name not in names]
    for name in names:
        if isinstance(fields[name].value, (dict, list)):
            raise fields[name].problem("a string or a number")
    return {name: _with_dot(str(fields[name].value)) for name in names}


def _with_dot(text: str) -> str:
    # A choice is a key of a TOML table, where a dot has a meaning of its own: 0001 is 0.001.
    is_short = len(text) > 1 and text.startswith("0") and text.isdecimal()
    return f"0.{text[1:]}" if is_short else text


def _object(value: JsonValue) -> dict[str, Any]:
    return {key: each.value for key, each in value.fields().items()}


def _paper(value: JsonValue) -> Paper:
    source, sparsity = value.optional("source"), value.optional("sparsity")
    accuracy = value.optional("accuracy")
    return Paper(
        source="" if source is None else source.text(),
        sparsity=() if sparsity is None else sparsity.numbers_or_none(),
        accuracy={} if accuracy is None else _accuracy(accuracy),
        everything=_object(value),
    )


def _accuracy(value: JsonValue) -> Scores:
    # A paper on something else than pruning has one accuracy, not three.
    is_object = isinstance(value.value, dict)
    return value.numbers_by_key() if is_object else {"not_pruned": value.number()}


def _check_seeds(cells: Iterable[Cell]) -> None:
    seen: dict[tuple[Any, ...], Cell] = {}
    for cell in cells:
        first = seen.setdefault((*_study_key(cell), *_group_key(cell), cell.seed), cell)
        if first is not cell:
            raise ResultError(
                f"{cell.file} holds the same cell and seed as {first.file} ({cell.study}, "
                f"{cell.name}, seed {cell.seed}): remove one of them"
            )


def _study_key(cell: Cell) -> tuple[Any, ...]:
    return (cell.study, cell.is_quick, cell.kind)


def _group_key(cell: Cell) -> tuple[Any, ...]:
    return (cell.name, tuple(sorted(cell.labels.items())))


def _studies(cells: Iterable[Cell]) -> tuple[Study, ...]:
    studies = _grouped((_study_key(cell), cell) for cell in cells)
    return tuple(_study(studies[key]) for key in sorted(studies))


def _study(cells: tuple[Cell, ...]) -> Study:
    first = cells[0]
    groups = [
        _group(each) for each in _grouped((_group_key(cell), cell) for cell in cells).values()
    ]
    roles = roles_of([group.labels for group in groups])
    groups.sort(key=lambda group: (roles.sort_key(group.labels), natural(group.name)))
    return Study(first.study, first.title, first.kind, first.is_quick, tuple(groups))


def _group(cells: tuple[Cell, ...]) -> CellGroup:
    in_order = tuple(sorted(cells, key=lambda cell: cell.seed))
    return CellGroup(in_order[0].name, in_order[0].labels, in_order)


def _grouped(pairs: Iterable[tuple[Key, Value]]) -> dict[Key, tuple[Value, ...]]:
    found: dict[Key, list[Value]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return {key: tuple(values) for key, values in found.items()}
