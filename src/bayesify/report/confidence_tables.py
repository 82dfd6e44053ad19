"""Tables of a study of confidence: scores, and the predictions that the samples agree on."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bayesify.report.averages import Average, Written, average, decimal, percent, significant
from bayesify.report.measurements import ConfidenceMeasurement
from bayesify.report.results import CellGroup, Study
from bayesify.report.tables import (
    Column,
    Datum,
    Table,
    beside_paper,
    by_protocol,
    labelled,
    labelled_columns,
    number,
    over_seeds,
    study_notes,
)

_SCORES: Mapping[str, tuple[str, Callable[[Average | float | None], Written]]] = {
    "accuracy": ("accuracy, %", percent),
    "nll": ("NLL", lambda value: decimal(value, 4)),
    "brier": ("Brier score", lambda value: decimal(value, 4)),
    "ece": ("ECE, %", percent),
    "kl": ("KL, nats", lambda value: significant(value, 4)),
    "mean_std": ("mean std of a weight", significant),
}
_WHAT_IT_IS = (
    "A prediction is as confident as the share of samples that vote for its class; the set at a "
    "level holds the predictions that are at least so confident."
)


def confidence_tables(study: Study) -> tuple[Table, ...]:
    """Return accuracy and size of the confidence sets of every cell, and its scores."""
    return (_accuracy_table(study), _size_table(study), _score_table(study))


def levels_of(groups: Sequence[CellGroup]) -> list[float]:
    """Return every level at which some of the cells were measured, ascending."""
    runs = [run for group in groups for run in runs_of(group)]
    return sorted({level for run in runs for level in run.levels})


def runs_of(group: CellGroup) -> list[ConfidenceMeasurement]:
    """Return what was measured of a cell, seed by seed."""
    measured = [cell.measured for cell in group.cells]
    return [each for each in measured if isinstance(each, ConfidenceMeasurement)]


def at_level(group: CellGroup, name: str, level: float) -> list[float]:
    """Return the accuracy or the size of a cell's set at a level, of each seed that has one."""
    found = (dict(zip(run.levels, getattr(run, name), strict=True)) for run in runs_of(group))
    return [value for each in found if (value := each.get(level)) is not None]


def _score_table(study: Study) -> Table:
    has_paper = {
        name: any(_reported(group, name) is not None for group in study.groups) for name in _SCORES
    }

    def rows(group: CellGroup) -> list[list[Datum]]:
        row = labelled(study, group, 1)
        for name, (_, write) in _SCORES.items():
            row.append(number(write(over_seeds(group, _reader(name)))))
            if has_paper[name]:
                row.append(number(write(_reported(group, name)), is_paper=True))
        return [row]

    columns = [*labelled_columns(study)]
    for name, (title, _) in _SCORES.items():
        columns += beside_paper(title, has_paper[name])
    return Table("Scores on the whole test set", tuple(columns), by_protocol(study, rows))


def _accuracy_table(study: Study) -> Table:
    levels = levels_of(study.groups)
    has_paper = any(
        _reported_at(group, level)[0] is not None for group in study.groups for level in levels
    )

    def rows(group: CellGroup) -> list[list[Datum]]:
        row = labelled(study, group, 1)
        for level in levels:
            row.append(number(percent(average(at_level(group, "accuracy", level)))))
            if has_paper:
                mean, std = _reported_at(group, level)
                spread = "" if std is None else f"± {percent(std).text}"
                row.append(number(Written(percent(mean).text, spread), is_paper=True))
        return [row]

    columns = [*labelled_columns(study)]
    for level in levels:
        columns += _level_columns(level, has_paper)
    notes = (_WHAT_IT_IS, *study_notes(study))
    caption = "Accuracy of the confidence set, %"
    return Table(caption, tuple(columns), by_protocol(study, rows), notes)


def _size_table(study: Study) -> Table:
    levels = levels_of(study.groups)

    def rows(group: CellGroup) -> list[list[Datum]]:
        sizes = [average(at_level(group, "size", level)) for level in levels]
        return [[*labelled(study, group, 1), *(number(percent(size)) for size in sizes)]]

    columns = [*labelled_columns(study)]
    for level in levels:
        columns += _level_columns(level, has_paper=False)
    caption = "Size of the confidence set, % of the test set"
    return Table(caption, tuple(columns), by_protocol(study, rows))


def _level_columns(level: float, has_paper: bool) -> list[Column]:
    title = f"{100 * level:g}"
    if has_paper:
        return beside_paper(f"confidence ≥ {title} %", has_paper=True)
    return [Column(title, "confidence at least, %")]


def _reader(name: str) -> Callable[[Any], float | None]:
    def read(measured: ConfidenceMeasurement) -> float | None:
        if name in ("kl", "mean_std"):
            return getattr(measured, name)
        return measured.scores.get(name)

    return read


def _reported(group: CellGroup, name: str) -> float | None:
    return None if group.paper is None else _as_number(group.paper.everything.get(name))


def _reported_at(group: CellGroup, level: float) -> tuple[float | None, float | None]:
    """Return the paper's accuracy of the set at a level, and its spread."""
    everything = {} if group.paper is None else group.paper.everything
    mean, std = (_of_level(everything.get(key), level) for key in ("accuracy", "accuracy_std"))
    return mean, std


def _of_level(numbers: Any, level: float) -> float | None:
    if not isinstance(numbers, Mapping):
        return None
    found = (value for key, value in numbers.items() if _is_level(key, level))
    return _as_number(next(found, None))


def _is_level(key: str, level: float) -> bool:
    try:
        return math.isclose(float(key), level)
    except ValueError:
        return False


def _as_number(value: Any) -> float | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number else None
