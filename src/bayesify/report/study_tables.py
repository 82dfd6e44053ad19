"""The tables of a study, by its kind."""

from __future__ import annotations

from collections.abc import Sequence

from bayesify.report.averages import NOTHING, average, decimal, percent, significant
from bayesify.report.measurements import RegressionMeasurement, SpeedMeasurement, SpeedRow
from bayesify.report.pruning_tables import pruning_table, score_table
from bayesify.report.results import CellGroup, Study
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


def study_tables(study: Study) -> tuple[Table, ...]:
    """Return every table of a study; one of its scalars if its kind is not known."""
    if study.kind == "pruning":
        return (pruning_table(study), score_table(study))
    if study.kind == "regression":
        return (regression_table(study),)
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
    by_row: dict[tuple[str, str, str], list[SpeedRow]] = {}
    for cell in group.cells:
        assert isinstance(cell.measured, SpeedMeasurement)
        for row in cell.measured.rows:
            by_row.setdefault((row.table, row.layer, row.mode), []).append(row)
    bodies: dict[str, list[tuple[Datum, ...]]] = {}
    for (table, layer, mode), runs in by_row.items():
        bodies.setdefault(table, []).append(
            (word(layer, is_header=True), word(mode), *_times(runs))
        )
    columns = (
        Column("layer", is_number=False),
        Column("mode", is_number=False),
        *beside_paper("median, µs", True),
        *beside_paper("ratio", True),
    )
    hardware = dict.fromkeys(str(cell.provenance.get("hardware", "")) for cell in group.cells)
    where = ", ".join(name for name in hardware if name)
    return Table(
        f"{group.short_name}, on {where}" if where else group.short_name,
        columns,
        tuple(Body(f"table {name}", tuple(rows)) for name, rows in bodies.items()),
        study_notes(study),
    )


def _times(runs: Sequence[SpeedRow]) -> list[Datum]:
    time, ratio = average(run.median_us for run in runs), average(run.ratio for run in runs)
    paper_time, paper_ratio = runs[0].paper_us, runs[0].paper_ratio
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
