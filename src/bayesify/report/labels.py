"""What the labels of a study are for: which sets panels apart, which colours, which line styles."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

PROTOCOL = "protocol"
_LAYER = "layer"


@dataclass(frozen=True)
class Roles:
    """The labels in which cells differ, by what shows them; a protocol has figures of its own.

    Attributes:
        panel: The label that has a panel for each of its values, or None.
        colour: The label that has a colour for each of its values, or None.
        styles: The labels that share line styles.
    """

    panel: str | None
    colour: str | None
    styles: tuple[str, ...]

    @property
    def within_panel(self) -> tuple[str, ...]:
        """Labels that tell cells of one panel apart."""
        return self.styles if self.colour is None else (*self.styles, self.colour)

    def sort_key(self, labels: Mapping[str, str]) -> tuple[tuple[int, float, str], ...]:
        """Return what orders cells so that those of one panel stand together."""
        first = (PROTOCOL, *(() if self.panel is None else (self.panel,)), *self.within_panel)
        return tuple(natural(labels.get(name, "")) for name in first)


def roles_of(cells: Sequence[Mapping[str, str]]) -> Roles:
    """Return the roles of labels, given those of every cell.

    Colours are for the layer; panels are for the last label, unless it has the colours.
    """
    names = dict.fromkeys(name for labels in cells for name in labels if name != PROTOCOL)
    telling = [name for name in names if len({labels.get(name, "") for labels in cells}) > 1]
    if not telling:
        return Roles(None, None, ())
    colour = _LAYER if _LAYER in telling else telling[0]
    panel = telling[-1] if telling[-1] != colour else None
    return Roles(panel, colour, tuple(name for name in telling if name not in (colour, panel)))


def natural(text: str) -> tuple[int, float, str]:
    """Return what sorts numbers by their size and before words: 1000 comes before 50000."""
    try:
        value = float(text)
    except ValueError:
        return (1, 0.0, text)
    return (0, value, text) if math.isfinite(value) else (1, 0.0, text)
