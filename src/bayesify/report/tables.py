"""Tables of a study: its cells against the paper's numbers, means over seeds.

A table is plain data; the page's template decides how it looks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from bayesify.report.averages import NOTHING, Average, Written, average, decimal, significant
from bayesify.report.json_value import scalars
from bayesify.report.labels import PROTOCOL
from bayesify.report.measurements import OtherMeasurement
from bayesify.report.results import Cell, CellGroup, Study

_MOST_SHOWN = 6


@dataclass(frozen=True)
class Column:
    """A column: its title, and the title it shares with its neighbours, if any."""

    title: str
    shared: str = ""
    is_number: bool = True
    is_paper: bool = False


@dataclass(frozen=True)
class Datum:
    """What stands in one place of a table; `num_rows` places if it holds for several rows."""

    text: str
    spread: str = ""
    num_rows: int = 1
    is_header: bool = False
    is_number: bool = True
    is_paper: bool = False
    is_marked: bool = False


@dataclass(frozen=True)
class Body:
    """Rows that belong together, under a title that may be empty."""

    title: str
    rows: tuple[tuple[Datum, ...], ...]


@dataclass(frozen=True)
class Table:
    """A table, what it shows, and what a reader must know about it."""

    caption: str
    columns: tuple[Column, ...]
    bodies: tuple[Body, ...]
    notes: tuple[str, ...] = ()

    @property
    def heads(self) -> tuple[tuple[str, int], ...]:
        """Titles that columns share, each with how many share it; empty for those without."""
        runs = [(title, len(list(run))) for title, run in groupby(self.columns, _shared)]
        return tuple(
            each for title, num in runs for each in ([(title, num)] if title else [("", 1)] * num)
        )

    @property
    def has_heads(self) -> bool:
        """Whether any column shares a title."""
        return any(column.shared for column in self.columns)


def number(written: Written, num_rows: int = 1, *, is_paper: bool = False) -> Datum:
    """Put a number in a table."""
    return Datum(written.text, written.spread, num_rows, is_paper=is_paper)


def word(text: str, num_rows: int = 1, *, is_header: bool = False) -> Datum:
    """Put a word in a table."""
    return Datum(text, num_rows=num_rows, is_header=is_header, is_number=False)


def beside_paper(title: str, has_paper: bool) -> list[Column]:
    """Return a column of what was measured, with the paper's beside it where there is any."""
    if not has_paper:
        return [Column(title)]
    return [Column("here", title), Column("paper", title, is_paper=True)]


def over_seeds(group: CellGroup, read: Callable[[Any], float | None]) -> Average | None:
    """Return the mean over the seeds of a cell of something that was measured."""
    return average(read(cell.measured) for cell in group.cells)


def labelled_columns(study: Study) -> tuple[Column, ...]:
    """Return the columns that say which cell a row is, and of how many seeds it is the mean."""
    names = tuple(Column(name, is_number=False) for name in _label_names(study))
    return (*names, Column("seeds")) if _has_seeds(study) else names


def labelled(study: Study, group: CellGroup, num_rows: int) -> list[Datum]:
    """Return what stands in those columns for one cell."""
    names = _label_names(study)
    texts = [group.name if name == "cell" else group.labels.get(name, NOTHING) for name in names]
    row = [word(text, num_rows, is_header=True) for text in texts]
    if _has_seeds(study):
        row.append(Datum(str(len(group.cells)), num_rows=num_rows))
    return row


def by_protocol(
    study: Study, rows: Callable[[CellGroup], Sequence[Sequence[Datum]]]
) -> tuple[Body, ...]:
    """Return the rows of every cell, those of one protocol together."""
    return tuple(
        Body(
            f"{PROTOCOL}: {protocol}" if protocol else "",
            tuple(tuple(row) for group in groups for row in rows(group)),
        )
        for protocol, groups in study.protocols.items()
    )


def study_notes(study: Study) -> tuple[str, ...]:
    """Return what holds for every table of a study: how seeds are averaged, and the sources."""
    notes = []
    if _has_seeds(study):
        notes.append("Several seeds: mean ± sample standard deviation between seeds.")
    sources = _distinct(group.paper.source for group in study.groups if group.paper is not None)
    if any(sources):
        notes.append(f"Paper: {', '.join(source for source in sources if source)}.")
    return tuple(notes)


