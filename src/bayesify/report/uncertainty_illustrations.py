"""The figures of a study of uncertainty: scores against severity, and against a label's numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from bayesify.report.averages import Average
from bayesify.report.curves import Line, scores_figure
from bayesify.report.illustration import (
    Illustration,
    after,
    band_words,
    by_panel,
    illustration,
)
from bayesify.report.labels import is_number, telling_labels
from bayesify.report.looks import Looks
from bayesify.report.panels import COLOURS
from bayesify.report.results import CellGroup, Study
from bayesify.report.tables import over_seeds
from bayesify.report.uncertainty_tables import (
    SPOILED,
    at_severity,
    corruption_words,
    runs_of,
    severities_of,
)

_TITLES = {"accuracy": "accuracy, %", "nll": "NLL", "ece": "ECE, %"}
_SCALES = {"accuracy": 100.0, "nll": 1.0, "ece": 100.0}
_ALONG_AXIS = ("accuracy", "nll")
# Beyond this, small numbers would lie on top of each other.
_LARGEST_RATIO = 5.0

Scored = Mapping[str, Sequence[Line]]
"""Curves by the title of their score."""


def uncertainty_illustrations(
    study: Study, groups: Sequence[CellGroup], under: str
) -> list[Illustration]:
    """Return the figures of a study's uncertainty, the cells of one protocol."""
    measured = [group for group in groups if runs_of(group)]
    spoiled = [group for group in measured if severities_of([group])]
    found = [_by_severity(Looks(study), spoiled, under)] if spoiled else []
    return [*found, *(_along(measured, name, under) for name in numeric_axes(measured))]


def numeric_axes(groups: Sequence[CellGroup]) -> list[str]:
    """Return the labels in which cells differ and whose values are numbers, each of them."""
    labels = [group.labels for group in groups]
    return [
        name
        for name in telling_labels(labels)
        if all(is_number(each.get(name, "")) for each in labels)
    ]


def _by_severity(looks: Looks, groups: Sequence[CellGroup], under: str) -> Illustration:
    rows = {
        panel: {
            _TITLES[name]: [severity_line(looks, member, name) for member in members]
            for name in SPOILED
        }
        for panel, members in by_panel(looks, groups).items()
    }
    ticks = [0, *severities_of(groups)]
    return illustration(
        scores_figure(rows, "severity", ticks),
        f"Scores on spoiled test images against severity{under}; at 0 stands the test set as it "
        f"is{band_words(groups)}. {corruption_words(groups)}",
        f"Scores against the severity of corruptions. {_end_words(rows)}",
    )


def _along(groups: Sequence[CellGroup], axis: str, under: str) -> Illustration:
    rows = {"": {_TITLES[name]: axis_lines(groups, axis, name) for name in _ALONG_AXIS}}
    ticks = sorted({float(group.labels[axis]) for group in groups})
    is_log = ticks[0] > 0 and ticks[-1] > _LARGEST_RATIO * ticks[0]
    return illustration(
        scores_figure(rows, axis, ticks, is_log=is_log),
        f"Scores on the test set against {axis}{under}{band_words(groups)}.",
        f"Scores against {axis}. {_end_words(rows)}",
    )


def severity_line(looks: Looks, group: CellGroup, name: str) -> Line:
    """Return how a score of a cell goes with the severity of corruptions, from none at all."""
    severities = severities_of([group])
    found = [
        over_seeds(group, lambda run: run.scores.get(name)),
        *(at_severity(group, name, severity) for severity in severities),
    ]
    x = [0.0, *map(float, severities)]
    colour, style = looks.colour(group), looks.style(group)
    return _line(looks.name(group), x, found, name, (colour, style))


def axis_lines(groups: Sequence[CellGroup], axis: str, name: str) -> list[Line]:
    """Return how a score goes with the numbers of an axis: a line per choice of the others."""
    others = [each for each in telling_labels([group.labels for group in groups]) if each != axis]
    members: dict[tuple[str, ...], list[CellGroup]] = {}
    for group in groups:
        members.setdefault(tuple(group.labels.get(each, "") for each in others), []).append(group)
    lines = []
    for rank, choice in enumerate(sorted(members)):
        along = sorted(members[choice], key=lambda group: float(group.labels[axis]))
        x = [float(group.labels[axis]) for group in along]
        found = [over_seeds(group, lambda run: run.scores.get(name)) for group in along]
        look = (rank % len(COLOURS), rank // len(COLOURS))
        lines.append(_line(", ".join(filter(None, choice)), x, found, name, look))
    return lines


def _line(
    legend: str,
    x: Sequence[float],
    found: Sequence[Average | None],
    name: str,
    look: tuple[int, int],
) -> Line:
    scale = _SCALES[name]
    means = [math.nan if each is None else scale * each.mean for each in found]
    has_std = any(each is not None and each.std is not None for each in found)
    # Where one seed alone was measured there is no spread to show.
    stds = [0.0 if each is None or each.std is None else scale * each.std for each in found]
    return Line(legend, x, means, stds if has_std else None, *look)


def _end_words(rows: Mapping[str, Scored]) -> str:
    ends = [
        f"{after(panel)}{after(line.name)}{title}: {_word(line.mean[0])} at {line.x[0]:g}, "
        f"{_word(line.mean[-1])} at {line.x[-1]:g}"
        for panel, scored in rows.items()
        for title, lines in scored.items()
        for line in lines
    ]
    return f"{'; '.join(ends)}."


def _word(value: float) -> str:
    return "nothing" if math.isnan(value) else f"{value:.4g}"
