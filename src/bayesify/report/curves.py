"""Figures of studies: how training went, and what came of it.

Every function takes numbers and returns a matplotlib `Figure` of its own; nothing is shown, and no
global state of matplotlib is touched. Figures are small enough to stand side by side on a page.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from bayesify.distributions import log_uniform_kl
from bayesify.distributions.log_uniform_fits import kingma_fit, molchanov_fit
from bayesify.report.measurements import RegressionMeasurement, ReliabilityBins

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, FAINT, GRID = "#22262b", "#6b7280", "#e6e8eb"
COLOURS = ("#2f6db5", "#c4472f", "#3d8b5f", "#8a5bb0", "#b27f0d", "#4d5662")
STYLES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)))
_WIDTH, _HEIGHT = 5.2, 3.5
_LARGEST_SPAN = 30.0


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


def energy_figure(lines: Sequence[Line]) -> Figure:
    """Draw the energy of training against the epoch; on a logarithmic axis if it spans a lot."""
    figure, axes = _one_panel()
    _draw_lines(axes, lines)
    if _spans_a_lot(lines):
        axes.set_yscale("log")
    _epochs(axes)
    axes.set_ylabel("energy")
    _legend_below(figure, axes)
    return figure


def sparsity_figure(panels: Mapping[str, Sequence[Line]]) -> Figure:
    """Draw sparsity against the epoch, one panel each for the whole network and its layers.

    Args:
        panels: Curves of fractions by the name that stands above the panel.
    """
    figure, grid = _panels(len(panels), height=2.7)
    for axes, (name, lines) in zip(grid, panels.items(), strict=True):
        _draw_lines(axes, lines, scale=100.0)
        _epochs(axes)
        axes.set_ylim(-2, 102)
        _title(axes, name)
    grid[0].set_ylabel("sparsity, %")
    _legend_below(figure, grid[0])
    return figure


def error_by_samples_figure(lines: Sequence[Line]) -> Figure:
    """Draw the test error against the number of weight samples, with a band of one std."""
    figure, axes = _one_panel()
    _draw_lines(axes, lines, scale=100.0, marker="o")
    ticks = sorted({x for line in lines for x in line.x})
    axes.set_xscale("log")
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set(xlabel="weight samples per prediction", ylabel="test error, %")
    _legend_below(figure, axes)
    return figure


def regression_figure(measured: RegressionMeasurement) -> Figure:
    """Draw a regression with bands of two std, total and epistemic, and its training points."""
    bands = measured.bands
    figure, axes = _one_panel()
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
    _legend_below(figure, axes)
    return figure


def reliability_panels_figure(panels: Mapping[str, ReliabilityBins]) -> Figure:
    """Draw how often predictions are right against how sure they are, one panel per network.

    The area of a dot grows with the root of the number of predictions in its bin.
    """
    figure, grid = _panels(len(panels), height=2.6)
    for index, (axes, (name, bins)) in enumerate(zip(grid, panels.items(), strict=True)):
        axes.plot([0, 1], [0, 1], color=FAINT, lw=1, ls=STYLES[1])
        filled = [
            (sure, right, count)
            for sure, right, count in zip(bins.confidence, bins.accuracy, bins.count, strict=True)
            if sure is not None and right is not None and count > 0
        ]
        if filled:
            confidence, accuracy, count = zip(*filled, strict=True)
            areas = [10 + 90 * math.sqrt(each / max(count)) for each in count]
            axes.plot(confidence, accuracy, color=COLOURS[0], lw=1.4)
            axes.scatter(
                confidence, accuracy, s=areas, color=COLOURS[0], ec="white", lw=0.7, zorder=3
            )
        error = "" if bins.ece is None else f"\nECE {100 * bins.ece:.2f} %"
        axes.set(xlim=(-0.03, 1.06), ylim=(-0.03, 1.08), xticks=(0, 0.5, 1), yticks=(0, 0.5, 1))
        axes.set_xlabel("confidence")
        axes.set_ylabel("accuracy" if index % _columns(len(panels)) == 0 else "")
        _title(axes, f"{name}{error}")
    return figure


def log_uniform_kl_figure() -> Figure:
    """Draw the exact KL from the log-uniform prior beside its two published fits, and their errors.

    Kingma's cubic is dashed beyond alpha = 1, where it was never meant to hold.
    """
    log_alpha = torch.linspace(-8, 8, 641, dtype=torch.float64)
    exact = log_uniform_kl(torch.ones_like(log_alpha), 0.5 * log_alpha)
    inside, beyond = log_alpha <= 0, log_alpha >= 0
    molchanov, kingma = molchanov_fit(log_alpha), kingma_fit(log_alpha)
    figure, (values, errors) = _panels(2, height=3.3)
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
    _legend_below(figure, values)
    return figure


def _draw_lines(
    axes: Axes, lines: Sequence[Line], scale: float = 1.0, marker: str | None = None
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
            marker="o" if len(line.x) == 1 else marker,
            ms=3.5,
            label=_plain(line.name),
        )
        if line.std is not None:
            low = [value - scale * std for value, std in zip(mean, line.std, strict=True)]
            high = [value + scale * std for value, std in zip(mean, line.std, strict=True)]
            axes.fill_between(list(line.x), low, high, color=colour, alpha=0.15, lw=0)


def _epochs(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))


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


def _one_panel() -> tuple[Figure, Axes]:
    figure, (axes,) = _panels(1, height=_HEIGHT)
    return figure, axes


def _panels(num: int, height: float) -> tuple[Figure, list[Any]]:
    from matplotlib.figure import Figure

    columns = _columns(num)
    rows = math.ceil(num / columns)
    width = _WIDTH if num == 1 else 2 * _WIDTH
    figure = Figure(figsize=(width, height * rows), layout="constrained", facecolor="white")
    grid = figure.subplots(rows, columns, squeeze=False).flatten().tolist()
    for spare in grid[num:]:
        spare.remove()
    for axes in grid[:num]:
        _calm(axes)
    return figure, grid[:num]


def _columns(num: int) -> int:
    # Rows that are as full as they can be: six panels stand in two rows of three.
    return math.ceil(num / math.ceil(num / 4))


def _calm(axes: Axes) -> None:
    spines: Any = axes.spines
    for side in ("left", "right", "top", "bottom"):
        spines[side].set_visible(side in ("left", "bottom"))
        spines[side].set_color("#c9cdd3")
    axes.tick_params(which="both", labelsize=9, colors=FAINT, length=0)
    axes.xaxis.label.set_color(INK)
    axes.yaxis.label.set_color(INK)
    axes.grid(color=GRID, lw=0.8)
    axes.set_axisbelow(True)


def _title(axes: Axes, text: str) -> None:
    axes.set_title(_plain(text), size=10, color=INK, loc="left")


def _legend_below(figure: Figure, axes: Axes) -> None:
    handles, names = axes.get_legend_handles_labels()
    if not handles:
        return
    # In points: a letter of this size takes about five, the line before a name forty.
    most = int(72 * figure.get_figwidth() / (5.0 * max(map(len, names)) + 40))
    figure.legend(
        handles,
        names,
        loc="outside lower center",
        ncols=min(max(most, 1), len(names), 4),
        frameon=False,
        fontsize=9,
        handlelength=2.4,
    )


def _plain(text: str) -> str:
    # A dollar would begin a formula, and a leading underscore hides a name from the legend.
    text = text.replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text
