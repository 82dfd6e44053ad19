"""The figures of a study of confidence: what agreement is worth, and how often there is any."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from bayesify.report.averages import average, percent
from bayesify.report.confidence_tables import at_level, levels_of, runs_of
from bayesify.report.curves import Line, confidence_figure, set_spread_figure
from bayesify.report.illustration import (
    Illustration,
    after,
    axis_words,
    band_words,
    by_panel,
    illustration,
)
from bayesify.report.labels import telling_labels
from bayesify.report.looks import Looks
from bayesify.report.results import CellGroup, Study

SAMPLES = "m"
"""The label that says how many samples, M, a KL was estimated with."""


def confidence_illustrations(
    study: Study, groups: Sequence[CellGroup], under: str
) -> list[Illustration]:
    """Return the figures of a study's confidence sets, the cells of one protocol.

    Networks are held against each other, a panel for each M, and the Ms against each other, a
    panel for each network.
    """
    measured = [group for group in groups if levels_of([group])]
    if not measured:
        return []
    telling = telling_labels([group.labels for group in study.groups])
    others = [name for name in telling if name != SAMPLES]
    found = []
    if others or SAMPLES not in telling:
        looks = Looks(study, others[0] if others else None)
        found.append(_sets(looks, measured, under))
    if SAMPLES in telling:
        looks = Looks(study, SAMPLES)
        found.append(_sets(looks, measured, f" by M{under}"))
        found += _spread(looks, measured, under)
    return found


def _sets(looks: Looks, groups: Sequence[CellGroup], under: str) -> Illustration:
    accuracy, size = (
        {
            panel: [set_line(looks, member, name) for member in members]
            for panel, members in by_panel(looks, groups).items()
        }
        for name in ("accuracy", "size")
    )
    figure = confidence_figure(accuracy, size)
    return illustration(
        figure,
        f"Accuracy and size of the confidence set{under}: how often a prediction is right where "
        "at least this share of the samples votes for it, and how much of the test data that "
        f"is{band_words(groups)}.",
        f"Accuracy and size against the level of confidence. {_last_words(accuracy, size)}",
    )


def _spread(looks: Looks, groups: Sequence[CellGroup], under: str) -> list[Illustration]:
    repeated = [group for group in groups if len(runs_of(group)) > 1]
    if not repeated:
        return []
    curves = {
        panel: [spread_line(looks, member) for member in members]
        for panel, members in by_panel(looks, repeated).items()
    }
    figure = set_spread_figure(curves)
    means = [
        f"{after(panel)}{line.name}: {percent(sum(line.mean) / len(line.mean)).text}"
        for panel, lines in curves.items()
        for line in lines
    ]
    return [
        illustration(
            figure,
            f"Spread of the size of the confidence set by M{under}: its standard deviation "
            f"between seeds, in points of percent{axis_words(figure)}.",
            "Standard deviation between seeds against the level of confidence; mean over the "
            f"levels, in points: {'; '.join(means)}.",
        )
    ]


def set_line(looks: Looks, group: CellGroup, name: str) -> Line:
    """Return how the accuracy or the size of a cell's sets goes with the level."""
    levels = levels_of([group])
    found = [average(at_level(group, name, level)) for level in levels]
    means = [math.nan if each is None else each.mean for each in found]
    stds = None
    if len(runs_of(group)) > 1:
        # Where one seed alone has such a set there is no spread to show.
        stds = [0.0 if each is None or each.std is None else each.std for each in found]
    return Line(looks.name(group), levels, means, stds, looks.colour(group), looks.style(group))


def spread_line(looks: Looks, group: CellGroup) -> Line:
    """Return how the std between seeds of a cell's set sizes goes with the level."""
    line = set_line(looks, group, "size")
    return Line(line.name, line.x, line.std or [], None, line.colour, line.style)


def _last_words(accuracy: Mapping[str, Sequence[Line]], size: Mapping[str, Sequence[Line]]) -> str:
    ends = [
        f"{after(panel)}{right.name} at {100 * right.x[-1]:g} %: "
        f"{_end_words(right.mean[-1], share.mean[-1])}"
        for panel, lines in accuracy.items()
        for right, share in zip(lines, size[panel], strict=True)
    ]
    return f"{'; '.join(ends)}."


def _end_words(right: float, share: float) -> str:
    if math.isnan(right):
        return "no prediction"
    return f"{percent(right).text} % right on {percent(share).text} %"
