"""A figure as it stands on the page, with a caption and with words for those who cannot see it."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bayesify.report.looks import Looks
from bayesify.report.results import CellGroup

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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


def illustration(figure: Figure, caption: str, alternative: str) -> Illustration:
    """Return a figure with its words, ready for the page."""
    is_wide = figure.get_figwidth() > _NARROW_INCHES
    return Illustration(embedded(figure), caption, alternative, is_wide)


def embedded(figure: Figure) -> str:
    """Return a figure as a data address of an SVG; the same figure gives the same address."""
    import matplotlib

    file = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "bayesify", "svg.fonttype": "path"}):
        figure.savefig(file, format="svg", metadata={"Date": None})
    return f"data:image/svg+xml;base64,{base64.b64encode(file.getvalue()).decode('ascii')}"


def by_panel(looks: Looks, groups: Sequence[CellGroup]) -> dict[str, list[CellGroup]]:
    """Return cells by what stands above their panel."""
    found: dict[str, list[CellGroup]] = {}
    for group in groups:
        found.setdefault(looks.panel(group), []).append(group)
    return found


def band_words(groups: Sequence[CellGroup]) -> str:
    """Say what a band around a curve is, where there are several seeds."""
    has_seeds = any(len(group.cells) > 1 for group in groups)
    return "; mean and one standard deviation over seeds" if has_seeds else ""


def axis_words(figure: Figure) -> str:
    """Say so where panels have vertical axes of their own."""
    # Compared as drawn: panels that share an axis have the very same limits.
    has_own = len({axes.get_ylim() for axes in figure.axes}) > 1
    return "; vertical axes differ" if has_own else ""


def after(panel: str) -> str:
    """Return the name of a panel, to be followed by what is in it."""
    return f"{panel}, " if panel else ""
