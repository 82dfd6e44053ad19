"""Tables of a pruning study: what went, what it cost, and what the paper has to say."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from bayesify.report.averages import NOTHING, Average, Written, average, counted, decimal, percent
from bayesify.report.json_value import ResultError
from bayesify.report.measurements import Pruning, PruningMeasurement
from bayesify.report.results import Cell, CellGroup, Study
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
    word,
)

_NOT_PRUNED = "not_pruned"
_STAGES = {_NOT_PRUNED: "not pruned", "principled": "principled", "random": "random"}
_TITLES = {"nll": "NLL", "ece": "ECE, %", "brier": "Brier score"}
_MOST_LAYERS = 6
_DASH = f" {NOTHING} "


@dataclass(frozen=True)
class _Row:
    """One pruning of a cell, under every seed; `num` rows belong to the cell."""

    group: CellGroup
    runs: tuple[Pruning, ...]
    num: int
    is_first: bool

    def once(self, written: Written, *, is_paper: bool = False) -> list[Datum]:
        """Return what holds for the whole cell: in its first row, beside all of them."""
        return [number(written, self.num, is_paper=is_paper)] if self.is_first else []

    def score(self, stage: str, name: str) -> Average | None:
        """Return a score at a stage of pruning."""
        if stage == _NOT_PRUNED:
            return over_seeds(self.group, lambda each: each.not_pruned.get(name))
        return self.mean(lambda one: (getattr(one, stage) or {}).get(name))

    def mean(self, read: Callable[[Pruning], float | None]) -> Average | None:
        """Return the mean over seeds of a property of the pruning."""
        return average(map(read, self.runs))


def pruning_table(study: Study) -> Table:
    """Return sparsity and accuracy of every pruning, beside the paper's where it has them."""
    papers = [group.paper for group in study.groups if group.paper is not None]
    has_sparsity = any(paper.sparsity for paper in papers)
    has_accuracy = any(paper.accuracy for paper in papers)
    has_plain = any(_measured(cell).plain is not None for cell in study.cells)

    def rest(row: _Row) -> list[Datum]:
        paper = row.group.paper
        found = [number(percent(row.mean(lambda one: one.removed), 1)), number(_sparsity(row.runs))]
        if has_sparsity:
            layers = [average([each]) for each in (paper.sparsity if paper else ())]
            found += row.once(_layers(layers), is_paper=True)
        if has_plain:
            plain = over_seeds(row.group, lambda each: (each.plain or {}).get("accuracy"))
            found += row.once(percent(plain))
        for stage in _STAGES:
            accuracy = percent(row.score(stage, "accuracy"))
            found += row.once(accuracy) if stage == _NOT_PRUNED else [number(accuracy)]
            if has_accuracy:
                reported = percent(paper.accuracy.get(stage) if paper else None)
                found += row.once(reported, is_paper=True)
        return found

    columns = [*labelled_columns(study), Column("pruned by", is_number=False), Column("removed, %")]
    columns += beside_paper("sparsity per layer, %", has_sparsity)
    columns += [Column("plain", "accuracy, %")] if has_plain else []
    for title in _STAGES.values():
        columns += beside_paper(f"accuracy, {title}, %", has_accuracy)
    notes = (
        "Accuracy before pruning, after pruning by the score named, and after removing as many "
        "weights at random.",
        *(["Plain: the network that a warm start began from."] if has_plain else []),
        *(["The paper has one number for a cell, at a threshold of its own."] if papers else []),
        *_layer_note(study),
        *study_notes(study),
    )
    return Table("Sparsity and test accuracy", tuple(columns), _bodies(study, rest), notes)


def score_table(study: Study) -> Table:
    """Return likelihood and calibration before and after pruning, and the size of what is left."""
    every = [one for cell in study.cells for one in _measured(cell).prunings]
    scores = _score_names(study)
    has_shape = any(one.shape_after is not None for one in every)
    has_file = any(one.file_ratio is not None for one in every)

    def rest(row: _Row) -> list[Datum]:
        found = []
        for name in scores:
            for stage in _STAGES:
                value = row.score(stage, name)
                written = percent(value) if name == "ece" else decimal(value, 4)
                found += row.once(written) if stage == _NOT_PRUNED else [number(written)]
        if has_shape:
            shapes = dict.fromkeys(one.shape_after or NOTHING for one in row.runs)
            found.append(word(" / ".join(shapes) or NOTHING))
        if has_file:
            found.append(number(percent(row.mean(lambda one: one.file_ratio), 1)))
        return found

    columns = [*labelled_columns(study), Column("pruned by", is_number=False)]
    for name in scores:
        columns += [Column(title, _TITLES.get(name, name)) for title in _STAGES.values()]
    columns += [Column("shape after", is_number=False)] if has_shape else []
    columns += [Column("file size, %")] if has_file else []
    notes = tuple(_size_notes(every))
    return Table("Likelihood, calibration and size", tuple(columns), _bodies(study, rest), notes)


