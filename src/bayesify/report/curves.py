"""Figures of studies: how training went, and what came of it.

Every function takes numbers and returns a matplotlib `Figure` of its own; nothing is shown, and no
global state of matplotlib is touched. A figure of one panel is narrow enough to stand beside
another on a page.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from bayesify.distributions import log_uniform_kl
from bayesify.distributions.log_uniform_fits import kingma_fit, molchanov_fit
from bayesify.report.measurements import RegressionMeasurement, ReliabilityBins
from bayesify.report.panels import (
    COLOURS,
    FAINT,
    INK,
    STYLES,
    Rows,
    handles_of,
    legend_below,
    one_panel,
    panels,
    plain,
    share_heights,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_HEIGHT = 3.3
_LARGEST_SPAN = 30.0
_MOST_MARKERS = 12
_LOW_SPARSITY = 0.25
FEWEST_IN_BIN = 10
"""A bin of a reliability diagram that holds fewer predictions says nothing by itself."""


@dataclass(frozen=True)
class Line:
    """A curve of one cell: its mean, and a band of one std around it.

    Attributes:
        name: What the legend calls it.
        x: Where it is known.
        mean: Its values; what is not finite is left out.
        std: Half the width of the band, or None for no band.
        colour: Index of its colour.
        style: Index of its line style.
    """

    name: str
    x: Sequence[float]
    mean: Sequence[float]
    std: Sequence[float] | None = None
    colour: int = 0
    style: int = 0


Curves = Mapping[str, Sequence[Line]]
"""Curves by the name that stands above their panel; it may be empty."""


def energy_figure(curves: Curves) -> Figure:
    """Draw the energy of training against the epoch; on a logarithmic axis if it spans a lot."""
    figure, places = panels({"": curves}, _HEIGHT)
    for place in places:
        _draw_lines(place.axes, place.content)
        if _spans_a_lot(place.content):
            place.axes.set_yscale("log")
        place.axes.set_ylabel("energy" if place.is_leftmost else "")
    every = [place.axes for place in places]
    _share_epochs(every)
    share_heights(every)
    _legend(figure, every, list(curves.values()))
    return figure


def sparsity_figure(rows: Rows[Sequence[Line]]) -> Figure:
    """Draw sparsity against the epoch, one panel each for the whole network and its layers.

    Args:
        rows: Curves of fractions by the name that stands above the panel, in rows by the name
            that stands above the row; it may be empty.
    """
    figure, places = panels(rows, height=2.6)
    for place in places:
        _draw_lines(place.axes, place.content, scale=100.0)
        row = [line for other in places if other.row == place.row for line in other.content]
        highest = max((y for line in row for y in line.mean if math.isfinite(y)), default=1.0)
        # All of the axis, unless a row would lie flat on its floor.
        top = 100.0 if highest > _LOW_SPARSITY else 100.0 * highest or 1.0
        place.axes.set_ylim(-0.02 * top, 1.02 * top)
        place.axes.set_ylabel("sparsity, %" if place.is_leftmost else "")
    every = [place.axes for place in places]
    _share_epochs(every)
    _legend(figure, every, [place.content for place in places])
    return figure


def error_by_samples_figure(curves: Curves) -> Figure:
    """Draw the test error against the number of weight samples, with a band of one std."""
    from matplotlib.ticker import NullLocator

    figure, places = panels({"": curves}, _HEIGHT)
    x = sorted({x for lines in curves.values() for line in lines for x in line.x})
    ticks = sample_ticks(x)
    for place in places:
        axes = place.axes
        _draw_lines(axes, place.content, scale=100.0, most_markers=_MOST_MARKERS)
        axes.set_xscale("log")
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlabel("weight samples per prediction")
        axes.set_ylabel("test error, %" if place.is_leftmost else "")
    every = [place.axes for place in places]
    _share_widths(every)
    share_heights(every)
    _legend(figure, every, list(curves.values()))
    return figure


def confidence_figure(accuracy: Curves, size: Curves) -> Figure:
    """Draw accuracy and size of confidence sets against the level that confidence must reach.

    Args:
        accuracy: Curves of fractions by the name that stands above the panel.
        size: The same of the sizes, under the same names.
    """
    named = {"accuracy of the set": accuracy, "size of the set, of all test data": size}
    rows = named
    if len(accuracy) == 1:
        # What would be two rows of one panel stands side by side.
        rows = {"": {title: next(iter(curves.values())) for title, curves in named.items()}}
    figure, places = panels(rows, height=2.8)
    for place in places:
        _draw_lines(place.axes, place.content, scale=100.0, most_markers=_MOST_MARKERS)
        place.axes.set_ylabel("%" if place.is_leftmost else "")
        _draw_levels(place.axes, [x for line in place.content for x in line.x])
    for row in rows if len(rows) > 1 else ():
        share_heights([place.axes for place in places if place.row == row])
    _legend(figure, [place.axes for place in places], [place.content for place in places])
    return figure


def set_spread_figure(curves: Curves) -> Figure:
    """Draw the std between seeds of the size of confidence sets against the level."""
    figure, places = panels({"": curves}, _HEIGHT)
    for place in places:
        _draw_lines(place.axes, place.content, scale=100.0, most_markers=_MOST_MARKERS)
        place.axes.set_ylim(bottom=0.0)
        place.axes.set_ylabel("std of the size, points" if place.is_leftmost else "")
        _draw_levels(place.axes, [x for line in place.content for x in line.x])
    every = [place.axes for place in places]
    share_heights(every)
    _legend(figure, every, list(curves.values()))
    return figure


def scores_figure(
    rows: Rows[Sequence[Line]], across: str, ticks: Sequence[float], *, is_log: bool = False
) -> Figure:
    """Draw scores against a number that cells or data differ in, one panel per score.

    Args:
        rows: Curves by the name of the score, in rows by the name that stands above the row.
        across: What stands below the horizontal axis.
        ticks: Where the numbers lie.
        is_log: Whether the horizontal axis is logarithmic.
    """
    from matplotlib.ticker import NullLocator

    figure, places = panels(rows, height=2.8)
    for place in places:
        _draw_lines(place.axes, place.content, most_markers=_MOST_MARKERS)
        place.axes.set_xscale("log" if is_log else "linear")
        place.axes.set_xticks(list(ticks), [f"{tick:g}" for tick in ticks])
        place.axes.xaxis.set_minor_locator(NullLocator())
        place.axes.set_xlabel(plain(across))
    every = [place.axes for place in places]
    _share_widths(every)
    _legend(figure, every, [place.content for place in places])
    return figure


def _draw_levels(axes: Axes, levels: Sequence[float]) -> None:
    ticks = sorted(set(levels))
    if len(ticks) <= _MOST_MARKERS:
        axes.set_xticks(ticks, [f"{100 * tick:g}" for tick in ticks])
    axes.set_xlabel("confidence at least, %")


def sample_ticks(x: Sequence[float]) -> list[float]:
    """Return few ticks for a logarithmic axis of counts: 1, 2, 5, 10, ... as far as `x` goes."""
    if not x or min(x) <= 0:
        return []
    low, high = min(x), max(x)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = [step * 10.0**power for power in powers for step in (1, 2, 5)]
    inside = [step for step in steps if low <= step <= high]
    return inside if len(inside) > 1 else sorted({low, high})


def regression_figure(measured: RegressionMeasurement) -> Figure:
    """Draw a regression with bands of two std, total and epistemic, and its training points."""
    bands = measured.bands
    figure, axes = one_panel(_HEIGHT)
    for std, colour, alpha, name in (
        (bands.std, COLOURS[0], 0.18, "± 2 std, total"),
        (bands.epistemic_std, COLOURS[1], 0.25, "± 2 std, epistemic"),
    ):
        low = [mean - 2 * each for mean, each in zip(bands.mean, std, strict=True)]
        high = [mean + 2 * each for mean, each in zip(bands.mean, std, strict=True)]
        axes.fill_between(bands.x, low, high, color=colour, alpha=alpha, lw=0, label=name)
    axes.plot(bands.x, bands.mean, color=COLOURS[0], lw=1.8, label="mean")
    axes.plot(bands.x, bands.truth, color=INK, lw=1.1, ls=STYLES[1], label="truth")
    axes.scatter(
        measured.train_x, measured.train_y, s=14, color=INK, lw=0, zorder=4, label="training points"
    )
    axes.set(xlabel="x", ylabel="y", ylim=_around([*bands.truth, *measured.train_y]))
    legend_below(figure, handles_of([axes]))
    return figure


def reliability_panels_figure(rows: Rows[ReliabilityBins]) -> Figure:
    """Draw how often predictions are right against how sure they are, one panel per network.

    The area of a dot grows with the root of the number of predictions in its bin. Dots of bins
    with fewer than `FEWEST_IN_BIN` are faint and not joined to others.
    """
    figure, places = panels(rows, height=2.8)
    for place in places:
        axes, bins = place.axes, place.content
        axes.plot([0, 1], [0, 1], color=FAINT, lw=1, ls=STYLES[1])
        _draw_bins(axes, bins)
        axes.set(xlim=(-0.03, 1.06), ylim=(-0.03, 1.08), xticks=(0, 0.5, 1), yticks=(0, 0.5, 1))
        axes.set_xlabel("confidence")
        axes.set_ylabel("accuracy" if place.is_leftmost else "")
        if bins.ece is not None:
            words = f"ECE {100 * bins.ece:.2f} %"
            axes.text(0.97, 0.08, words, transform=axes.transAxes, size=9, color=INK, ha="right")
    return figure


def _draw_bins(axes: Axes, bins: ReliabilityBins) -> None:
    filled = [
        (sure, right, count)
        for sure, right, count in zip(bins.confidence, bins.accuracy, bins.count, strict=True)
        if sure is not None and right is not None and count > 0
    ]
    most = max((count for _, _, count in filled), default=1)
    many = [each for each in filled if each[2] >= FEWEST_IN_BIN]
    few = [each for each in filled if each[2] < FEWEST_IN_BIN]
    axes.plot([x for x, _, _ in many], [y for _, y, _ in many], color=COLOURS[0], lw=1.4)
    for some, alpha in ((many, 1.0), (few, 0.3)):
        areas = [10 + 90 * math.sqrt(count / most) for _, _, count in some]
        axes.scatter(
            [x for x, _, _ in some],
            [y for _, y, _ in some],
            s=areas,
            color=COLOURS[0],
            alpha=alpha,
            ec="white",
            lw=0.7,
            zorder=3,
        )


def log_uniform_kl_figure() -> Figure:
    """Draw the exact KL from the log-uniform prior beside its two published fits, and their errors.

    Kingma's cubic is dashed beyond alpha = 1, where it was never meant to hold.
    """
    log_alpha = torch.linspace(-8, 8, 641, dtype=torch.float64)
    exact = log_uniform_kl(torch.ones_like(log_alpha), 0.5 * log_alpha)
    inside, beyond = log_alpha <= 0, log_alpha >= 0
    molchanov, kingma = molchanov_fit(log_alpha), kingma_fit(log_alpha)
    figure, places = panels({"": {"": None, " ": None}}, _HEIGHT)
    values, errors = (place.axes for place in places)
    values.plot(log_alpha, exact, color=INK, lw=3.2, alpha=0.35, label="exact")
    errors.axhline(0, color=INK, lw=3.2, alpha=0.35)
    for axes, offset in ((values, torch.zeros_like(exact)), (errors, exact)):
        axes.plot(log_alpha, molchanov - offset, color=COLOURS[0], lw=1.6, label="Molchanov's fit")
        for part, style, name in (
            (inside, STYLES[0], "Kingma's cubic"),
            (beyond, STYLES[2], "Kingma's cubic beyond alpha = 1"),
        ):
            cubic = (kingma - offset)[part]
            axes.plot(log_alpha[part], cubic, color=COLOURS[1], lw=1.6, ls=style, label=name)
        axes.axvline(0, color=FAINT, lw=0.9)
        axes.set_xlabel("log alpha")
    values.set(ylim=(-1.5, 5), ylabel="KL, nats")
    errors.set(ylim=(-0.06, 0.06), ylabel="fit minus exact, nats")
    legend_below(figure, handles_of([values]))
    return figure


def _draw_lines(
    axes: Axes, lines: Sequence[Line], scale: float = 1.0, most_markers: int = 1
) -> None:
    for line in lines:
        colour = COLOURS[line.colour % len(COLOURS)]
        mean = [scale * value if math.isfinite(value) else math.nan for value in line.mean]
        axes.plot(
            list(line.x),
            mean,
            color=colour,
            ls=STYLES[line.style % len(STYLES)],
            lw=1.6,
            # A single epoch has no line to draw.
            marker="o" if len(line.x) <= most_markers else None,
            ms=3.5,
            label=plain(line.name),
        )
        if line.std is not None:
            low = [value - scale * std for value, std in zip(mean, line.std, strict=True)]
            high = [value + scale * std for value, std in zip(mean, line.std, strict=True)]
            axes.fill_between(list(line.x), low, high, color=colour, alpha=0.1, lw=0)


def _share_epochs(every: Sequence[Axes]) -> None:
    from matplotlib.ticker import MaxNLocator

    for axes in every:
        axes.set_xlabel("epoch")
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True, steps=[1, 2, 5, 10]))
    _share_widths(every)


def _share_widths(every: Sequence[Axes]) -> None:
    limits = [axes.get_xlim() for axes in every]
    for axes in every:
        axes.set_xlim(min(low for low, _ in limits), max(high for _, high in limits))


def _legend(figure: Figure, every: Sequence[Axes], curves: Sequence[Sequence[Line]]) -> None:
    # A legend is filled column by column: each holds the styles of one colour.
    lines = sorted((each for lines in curves for each in lines), key=_look)
    handles = handles_of(every)
    names = dict.fromkeys(plain(line.name) for line in lines if line.name)
    legend_below(figure, {name: handles[name] for name in names})


def _look(line: Line) -> tuple[int, int]:
    return line.colour, line.style


def _spans_a_lot(lines: Sequence[Line]) -> bool:
    values = [value for line in lines for value in line.mean if math.isfinite(value)]
    return bool(values) and min(values) > 0 and max(values) > _LARGEST_SPAN * min(values)


def _around(values: Sequence[float]) -> tuple[float, float] | None:
    """Return limits that show the data however far a band strays from it."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return None
    low, high = min(finite), max(finite)
    margin = 0.5 * (high - low) or 1.0
    return low - margin, high + margin
