"""The figures of a study, each with a caption and with words for those who cannot see it."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

from bayesify.report.averages import average
from bayesify.report.curves import (
    Line,
    energy_figure,
    error_by_samples_figure,
    log_uniform_kl_figure,
    regression_figure,
    reliability_panels_figure,
    sparsity_figure,
)
from bayesify.report.measurements import (
    PruningMeasurement,
    RegressionMeasurement,
    ReliabilityBins,
)
from bayesify.report.results import Cell, CellGroup, Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SPARSITY = "sparsity"
_MOST_SITES = 7
_NARROW_INCHES = 6.0


@dataclass(frozen=True)
class Illustration:
    """A figure as it stands on the page.

    Attributes:
        image: The figure itself, as a data address.
        caption: What stands below it.
        alternative: What it shows, in words.
        is_wide: Whether it takes the width of the page.
    """

    image: str
    caption: str
    alternative: str
    is_wide: bool


def study_illustrations(study: Study) -> tuple[Illustration, ...]:
    """Return every figure that a study holds the numbers for."""
    found: list[Illustration] = []
    for protocol, groups in study.protocols.items():
        under = f" ({protocol})" if protocol else ""
        found += _energy(study, groups, under)
        found += _error_by_samples(study, groups, under)
        found += _sparsity(study, groups, under)
        found += _reliability(groups, under)
    return (*found, *_regressions(study))


def log_uniform_illustration() -> Illustration:
    """Return the exact KL of variational dropout beside its published fits."""
    return _illustration(
        log_uniform_kl_figure(),
        "KL of a Normal from the log-uniform prior against log alpha, alpha = variance / mean². "
        "Left: the exact KL and the two published fits; right: their errors. Kingma's cubic was "
        "fitted for alpha ≤ 1; beyond, it falls without bound.",
        "Molchanov's fit follows the exact KL everywhere. Kingma's cubic follows it up to alpha "
        "= 1 and then falls steeply below zero.",
    )


def embedded(figure: Figure) -> str:
    """Return a figure as a data address of an SVG; the same figure gives the same address."""
    import matplotlib

    file = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "bayesify", "svg.fonttype": "path"}):
        figure.savefig(file, format="svg", metadata={"Date": None})
    return f"data:image/svg+xml;base64,{base64.b64encode(file.getvalue()).decode('ascii')}"


def _illustration(figure: Figure, caption: str, alternative: str) -> Illustration:
    is_wide = figure.get_figwidth() > _NARROW_INCHES
    return Illustration(embedded(figure), caption, alternative, is_wide)


def _energy(study: Study, groups: Sequence[CellGroup], under: str) -> list[Illustration]:
    lines = _history_lines(study, groups, "energy")
    if not lines:
        return []
    return [
        _illustration(
            energy_figure(lines),
            f"Energy during training{under}{_band_words(groups)}.",
            f"Energy against the epoch. {_last_words(lines)}",
        )
    ]


def _sparsity(study: Study, groups: Sequence[CellGroup], under: str) -> list[Illustration]:
    keys = {_SPARSITY: "all layers"}
    keys |= {key: key.removeprefix(f"{_SPARSITY}/") for key in _site_keys(groups)}
    panels = {name: _history_lines(study, groups, key) for key, name in keys.items()}
    panels = {name: lines for name, lines in panels.items() if lines}
    if not panels:
        return []
    words = _last_words(next(iter(panels.values())), scale=100.0, unit=" %")
    return [
        _illustration(
            sparsity_figure(panels),
            f"Sparsity during training{under}{_band_words(groups)}.",
            f"Sparsity against the epoch, in {', '.join(panels)}. {words}",
        )
    ]


def _error_by_samples(study: Study, groups: Sequence[CellGroup], under: str) -> list[Illustration]:
    lines = []
    for group in groups:
        runs = [each.error_by_samples for each in _prunings(group) if each.error_by_samples]
        means = [dict(zip(each.num_samples, each.mean, strict=True)) for each in runs]
        # Errors of repeats add as variances do: the band is that of one seed, not of their mean.
        variances = [
            {x: std**2 for x, std in zip(each.num_samples, each.std, strict=True)} for each in runs
        ]
        mean, variance = _mean_curve(means), _mean_curve(variances)
        if mean:
            std = [math.sqrt(value) for value in variance.values()]
            lines.append(_line(study, group, list(mean), list(mean.values()), std))
    if not lines:
        return []
    return [
        _illustration(
            error_by_samples_figure(lines),
            f"Test error against the number of weight samples{under}; the band is one standard "
            "deviation over repeats.",
            f"Test error against the number of samples. "
            f"{_last_words(lines, scale=100.0, unit=' %')}",
        )
    ]


def _reliability(groups: Sequence[CellGroup], under: str) -> list[Illustration]:
    panels = {}
    for group in groups:
        bins = [each.reliability for each in _prunings(group) if each.reliability is not None]
        if bins:
            panels[_unused(group.short_name, panels)] = pooled(bins)
    if not panels:
        return []
    errors = [
        name if bins.ece is None else f"{name}: ECE {100 * bins.ece:.2f} %"
        for name, bins in panels.items()
    ]
    return [
        _illustration(
            reliability_panels_figure(panels),
            f"Reliability on test data{under}: how often predictions are right against how sure "
            "they are. The diagonal is honest; larger dots hold more predictions.",
            f"One panel per network. {'; '.join(errors)}.",
        )
    ]


def _regressions(study: Study) -> list[Illustration]:
    found = []
    for group in study.groups:
        cell = group.cells[0]
        if isinstance(cell.measured, RegressionMeasurement):
            seed = f", seed {cell.seed}" if len(group.cells) > 1 else ""
            protocol = f", {group.protocol}" if group.protocol else ""
            found.append(
                _illustration(
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


def _history_lines(study: Study, groups: Sequence[CellGroup], key: str) -> list[Line]:
    lines = []
    for group in groups:
        runs = [curve for cell in group.cells if (curve := _history(cell, key))]
        mean = _mean_curve(runs)
        if mean:
            several = [average(run[x] for run in runs) for x in mean] if len(runs) > 1 else []
            std = [each.std or 0.0 for each in several if each is not None] or None
            lines.append(_line(study, group, list(mean), list(mean.values()), std))
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
    study: Study,
    group: CellGroup,
    x: Sequence[float],
    mean: Sequence[float],
    std: Sequence[float] | None,
) -> Line:
    """Give a curve its look: colours tell layers apart, line styles tell starts apart."""
    colour = _rank(study, group, lambda each: each.labels.get("layer", each.name))
    style = _rank(study, group, lambda each: each.labels.get("start", ""))
    return Line(group.short_name, x, mean, std, colour, style)


def _rank(study: Study, group: CellGroup, read: Callable[[CellGroup], str]) -> int:
    return sorted({read(each) for each in study.groups}).index(read(group))


def _site_keys(groups: Sequence[CellGroup]) -> list[str]:
    rows = [row for group in groups for cell in group.cells for row in cell.history]
    prefix = f"{_SPARSITY}/"
    keys = list(dict.fromkeys(key for row in rows for key in row if key.startswith(prefix)))
    # A deep network has more layers than a page has room for: the whole must do.
    return keys if len(keys) <= _MOST_SITES else []


def _prunings(group: CellGroup) -> list[PruningMeasurement]:
    measured = [cell.measured for cell in group.cells]
    return [each for each in measured if isinstance(each, PruningMeasurement)]


def _unused(name: str, taken: Mapping[str, Any]) -> str:
    names = (name if index == 0 else f"{name} ({index + 1})" for index in range(len(taken) + 1))
    return next(each for each in names if each not in taken)


def _band_words(groups: Sequence[CellGroup]) -> str:
    has_seeds = any(len(group.cells) > 1 for group in groups)
    return "; mean and one standard deviation over seeds" if has_seeds else ""


def _last_words(lines: Sequence[Line], scale: float = 1.0, unit: str = "") -> str:
    ends = [f"{line.name} ends at {scale * line.mean[-1]:.4g}{unit}" for line in lines]
    return f"{'; '.join(ends)}."
