"""The tables of a study, by its kind."""

from __future__ import annotations

from collections.abc import Sequence

from bayesify.report.averages import NOTHING, average, decimal, percent, significant
from bayesify.report.confidence_tables import confidence_tables
from bayesify.report.measurements import RegressionMeasurement, SpeedMeasurement, SpeedRow
from bayesify.report.noise_tables import noise_tables
from bayesify.report.pruning_tables import pruning_table, score_table
from bayesify.report.results import CellGroup, Study
from bayesify.report.segmentation_tables import segmentation_tables
from bayesify.report.tables import (
    Body,
    Column,
    Datum,
    Table,
    beside_paper,
    by_protocol,
    labelled,
    labelled_columns,
    number,
    scalar_table,
    study_notes,
    word,
)
from bayesify.report.uncertainty_tables import uncertainty_tables

# The layer that others are held against.
_PLAIN_LAYER = "nn.Linear"


def study_tables(study: Study) -> tuple[Table, ...]:
    """Return every table of a study; one of its scalars if its kind is not known."""
    if study.kind == "pruning":
        return (pruning_table(study), score_table(study))
    if study.kind == "regression":
        return (regression_table(study),)
    if study.kind == "confidence":
        return confidence_tables(study)
    if study.kind == "uncertainty":
        return uncertainty_tables(study)
    if study.kind == "noise":
        return noise_tables(study)
    if study.kind == "segmentation":
        return segmentation_tables(study)
    if study.kind == "speed":
        return tuple(speed_table(study, group) for group in study.groups)
    return (scalar_table(study),)


def regression_table(study: Study) -> Table:
    """Return the error of every regression, and how often the truth lies inside its intervals."""
    every = [each for group in study.groups for each in _regressions(group)]
    levels = list(dict.fromkeys(level for each in every for level in each.coverage))
    has_paper = any(map(_paper_words, study.groups))

    def rows(group: CellGroup) -> list[list[Datum]]:
        runs = _regressions(group)
        row = labelled(study, group, 1)
        row.append(number(decimal(average(each.rmse for each in runs), 4)))
        row.append(number(decimal(average(each.nll for each in runs), 4)))
        for level in levels:
            covered = average([each.coverage.get(level) for each in runs])
            row.append(number(percent(covered, 1)))
        if has_paper:
            row.append(Datum(_paper_words(group) or NOTHING, is_number=False, is_paper=True))
        return [row]

    columns = [*labelled_columns(study), Column("RMSE"), Column("NLL")]
    columns += [Column(_level(level), "coverage of intervals, %") for level in levels]
    columns += [Column("paper", is_number=False, is_paper=True)] if has_paper else []
    notes = ("Honest intervals cover as often as their level says.", *study_notes(study))
    return Table("Error and coverage", tuple(columns), by_protocol(study, rows), notes)


def speed_table(study: Study, group: CellGroup) -> Table:
    """Return the times of one cell, those of one table of the paper together."""
    by_row: dict[tuple[str, ...], list[SpeedRow]] = {}
    for cell in group.cells:
        assert isinstance(cell.measured, SpeedMeasurement)
        for row in cell.measured.rows:
            by_row.setdefault((row.table, *_choices(row).values()), []).append(row)
    every = [_choices(runs[0]) for runs in by_row.values()]
    choices = [name for name in every[0] if any(each[name] for each in every)] if every else []
    plain_us = {
        runs[0].table: runs[0].paper_us for runs in by_row.values() if runs[0].layer == _PLAIN_LAYER
    }
    bodies: dict[str, list[tuple[Datum, ...]]] = {}
    for runs in by_row.values():
        texts = _choices(runs[0])
        words = [
            word(texts[name] or NOTHING, is_header=index == 0) for index, name in enumerate(choices)
        ]
        times = _times(runs, plain_us.get(runs[0].table))
        bodies.setdefault(runs[0].table, []).append((*words, *times))
    columns = (
        *(Column(name, is_number=False) for name in choices),
        *beside_paper("median, µs", True),
        *beside_paper("ratio", True),
    )
    hardware = dict.fromkeys(str(cell.provenance.get("hardware", "")) for cell in group.cells)
    where = ", ".join(name for name in hardware if name)
    return Table(
        f"{group.short_name}, on {where}" if where else group.short_name,
        columns,
        tuple(Body(_body_title(name), tuple(rows)) for name, rows in bodies.items()),
        study_notes(study),
    )


def _choices(row: SpeedRow) -> dict[str, str]:
    return {
        "layer": row.layer,
        "how": row.how,
        "mode": row.mode,
        "timed": row.timed,
        "optimizer": row.optimizer,
    }


def _body_title(table: str) -> str:
    # What no table of the paper shows has a name instead of a number.
    return f"table {table}" if table[:1].isdigit() else table


def _times(runs: Sequence[SpeedRow], plain_us: float | None) -> list[Datum]:
    time, ratio = average(run.median_us for run in runs), average(run.ratio for run in runs)
    paper_time, paper_ratio = runs[0].paper_us, runs[0].paper_ratio
    if paper_ratio is None and paper_time is not None and plain_us:
        paper_ratio = paper_time / plain_us
    return [
        number(significant(time)),
        number(significant(paper_time), is_paper=True),
        number(decimal(ratio, 2)),
        number(decimal(paper_ratio, 2), is_paper=True),
    ]


def _regressions(group: CellGroup) -> list[RegressionMeasurement]:
    measured = [cell.measured for cell in group.cells]
    return [each for each in measured if isinstance(each, RegressionMeasurement)]


def _level(level: str) -> str:
    try:
        return f"{100 * float(level):g}"
    except ValueError:
        return level


def _paper_words(group: CellGroup) -> str:
    paper = {} if group.paper is None else group.paper.everything
    return ", ".join(
        f"{key} {value:g}"
        for key, value in paper.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    )
