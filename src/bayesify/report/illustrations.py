"""The figures of a study, each with a caption and with words for those who cannot see it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeGuard

from bayesify.report.averages import average, percent
from bayesify.report.confidence_illustrations import confidence_illustrations
from bayesify.report.curves import (
    FEWEST_IN_BIN,
    Line,
    energy_figure,
    error_by_samples_figure,
    log_uniform_kl_figure,
    regression_figure,
    reliability_panels_figure,
    sparsity_figure,
)
from bayesify.report.illustration import (
    Illustration,
    after,
    axis_words,
    band_words,
    by_panel,
    illustration,
)
from bayesify.report.looks import Looks
from bayesify.report.measurements import (
    PruningMeasurement,
    RegressionMeasurement,
    ReliabilityBins,
)
from bayesify.report.noise_illustrations import noise_illustrations
from bayesify.report.results import Cell, CellGroup, Study
from bayesify.report.segmentation_maps import segmentation_illustrations
from bayesify.report.uncertainty_illustrations import uncertainty_illustrations

_SPARSITY = "sparsity"
_WHOLE = "all layers"
_MOST_SITES = 7


def study_illustrations(study: Study) -> tuple[Illustration, ...]:
    """Return every figure that a study holds the numbers for."""
    found: list[Illustration] = []
    looks = Looks(study)
    for protocol, groups in study.protocols.items():
        under = f" ({protocol})" if protocol else ""
        found += _energy(looks, groups, under)
        found += _error_by_samples(looks, groups, under)
        found += _sparsity(looks, groups, under)
        found += _reliability(looks, groups, under)
        found += confidence_illustrations(study, groups, under)
        found += uncertainty_illustrations(study, groups, under)
        found += segmentation_illustrations(groups, under)
        found += noise_illustrations(study, groups, under)
    return (*found, *_regressions(study))


def log_uniform_illustration() -> Illustration:
    """Return the exact KL of variational dropout beside its published fits."""
    return illustration(
        log_uniform_kl_figure(),
        "KL of a Normal from the log-uniform prior against log alpha, alpha = variance / mean². "
        "Left: the exact KL and the two published fits; right: their errors. Kingma's cubic was "
        "fitted for alpha ≤ 1; beyond, it falls without bound.",
        "Molchanov's fit follows the exact KL everywhere. Kingma's cubic follows it up to alpha "
        "= 1 and then falls steeply below zero.",
    )


def _energy(looks: Looks, groups: Sequence[CellGroup], under: str) -> list[Illustration]:
    curves = {
        name: lines
        for name, members in by_panel(looks, groups).items()
        if (lines := history_lines(looks, members, "energy"))
    }
    if not curves:
        return []
    figure = energy_figure(curves)
    return [
        illustration(
            figure,
            f"Energy during training{under}{band_words(groups)}{axis_words(figure)}.",
            f"Energy against the epoch. {_last_words(curves)}",
        )
    ]


def _sparsity(looks: Looks, groups: Sequence[CellGroup], under: str) -> list[Illustration]:
    keys = {_SPARSITY: _WHOLE}
    keys |= {key: key.removeprefix(f"{_SPARSITY}/") for key in _site_keys(groups)}
    rows = {}
    for name, members in by_panel(looks, groups).items():
        curves = {title: history_lines(looks, members, key) for key, title in keys.items()}
        curves = {title: lines for title, lines in curves.items() if lines}
        if curves:
            rows[name] = curves
    if not rows:
        return []
    ends = {name: next(iter(curves.values())) for name, curves in rows.items()}
    sites = dict.fromkeys(title for curves in rows.values() for title in curves)
    figure = sparsity_figure(rows)
    return [
        illustration(
            figure,
            f"Sparsity during training{under}{band_words(groups)}{axis_words(figure)}.",
            f"Sparsity against the epoch, in {', '.join(sites)}. "
            f"{_last_words(ends, scale=100.0, unit=' %')}",
        )
    ]


def _error_by_samples(looks: Looks, groups: Sequence[CellGroup], under: str) -> list[Illustration]:
    curves = {
        name: lines
        for name, members in by_panel(looks, groups).items()
        if (lines := [line for each in members if (line := _error_line(looks, each))])
    }
    if not curves:
        return []
    figure = error_by_samples_figure(curves)
    return [
        illustration(
            figure,
            f"Test error against the number of weight samples{under}; the band is one standard "
            f"deviation over repeats{axis_words(figure)}.",
            f"Test error against the number of samples. "
            f"{_last_words(curves, scale=100.0, unit=' %')}",
        )
    ]


def _error_line(looks: Looks, group: CellGroup) -> Line | None:
    runs = [each.error_by_samples for each in _prunings(group) if each.error_by_samples]
    means = [dict(zip(each.num_samples, each.mean, strict=True)) for each in runs]
    # Errors of repeats add as variances do: the band is that of one seed, not of their mean.
    variances = [
        {x: std**2 for x, std in zip(each.num_samples, each.std, strict=True)} for each in runs
    ]
    mean, variance = _mean_curve(means), _mean_curve(variances)
    if not mean:
        return None
    return _line(looks, group, mean, [math.sqrt(value) for value in variance.values()])


def _reliability(looks: Looks, groups: Sequence[CellGroup], under: str) -> list[Illustration]:
    rows: dict[str, dict[str, ReliabilityBins]] = {}
    for group in groups:
        bins = [
            _with_error(each.reliability, each) for each in _prunings(group) if each.reliability
        ]
        if bins:
            rows.setdefault(looks.panel(group), {})[looks.name(group)] = pooled(bins)
    if not rows:
        return []
    errors = [
        f"{after(row)}{name}" + ("" if bins.ece is None else f": ECE {percent(bins.ece).text} %")
        for row, panels in rows.items()
        for name, bins in panels.items()
    ]
    return [
        illustration(
            reliability_panels_figure(rows),
            f"Reliability on test data{under}: how often predictions are right against how sure "
            "they are. The diagonal is honest; larger dots hold more predictions. Faint dots hold "
            f"fewer than {FEWEST_IN_BIN} and are not joined.",
            f"One panel per network. {'; '.join(errors)}.",
        )
    ]


def _with_error(bins: ReliabilityBins, measured: PruningMeasurement) -> ReliabilityBins:
    return replace(bins, ece=measured.not_pruned.get("ece")) if bins.ece is None else bins


def _regressions(study: Study) -> list[Illustration]:
    found = []
    for group in study.groups:
        cell = group.cells[0]
        if isinstance(cell.measured, RegressionMeasurement):
            seed = f", seed {cell.seed}" if len(group.cells) > 1 else ""
            protocol = f", {group.protocol}" if group.protocol else ""
            found.append(
                illustration(
                    regression_figure(cell.measured),
                    f"{group.short_name}{protocol}{seed}: prediction with bands of two standard "
                    "deviations.",
                    f"Predictive mean with total and epistemic bands, the truth and "
                    f"{len(cell.measured.train_x)} training points.",
                )
            )
    return found


def pooled(bins: Sequence[ReliabilityBins]) -> ReliabilityBins:
    """Return the bins of several seeds as one, each weighted by what it holds."""
    num = max(len(each.count) for each in bins)
    confidence, accuracy, count = [], [], []
    for index in range(num):
        filled = [each for each in bins if index < len(each.count) and each.count[index] > 0]
        size = sum(each.count[index] for each in filled)
        for column, name in ((confidence, "confidence"), (accuracy, "accuracy")):
            total = sum(getattr(each, name)[index] * each.count[index] for each in filled)
            column.append(total / size if size else None)
        count.append(size)
    ece = average(each.ece for each in bins)
    return ReliabilityBins(
        tuple(confidence), tuple(accuracy), tuple(count), None if ece is None else ece.mean
    )


def history_lines(looks: Looks, groups: Sequence[CellGroup], key: str) -> list[Line]:
    """Return how a number went during training: a curve for each cell that has it."""
    lines = []
    for group in groups:
        runs = [curve for cell in group.cells if (curve := _history(cell, key))]
        mean = _mean_curve(runs)
        if mean:
            several = [average(run[x] for run in runs) for x in mean] if len(runs) > 1 else []
            std = [each.std or 0.0 for each in several if each is not None] or None
            lines.append(_line(looks, group, mean, std))
    return lines


def _history(cell: Cell, key: str) -> dict[float, float]:
    found = {}
    for index, row in enumerate(cell.history):
        epoch, value = row.get("epoch", index + 1), row.get(key)
        if _is_number(epoch) and _is_number(value):
            found[float(epoch)] = float(value)
    return found


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _mean_curve(runs: Sequence[Mapping[float, float]]) -> dict[float, float]:
    """Return the mean of curves where all of them are known."""
    if not runs:
        return {}
    shared = sorted(set(runs[0]).intersection(*runs[1:]))
    return {x: sum(run[x] for run in runs) / len(runs) for x in shared}


def _line(
    looks: Looks, group: CellGroup, mean: Mapping[float, float], std: Sequence[float] | None
) -> Line:
    name, colour, style = looks.name(group), looks.colour(group), looks.style(group)
    return Line(name, list(mean), list(mean.values()), std, colour, style)


def _site_keys(groups: Sequence[CellGroup]) -> list[str]:
    rows = [row for group in groups for cell in group.cells for row in cell.history]
    prefix = f"{_SPARSITY}/"
    keys = list(dict.fromkeys(key for row in rows for key in row if key.startswith(prefix)))
    # A deep network has more layers than a page has room for: the whole must do.
    return keys if len(keys) <= _MOST_SITES else []


def _prunings(group: CellGroup) -> list[PruningMeasurement]:
    measured = [cell.measured for cell in group.cells]
    return [each for each in measured if isinstance(each, PruningMeasurement)]


def _last_words(curves: Mapping[str, Sequence[Line]], scale: float = 1.0, unit: str = "") -> str:
    ends = [
        f"{after(name)}{line.name} ends at {scale * line.mean[-1]:.4g}{unit}"
        for name, lines in curves.items()
        for line in lines
    ]
    return f"{'; '.join(ends)}."