def _bodies(study: Study, rest: Callable[[_Row], list[Datum]]) -> tuple[Body, ...]:
    def rows(group: CellGroup) -> list[list[Datum]]:
        prunings: list[tuple[Pruning, ...]] = _prunings(group) or [()]
        num = len(prunings)
        return [
            [
                *(labelled(study, group, num) if index == 0 else []),
                word(_rule(runs)),
                *rest(_Row(group, runs, num, index == 0)),
            ]
            for index, runs in enumerate(prunings)
        ]

    return by_protocol(study, rows)


def _prunings(group: CellGroup) -> list[tuple[Pruning, ...]]:
    """Return the prunings of a cell, for each the same one under every seed."""
    lists = [_measured(cell).prunings for cell in group.cells]
    first = [_rule([one]) if one.keep is not None else one.by for one in lists[0]]
    for cell, prunings in zip(group.cells, lists, strict=True):
        names = [_rule([one]) if one.keep is not None else one.by for one in prunings]
        if names != first:
            raise ResultError(
                f"{cell.file} must hold the same prunings as {group.cells[0].file}, of which it "
                f"is another seed: expected {first}, got {names}; run one of them again"
            )
    return list(zip(*lists, strict=True))


def _measured(cell: Cell) -> PruningMeasurement:
    assert isinstance(cell.measured, PruningMeasurement)
    return cell.measured


def _rule(runs: Sequence[Pruning]) -> str:
    if not runs:
        return NOTHING
    by, keep = runs[0].by, runs[0].keep
    if keep is not None:
        return f"{by}, keep {100 * keep:.3g} %"
    threshold = average(one.threshold for one in runs)
    return by if threshold is None else f"{by} ≤ {threshold.mean:.3g}"


def _sparsity(runs: Sequence[Pruning]) -> Written:
    sites = dict.fromkeys(site for one in runs for site in one.sparsity)
    return _layers([average(one.sparsity.get(site) for one in runs) for site in sites])


def _layers(layers: Sequence[Average | None]) -> Written:
    if not layers:
        return Written(NOTHING)
    if len(layers) > _MOST_LAYERS:
        means = [layer.mean for layer in layers if layer is not None] or [math.nan]
        low, high = percent(min(means), 1).text, percent(max(means), 1).text
        return Written(f"{low} to {high}", f"{len(layers)} layers")
    written = [percent(layer, 1) for layer in layers]
    text = _DASH.join(each.text for each in written)
    spreads = [each.spread.removeprefix("± ") or NOTHING for each in written]
    has_spread = any(each.spread for each in written)
    return Written(text, f"± {_DASH.join(spreads)}" if has_spread else "")


def _layer_note(study: Study) -> list[str]:
    every: list[Any] = [one for cell in study.cells for one in _measured(cell).prunings]
    sites = dict.fromkeys(_DASH.join(one.sparsity) for one in every if one.sparsity)
    return [f"Layers in order: {'; or '.join(sites)}."] if sites else []


def _size_notes(every: Sequence[Pruning]) -> Iterator[str]:
    pairs = [(one.principled.get("accuracy"), (one.shrunk or {}).get("accuracy")) for one in every]
    changes = [
        abs(small - masked) for masked, small in pairs if masked is not None and small is not None
    ]
    if changes:
        yield (
            "Scores are those of networks with zeros in place of what went; where units were "
            f"really taken out, accuracy moves by at most {percent(max(changes)).text} points."
        )
    loads = [one.loads_identical for one in every if one.loads_identical is not None]
    if loads:
        lost = counted(loads.count(False), "file")
        yield (
            "Every file predicts the same on a test batch after it is loaded."
            if all(loads)
            else f"{lost} of {len(loads)} did not predict the same on a test batch after loading."
        )


def _score_names(study: Study) -> list[str]:
    found = dict.fromkeys(score for cell in study.cells for score in _measured(cell).not_pruned)
    others = [score for score in found if score not in (*_TITLES, "accuracy")]
    return [score for score in _TITLES if score in found] + others