def scalar_table(study: Study) -> Table:
    """Return the scalars of a study of any kind: a row for each of them, a column per cell."""
    measured = [_shown_scalars(group) for group in study.groups]
    papers = [
        {} if group.paper is None else scalars(group.paper.everything) for group in study.groups
    ]
    keys = _distinct(key for each in measured for key in each)
    columns: list[Column] = [Column("measured", is_number=False)]
    for group, paper in zip(study.groups, papers, strict=True):
        protocol = f" ({group.protocol})" if group.protocol else ""
        name = f"{group.short_name}{protocol}"
        has_paper = any(key in paper for key in keys)
        columns.append(Column("here" if has_paper else name, name if has_paper else ""))
        if has_paper:
            columns.append(Column("paper", name, is_paper=True))
    rows = []
    for key in keys:
        row = [word(key, is_header=True)]
        for each, paper in zip(measured, papers, strict=True):
            row.append(number(each.get(key, Written(NOTHING))))
            if any(one in paper for one in keys):
                row.append(number(_written([paper.get(key)]), is_paper=True))
        rows.append(tuple(row))
    return Table("What was measured", tuple(columns), (Body("", tuple(rows)),), study_notes(study))


def seed_table(
    caption: str,
    cells: Sequence[Cell],
    read: Callable[[Cell], Mapping[str, Any]],
    marked: Sequence[str] = (),
) -> Table:
    """Return properties of runs: a row each, one column if all runs agree, else one per seed.

    Args:
        caption: What the table shows.
        cells: The runs.
        read: Returns the properties of a run.
        marked: Properties that need the reader's eye.
    """
    entries = [read(cell) for cell in cells]
    keys = _distinct(key for each in entries for key in each)
    texts = {key: [_as_text(each.get(key)) for each in entries] for key in keys}
    is_common = all(len(set(values)) == 1 for values in texts.values())
    titles = ["every seed" if len(cells) > 1 else f"seed {cells[0].seed}"]
    if not is_common:
        titles = [f"seed {cell.seed}" for cell in cells]
    rows = []
    for key, values in texts.items():
        is_marked = key in marked
        shown = [
            Datum(text, is_number=False, is_marked=is_marked) for text in values[: len(titles)]
        ]
        rows.append((word(key, is_header=True), *shown))
    columns = (Column("", is_number=False), *(Column(each, is_number=False) for each in titles))
    return Table(caption, columns, (Body("", tuple(rows)),))


def fact_table(caption: str, title: str, facts: Mapping[str, Any]) -> Table:
    """Return facts, a row each, under one title."""
    rows = [(word(key, is_header=True), word(_as_text(value))) for key, value in facts.items()]
    columns = (Column("", is_number=False), Column(title, is_number=False))
    return Table(caption, columns, (Body("", tuple(rows)),))


def _shared(column: Column) -> str:
    return column.shared


def _label_names(study: Study) -> list[str]:
    names = _distinct(name for group in study.groups for name in group.labels)
    names = [name for name in names if name != PROTOCOL]
    shown = [tuple(group.labels.items()) for group in study.groups]
    # Labels that do not tell two cells apart need the cell's own name beside them.
    return names if names and len(set(shown)) == len(shown) else ["cell", *names]


def _has_seeds(study: Study) -> bool:
    return any(len(group.cells) > 1 for group in study.groups)


def _shown_scalars(group: CellGroup) -> dict[str, Written]:
    found: dict[str, list[Any]] = {}
    for cell in group.cells:
        if isinstance(cell.measured, OtherMeasurement):
            for key, value in cell.measured.scalars.items():
                if not isinstance(value, list) or len(value) <= _MOST_SHOWN:
                    found.setdefault(key, []).append(value)
    return {key: _written(values) for key, values in found.items()}


def _written(values: Sequence[Any]) -> Written:
    present = [value for value in values if value is not None]
    if all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in present):
        is_whole = len(present) == 1 and isinstance(present[0], int)
        return decimal(present[0], 0) if is_whole else significant(average(present), 4)
    return Written(" / ".join(_distinct(map(_as_text, present))))


def _as_text(value: Any) -> str:
    if value is None:
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(_as_text, value))
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _distinct(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))
