"""How the cells of a study look in its figures, the same in all of them."""

from __future__ import annotations

from collections.abc import Hashable

from bayesify.report.averages import NOTHING
from bayesify.report.labels import is_number, natural, roles_of
from bayesify.report.panels import COLOURS
from bayesify.report.results import CellGroup, Study


class Looks:
    """Gives every cell of a study its panel, its name in the legend, its colour and its style.

    Args:
        study: The study.
        colour: The label that has the colours; None leaves the choice to `roles_of`.
    """

    def __init__(self, study: Study, colour: str | None = None) -> None:
        self._groups = study.groups
        self._roles = roles_of([group.labels for group in study.groups], colour)
        shown = {(group.protocol, self.panel(group), self._words(group)) for group in self._groups}
        # Cells that labels do not tell apart are told apart by their names.
        self._has_twins = len(shown) < len(self._groups)

    def panel(self, group: CellGroup) -> str:
        """Return what stands above a cell's panel; empty where there is one panel for all."""
        label = self._roles.panel
        return "" if label is None else f"{label}: {group.labels.get(label) or NOTHING}"

    def name(self, group: CellGroup) -> str:
        """Return what tells a cell apart from the others in its panel."""
        telling = self._roles.within_panel
        words = [_named(label, text) for label, text in group.labels.items() if label in telling]
        if self._has_twins:
            words.append(group.name)
        return ", ".join(word for word in words if word) or group.short_name

    def colour(self, group: CellGroup) -> int:
        """Return the rank of a cell among those in which colours differ."""
        keys = sorted({self._colour_key(each) for each in self._groups})
        return keys.index(self._colour_key(group))

    def style(self, group: CellGroup) -> int:
        """Return the rank of a cell among those in which line styles differ."""
        keys = sorted({self._style_key(each) for each in self._groups})
        # Where colours come round again, styles go on.
        return keys.index(self._style_key(group)) + len(keys) * (self.colour(group) // len(COLOURS))

    def _words(self, group: CellGroup) -> Hashable:
        return tuple(group.labels.get(label, "") for label in self._roles.within_panel)

    def _colour_key(self, group: CellGroup) -> tuple[tuple[int, float, str], str]:
        value = group.labels.get(self._roles.colour or "", "")
        return natural(value), group.name if self._has_twins else ""

    def _style_key(self, group: CellGroup) -> tuple[tuple[int, float, str], ...]:
        return tuple(natural(group.labels.get(label, "")) for label in self._roles.styles)


def _named(label: str, text: str) -> str:
    # A number by itself says nothing.
    return f"{label}: {text}" if is_number(text) else text
