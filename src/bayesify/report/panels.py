"""Panels of a figure: where they stand, how they look, and one legend for all of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, FAINT, GRID = "#22262b", "#6b7280", "#e6e8eb"
COLOURS = ("#2f6db5", "#c4472f", "#3d8b5f", "#8a5bb0", "#b27f0d", "#4d5662")
STYLES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)))
NARROW, WIDE = 5.2, 10.4
_MOST_COLUMNS = 4
_LETTER = 5.0  # Points that a letter of a legend or a title takes.
_SMALLEST_SHARE = 0.5

Content = TypeVar("Content")
Rows = Mapping[str, Mapping[str, Content]]
"""Contents of panels by the names that stand above them, in rows with names of their own."""


@dataclass(frozen=True)
class Panel(Generic[Content]):
    """A place in a figure, the name of its row, and what is to be drawn there."""

    axes: Axes
    row: str
    content: Content
    is_leftmost: bool


def one_panel(height: float) -> tuple[Figure, Axes]:
    """Return a narrow figure with one place."""
    figure, (panel,) = panels({"": {"": None}}, height)
    return figure, panel.axes


def panels(rows: Rows[Content], height: float) -> tuple[Figure, list[Panel[Content]]]:
    """Return a figure with a place for every content, the places of a row together.

    Args:
        rows: Contents by name; a row that is too long goes on below. Names may be empty.
        height: Height of a place, in inches.
    """
    from matplotlib.figure import Figure

    columns = max(map(num_columns, map(len, rows.values())))
    lines = [math.ceil(len(row) / columns) for row in rows.values()]
    num_names = sum(map(bool, rows))
    figure = Figure(
        figsize=(NARROW if columns == 1 else WIDE, height * sum(lines) + 0.3 * num_names),
        layout="constrained",
        facecolor="white",
    )
    most = int(72 * figure.get_figwidth() / columns / _LETTER) - 6
    titles = shortened([title for row in rows.values() for title in row], most)
    parts = figure.subfigures(len(rows), 1, squeeze=False, height_ratios=lines).flatten()
    found: list[Panel[Content]] = []
    for part, num, (name, row) in zip(parts, lines, rows.items(), strict=True):
        if name:
            part.suptitle(plain(name), size=11, weight="bold", color=INK, x=0.01, ha="left")
        grid = part.subplots(num, columns, squeeze=False).flatten().tolist()
        for spare in grid[len(row) :]:
            spare.remove()
        for index, (title, content) in enumerate(row.items()):
            calm(grid[index])
            grid[index].set_title(plain(titles[title]), size=10, color=INK, loc="left")
            found.append(Panel(grid[index], name, content, index % columns == 0))
    return figure, found


def num_columns(num: int) -> int:
    """Return how many of so many panels stand beside one another, in rows as full as can be."""
    return math.ceil(num / math.ceil(num / _MOST_COLUMNS))


def calm(axes: Axes) -> None:
    """Take out what draws the eye away from the curves."""
    spines: Any = axes.spines
    for side in ("left", "right", "top", "bottom"):
        spines[side].set_visible(side in ("left", "bottom"))
        spines[side].set_color("#c9cdd3")
    axes.tick_params(which="both", labelsize=9, colors=FAINT, length=0)
    axes.xaxis.label.set_color(INK)
    axes.yaxis.label.set_color(INK)
    axes.grid(color=GRID, lw=0.8)
    axes.set_axisbelow(True)


def share_heights(every: Sequence[Axes]) -> None:
    """Give panels one vertical axis, unless that would press the curves of one of them flat."""
    if len({axes.get_yscale() for axes in every}) > 1:
        return
    is_log = every[0].get_yscale() == "log"
    limits = [axes.get_ylim() for axes in every]
    low, high = min(low for low, _ in limits), max(high for _, high in limits)

    def extent(bottom: float, top: float) -> float:
        return math.log(top / bottom) if is_log else top - bottom

    if all(extent(*each) >= _SMALLEST_SHARE * extent(low, high) for each in limits):
        for axes in every:
            axes.set_ylim(low, high)


def legend_below(figure: Figure, handles: Mapping[str, Any]) -> None:
    """Write one legend below all panels, in as many columns as fit, in height of its own."""
    names = [name for name in handles if name]
    if not names:
        return
    # In points: the line before a name takes fifty.
    most = int(72 * figure.get_figwidth() / (_LETTER * max(map(len, names)) + 50))
    num_rows = math.ceil(len(names) / max(most, 1))
    figure.set_figheight(figure.get_figheight() + 0.1 + 0.2 * num_rows)
    figure.legend(
        [handles[name] for name in names],
        names,
        loc="outside lower center",
        ncols=math.ceil(len(names) / num_rows),
        frameon=False,
        fontsize=9,
        handlelength=3.2,
    )


def handles_of(every: Sequence[Axes]) -> dict[str, Any]:
    """Return one handle for each name that is drawn in any of the panels."""
    found: dict[str, Any] = {}
    for axes in every:
        for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(name, handle)
    return found


def shortened(names: Sequence[str], most: int) -> dict[str, str]:
    """Return names in so many letters each; `.weight` goes first, then beginnings."""
    is_long = any(len(name) > most for name in names)
    shorter = {name: name.removesuffix(".weight") if is_long else name for name in names}
    return {
        name: text if len(text) <= most else f"…{text[len(text) - most + 1 :]}"
        for name, text in shorter.items()
    }


def plain(text: str) -> str:
    """Return text that is shown as it is."""
    # A dollar would begin a formula, and a leading underscore hides a name from the legend.
    text = text.replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text
