"""The figures of a study of noise: accuracy and variance by ratio, accuracy by share pruned."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from bayesify.report.averages import average
from bayesify.report.curves import Line, scores_figure
from bayesify.report.illustration import Illustration, band_words, illustration
from bayesify.report.looks import Looks
from bayesify.report.noise_tables import (
    VARIANCES,
    Read,
    levels_of,
    reader,
    runs_of,
    variances_of,
)
from bayesify.report.results import CellGroup, Study


def noise_illustrations(
    study: Study, groups: Sequence[CellGroup], under: str
) -> list[Illustration]:
    """Return the figures of a study's noise and pruning, the cells of one protocol."""
    measured = [group for group in groups if runs_of(group)]
    if not measured:
        return []
    looks, runs = Looks(study), [run for group in measured for run in runs_of(group)]
    found = []
    levels = levels_of(runs, "noisy")
    if levels:
        found.append(_by_noise(looks, measured, levels, under))
    shares = levels_of(runs, "pruned")
    if shares:
        found.append(_by_pruning(looks, measured, shares, under))
    return found


def _by_noise(
    looks: Looks, groups: Sequence[CellGroup], levels: Sequence[float], under: str
) -> Illustration:
    def normalised(name: str, level: float) -> Read:
        def read(run: Any) -> float | None:
            value, most = (reader("noisy", each, name)(run) for each in (level, levels[0]))
            return None if value is None or not most else value / most

        return read

    accuracy = [
        _line(looks, group, levels, [reader("noisy", each, "accuracy") for each in levels], 100.0)
        for group in groups
    ]
    rows = {"accuracy, %": accuracy}
    for name in variances_of([run for group in groups for run in runs_of(group)]):
        reads = [normalised(name, level) for level in levels]
        lines = [_line(looks, group, levels, reads) for group in groups]
        lines = [line for line in lines if any(map(math.isfinite, line.mean))]
        if lines:
            rows[f"variance of the {VARIANCES[name]} over that at {levels[0]:g} dB"] = lines
    return illustration(
        scores_figure({"": rows}, "signal-to-noise ratio, dB", levels),
        f"Accuracy, and the variance of the predicted class, against noise{under}"
        f"{band_words(groups)}.",
        f"Accuracy and variance from {levels[0]:g} to {levels[-1]:g} dB. {_ends(rows)}",
    )


def _by_pruning(
    looks: Looks, groups: Sequence[CellGroup], shares: Sequence[float], under: str
) -> Illustration:
    ordered = sorted(shares, reverse=True)
    x = [100.0 * (1.0 - share) for share in ordered]
    reads = [reader("pruned", share, "accuracy") for share in ordered]
    rows = {"accuracy, %": [_line(looks, group, x, reads, 100.0) for group in groups]}
    return illustration(
        scores_figure({"": rows}, "weights pruned, %", x),
        f"Accuracy against the share of the weights pruned by size{under}{band_words(groups)}.",
        f"Accuracy against pruning. {_ends(rows)}",
    )


def _line(
    looks: Looks,
    group: CellGroup,
    x: Sequence[float],
    reads: Sequence[Read],
    scale: float = 1.0,
) -> Line:
    found = [average(read(run) for run in runs_of(group)) for read in reads]
    means = [math.nan if each is None else scale * each.mean for each in found]
    stds = [0.0 if each is None or each.std is None else scale * each.std for each in found]
    has_std = any(stds)
    look = (looks.colour(group), looks.style(group))
    return Line(looks.name(group), x, means, stds if has_std else None, *look)


def _ends(rows: dict[str, list[Line]]) -> str:
    parts = [
        f"{line.name}, {title}: {line.mean[0]:.3g} to {line.mean[-1]:.3g}"
        for title, lines in rows.items()
        for line in lines
    ]
    return f"{'; '.join(parts)}."
