"""Tables of a study of noise: scores by ratio and by share kept, explanations, significance."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bayesify.evaluation.significance import LEVEL, anova, pairwise
from bayesify.report.averages import NOTHING, decimal, percent, significant
from bayesify.report.noise_measurement import NoiseMeasurement
from bayesify.report.results import CellGroup, Study
from bayesify.report.tables import (
    Body,
    Column,
    Datum,
    Table,
    by_protocol,
    labelled,
    labelled_columns,
    number,
    over_seeds,
    study_notes,
    word,
)

Read = Callable[[Any], float | None]

LOWEST_TITLE = "accuracy at {:g} dB"
VARIANCES = {"class_variance": "logit", "probability_variance": "probability"}
"""What the variances of the predicted class that a study may hold are of."""


def noise_tables(study: Study) -> tuple[Table, ...]:
    """Return what noise, pruning and explanations gave in every cell, and what differs."""
    runs = [run for group in study.groups for run in runs_of(group)]
    tables = [_noise_table(study, levels_of(runs, "noisy"))]
    if any(run.pruned for run in runs):
        tables.append(_pruned_table(study, levels_of(runs, "pruned")))
    if any(run.explained for run in runs):
        tables.append(_explained_table(study))
    if any(len(group.cells) > 1 for group in study.groups):
        tables.append(_significance_table(study))
    return tuple(tables)


def runs_of(group: CellGroup) -> list[NoiseMeasurement]:
    """Return what was measured of a cell, seed by seed."""
    measured = [cell.measured for cell in group.cells]
    return [each for each in measured if isinstance(each, NoiseMeasurement)]


def levels_of(runs: Sequence[NoiseMeasurement], part: str) -> list[float]:
    """Return every ratio, or share, at which some of the runs were measured, ascending."""
    return sorted({level for run in runs for level in getattr(run, part)})


def variances_of(runs: Sequence[NoiseMeasurement]) -> list[str]:
    """Return which variances were measured: that of the logit alone in results of old."""
    rows = [row for run in runs for row in run.noisy.values()]
    return [name for name in VARIANCES if any(name in row for row in rows)]


def reader(part: str, level: float | None, name: str) -> Read:
    """Return a function that reads one number of a run, or None where it has none."""

    def read(run: Any) -> float | None:
        found = getattr(run, part)
        return (found if level is None else found.get(level, {})).get(name)

    return read


def _noise_table(study: Study, levels: Sequence[float]) -> Table:
    def rows(group: CellGroup) -> list[list[Datum]]:
        accuracies = [over_seeds(group, reader("noisy", level, "accuracy")) for level in levels]
        variances = [
            over_seeds(group, reader("noisy", level, name)) for name in names for level in levels
        ]
        whole = over_seeds(group, reader("scores", None, "accuracy"))
        cells = [percent(whole), *map(percent, accuracies), *map(significant, variances)]
        return [[*labelled(study, group, 1), *map(number, cells)]]

    runs = [run for group in study.groups for run in runs_of(group)]
    names = variances_of(runs)
    columns = [Column("no noise", "accuracy, %")]
    for title in ("accuracy, %", *(f"variance of the {VARIANCES[name]}" for name in names)):
        columns += [Column(f"{level:g} dB", title) for level in levels]
    notes = (
        *study_notes(study),
        "Noise is added to each input, with its own variance over 10^(dB / 10). Variances are "
        "those of the predicted class over the posterior, averaged over the test set.",
    )
    table = (*labelled_columns(study), *columns)
    return Table("Under noise", table, by_protocol(study, rows), notes)


def _pruned_table(study: Study, shares: Sequence[float]) -> Table:
    def rows(group: CellGroup) -> list[list[Datum]]:
        found = [over_seeds(group, reader("pruned", share, "accuracy")) for share in shares]
        return [[*labelled(study, group, 1), *(number(percent(each)) for each in found)]]

    columns = [Column(f"{100 * (1 - share):g} % pruned", "accuracy, %") for share in shares]
    notes = ("Weights of smallest |mean| in the whole network go; nothing is trained afterwards.",)
    table = (*labelled_columns(study), *columns)
    return Table("Pruned by size", table, by_protocol(study, rows), notes)


def _explained_table(study: Study) -> Table:
    def rows(group: CellGroup) -> list[list[Datum]]:
        names = ("infidelity", "sensitivity")
        found = [over_seeds(group, reader("explained", None, name)) for name in names]
        return [[*labelled(study, group, 1), *(number(decimal(each, 4)) for each in found)]]

    columns = (*labelled_columns(study), Column("infidelity"), Column("largest sensitivity"))
    notes = ("Of the saliency of the predicted class; lower is better for both.",)
    return Table("Explanations", columns, by_protocol(study, rows), notes)


def _significance_table(study: Study) -> Table:
    groups = {group.name: group for group in study.groups if len(group.cells) > 1}
    runs = [run for group in study.groups for run in runs_of(group)]
    asked: dict[str, Read] = {"accuracy": reader("scores", None, "accuracy")}
    for level in levels_of(runs, "noisy")[:1]:
        asked[LOWEST_TITLE.format(level)] = reader("noisy", level, "accuracy")
    for name in ("infidelity", "sensitivity"):
        asked[name] = reader("explained", None, name)
    body = []
    for title, read in asked.items():
        values = _values(groups, read)
        if len(values) > 1:
            pairs = [f"{a} and {b}" for (a, b), p in pairwise(values).items() if p < LEVEL]
            told = "; ".join(pairs) if pairs else "none"
            body.append([word(title), number(significant(anova(values))), word(told)])
    if not body:
        body.append([word(NOTHING), word(NOTHING), word(NOTHING)])
    columns = (
        Column("measure", is_number=False),
        Column("p of one mean for all"),
        Column(f"pairs that differ, p < {LEVEL:g}", is_number=False),
    )
    notes = (
        "One-way analysis of variance over the cells with several seeds; pairs by Welch's t-test, "
        "mended for their number by Holm's rule.",
    )
    rows = tuple(tuple(row) for row in body)
    return Table("What differs by more than chance", columns, (Body("", rows),), notes)


def _values(groups: Mapping[str, CellGroup], read: Read) -> dict[str, list[float]]:
    found = {name: [read(run) for run in runs_of(group)] for name, group in groups.items()}
    return {
        name: [value for value in values if value is not None]
        for name, values in found.items()
        if len(values) > 1 and all(value is not None and math.isfinite(value) for value in values)
    }
