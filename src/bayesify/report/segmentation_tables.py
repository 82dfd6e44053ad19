"""Tables of a study of segmentation: scores over all pixels, and each class's overlap."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bayesify.report.averages import Average, Written, decimal, percent
from bayesify.report.results import CellGroup, Study
from bayesify.report.segmentation_measurement import SegmentationMeasurement
from bayesify.report.tables import (
    Column,
    Datum,
    Table,
    by_protocol,
    labelled,
    labelled_columns,
    number,
    over_seeds,
    study_notes,
)

Write = Callable[[Average | float | None], Written]


def _four(value: Average | float | None) -> Written:
    return decimal(value, 4)


_SCORES: Mapping[str, tuple[str, Write]] = {
    "mean_iou": ("mean IoU, %", percent),
    "accuracy": ("accuracy, %", percent),
    "nll": ("NLL", _four),
    "brier": ("Brier score", _four),
    "ece": ("ECE, %", percent),
}
_WRONG: Mapping[str, tuple[str, Write]] = {
    "auroc_by_entropy": ("wrong pixels found by entropy, AUROC, %", percent),
    "auroc_by_mutual_information": ("by mutual information, AUROC, %", percent),
    "entropy_where_right": ("entropy where right, nats", _four),
    "entropy_where_wrong": ("where wrong, nats", _four),
}


def segmentation_tables(study: Study) -> tuple[Table, ...]:
    """Return the scores of every cell over all pixels, and the overlap of each class."""
    return (_score_table(study), _class_table(study))


def runs_of(group: CellGroup) -> list[SegmentationMeasurement]:
    """Return what was measured of a cell, seed by seed."""
    measured = [cell.measured for cell in group.cells]
    return [each for each in measured if isinstance(each, SegmentationMeasurement)]


def _score_table(study: Study) -> Table:
    def rows(group: CellGroup) -> list[list[Datum]]:
        row = labelled(study, group, 1)
        for part, names in (("scores", _SCORES), ("wrong", _WRONG)):
            for name, (_, write) in names.items():
                row.append(number(write(over_seeds(group, _reader(part, name)))))
        return [row]

    titles = [title for names in (_SCORES, _WRONG) for title, _ in names.values()]
    columns = (*labelled_columns(study), *map(Column, titles))
    notes = (*study_notes(study), "One network alone has no mutual information.")
    return Table("Scores over all pixels", columns, by_protocol(study, rows), notes)


def _class_table(study: Study) -> Table:
    runs = [run for group in study.groups for run in runs_of(group)]
    names = list(dict.fromkeys(name for run in runs for name in run.class_iou))

    def rows(group: CellGroup) -> list[list[Datum]]:
        found = [over_seeds(group, _reader("class_iou", name)) for name in names]
        return [[*labelled(study, group, 1), *(number(percent(each)) for each in found)]]

    columns = (*labelled_columns(study), *(Column(name, "IoU, %") for name in names))
    return Table("Overlap of each class with the truth", columns, by_protocol(study, rows))


def _reader(part: str, name: str) -> Callable[[Any], float | None]:
    return lambda run: getattr(run, part).get(name)
