"""Tables of a study of uncertainty: scores, strangers, spoiled images, cost and pruning."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from bayesify.report.averages import (
    Average,
    Written,
    average,
    counted,
    decimal,
    percent,
    significant,
)
from bayesify.report.measurements import Scores, UncertaintyMeasurement
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
    over_seeds,
    study_notes,
)

Read = Callable[[Any], float | None]
Write = Callable[[Average | float | None], Written]


def _four(value: Average | float | None) -> Written:
    return decimal(value, 4)


def _settled(value: Average | float | None) -> Written:
    """Write a fraction in percent that a choice settles: seeds that agree have no spread."""
    written = percent(value)
    is_same = isinstance(value, Average) and not value.std
    return Written(written.text) if is_same else written


_SCORES: Mapping[str, tuple[str, Write]] = {
    "accuracy": ("accuracy, %", percent),
    "nll": ("NLL", _four),
    "brier": ("Brier score", _four),
    "ece": ("ECE, %", percent),
    "marginal_calibration_error": ("marginal calibration error, %", percent),
}
SPOILED = ("accuracy", "nll", "ece")
"""The scores that are shown against the severity of corruptions."""
_DETECTED_BY = {"entropy": "entropy", "mutual_information": "mutual information"}
_DETECTION = {"auroc": "AUROC, %", "aupr": "AUPR, %"}


def uncertainty_tables(study: Study) -> tuple[Table, ...]:
    """Return the scores of every cell, and whatever else was measured of any of them."""
    tables = [_score_table(study)]
    runs = [run for group in study.groups for run in runs_of(group)]
    if any(run.ood for run in runs):
        tables.append(_ood_table(study))
    if severities_of(study.groups):
        tables.append(_corruption_table(study))
    if any(run.file_ratios or run.flops for run in runs):
        tables.append(_cost_table(study))
    if any(run.pruned for run in runs):
        tables.append(_pruned_table(study))
    return tuple(tables)


def runs_of(group: CellGroup) -> list[UncertaintyMeasurement]:
    """Return what was measured of a cell, seed by seed."""
    measured = [cell.measured for cell in group.cells]
    return [each for each in measured if isinstance(each, UncertaintyMeasurement)]


def severities_of(groups: Sequence[CellGroup]) -> list[int]:
    """Return every severity at which images of some of the cells were spoiled, ascending."""
    tables = [table for group in groups for run in runs_of(group) for table in _spoiled(run)]
    return sorted({severity for table in tables for severity in table})


def at_severity(group: CellGroup, name: str, severity: int | None) -> Average | None:
    """Return a score averaged over the corruptions, then over seeds.

    Args:
        group: The cell.
        name: The score.
        severity: How badly images were spoiled; None for the mean over all severities.
    """
    return average(_over_corruptions(run, name, severity) for run in runs_of(group))


def _over_corruptions(run: UncertaintyMeasurement, name: str, severity: int | None) -> float | None:
    found = average(
        scores.get(name)
        for table in _spoiled(run)
        for at, scores in table.items()
        if severity is None or at == severity
    )
    return None if found is None else found.mean


def _spoiled(run: UncertaintyMeasurement) -> Iterable[Mapping[int, Scores]]:
    return run.corrupted.values()


def _score_table(study: Study) -> Table:
    has_paper = {
        name: any(_reported(group, name) is not None for group in study.groups) for name in _SCORES
    }

    def rows(group: CellGroup) -> list[list[Datum]]:
        row = labelled(study, group, 1)
        for name, (_, write) in _SCORES.items():
            row.append(number(write(over_seeds(group, _score(name)))))
            if has_paper[name]:
                row.append(number(write(_reported(group, name)), is_paper=True))
        row += [number(_settled(over_seeds(group, _share(name)))) for name in ("live", "random")]
        row.append(number(significant(over_seeds(group, lambda run: run.mean_std))))
        return [row]

    columns = [*labelled_columns(study)]
    for name, (title, _) in _SCORES.items():
        columns += beside_paper(title, has_paper[name])
    columns += [Column("live", "of all weights, %"), Column("random", "of all weights, %")]
    columns.append(Column("mean std of a weight"))
    notes = study_notes(study)
    return Table("Scores on the test set", tuple(columns), by_protocol(study, rows), notes)


def _ood_table(study: Study) -> Table:
    runs = [run for group in study.groups for run in runs_of(group)]
    names = list(dict.fromkeys(name for run in runs for name in run.ood))
    wanted = [
        (name, score, measure) for name in names for score in _DETECTED_BY for measure in _DETECTION
    ]

    def rows(group: CellGroup) -> list[list[Datum]]:
        found = [over_seeds(group, _detected(*each)) for each in wanted]
        return [[*labelled(study, group, 1), *(number(percent(each)) for each in found)]]

    columns = [
        Column(_DETECTION[measure], f"{name}, by {_DETECTED_BY[score]}")
        for name, score, measure in wanted
    ]
    notes = (
        "How well uncertainty tells the test set from data that the network was not trained for. "
        "One sample has no mutual information.",
    )
    return Table(
        "Strangers told apart",
        (*labelled_columns(study), *columns),
        by_protocol(study, rows),
        notes,
    )


def _corruption_table(study: Study) -> Table:
    severities = severities_of(study.groups)
    wanted: list[int | None] = [*severities, *([None] if len(severities) > 1 else [])]

    def bodies(name: str) -> list[Body]:
        title, write = _SCORES[name]

        def rows(group: CellGroup) -> list[list[Datum]]:
            found = [at_severity(group, name, severity) for severity in wanted]
            if not any(found):
                return []
            return [[*labelled(study, group, 1), *(number(write(each)) for each in found)]]

        return [
            Body(", ".join(filter(None, (title, body.title))), body.rows)
            for body in by_protocol(study, rows)
            if body.rows
        ]

    columns = [
        Column("mean" if severity is None else str(severity), "severity") for severity in wanted
    ]
    return Table(
        "Scores on spoiled test images",
        (*labelled_columns(study), *columns),
        tuple(body for name in SPOILED for body in bodies(name)),
        (corruption_words(study.groups),),
    )


def corruption_words(groups: Sequence[CellGroup]) -> str:
    """Say over how many corruptions a score is averaged, in a sentence."""
    nums = {len(run.corrupted) for group in groups for run in runs_of(group) if run.corrupted}
    if len(nums) > 1:
        return f"Mean over {min(nums)} to {max(nums)} corruptions."
    return f"Mean over {counted(min(nums), 'corruption')}."


def _cost_table(study: Study) -> Table:
    runs = [run for group in study.groups for run in runs_of(group)]
    cost: list[tuple[Column, Read, Write]] = []
    notes = []
    if any(run.file_ratios for run in runs):
        of_file = "file, % of a dense one"
        cost += [
            (Column(name, of_file), _file_ratio(name), _settled) for name in ("float32", "bfloat16")
        ]
        cost.append((Column("change of NLL in bfloat16"), _change_of_nll, _four))
        notes.append(
            "A dense file holds mean and std of every weight of the same network, in float32."
        )
    if any(run.flops for run in runs):
        of_flops = "FLOPs, % of dense ones"
        cost += [
            (Column(name, of_flops), _flops_ratio(name), _settled)
            for name in ("inference", "training")
        ]
        notes.append(
            "FLOPs count the products of live weights, which is what a kernel that skips the "
            "others would take."
        )

    def rows(group: CellGroup) -> list[list[Datum]]:
        numbers = [number(write(over_seeds(group, read))) for _, read, write in cost]
        return [[*labelled(study, group, 1), *numbers]]

    columns = (*labelled_columns(study), *(column for column, _, _ in cost))
    return Table("Cost", columns, by_protocol(study, rows), tuple(notes))


def _pruned_table(study: Study) -> Table:
    def rows(group: CellGroup) -> list[list[Datum]]:
        shares = sorted({share for run in runs_of(group) for share in run.pruned}, reverse=True)
        found = []
        for index, share in enumerate(shares):
            row = labelled(study, group, len(shares)) if index == 0 else []
            row.append(number(Written(f"{100 * share:g}")))
            for name, (_, write) in _SCORES.items():
                row.append(number(write(over_seeds(group, _pruned_score(share, name)))))
            found.append(row)
        return found

    columns = [*labelled_columns(study), Column("weights kept, %")]
    columns += [Column(title) for title, _ in _SCORES.values()]
    bodies = tuple(body for body in by_protocol(study, rows) if body.rows)
    notes = ("The weights of the largest |mean| / std are kept; nothing is trained after.",)
    return Table("Scores after pruning the trained network", tuple(columns), bodies, notes)


def _score(name: str) -> Read:
    return lambda run: run.scores.get(name)


def _share(name: str) -> Read:
    def read(run: UncertaintyMeasurement) -> float | None:
        # A network without a posterior has no weights that were counted.
        return _ratio(run.num_weights.get(name), run.num_weights.get("all"))

    return read


def _detected(name: str, score: str, measure: str) -> Read:
    def read(run: UncertaintyMeasurement) -> float | None:
        # With one sample it is rounding error, which tells nothing apart.
        is_nothing = score == "mutual_information" and run.num_samples == 1
        return None if is_nothing else run.ood.get(name, {}).get(score, {}).get(measure)

    return read


def _file_ratio(name: str) -> Read:
    return lambda run: (run.file_ratios or {}).get(name)


def _change_of_nll(run: UncertaintyMeasurement) -> float | None:
    before, after = run.scores.get("nll"), (run.rounded or {}).get("nll")
    return None if before is None or after is None else after - before


def _flops_ratio(name: str) -> Read:
    def read(run: UncertaintyMeasurement) -> float | None:
        flops = run.flops or {}
        return _ratio(flops.get(name), flops.get(f"dense_{name}"))

    return read


def _pruned_score(share: float, name: str) -> Read:
    return lambda run: run.pruned.get(share, {}).get(name)


def _ratio(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole


def _reported(group: CellGroup, name: str) -> float | None:
    found = None if group.paper is None else group.paper.everything.get(name)
    if isinstance(found, bool) or not isinstance(found, (int, float)):
        return None
    return float(found)
