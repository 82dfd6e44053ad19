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


def roles_of(cells: Sequence[Mapping[str, str]], colour: str | None = None) -> Roles:
    """Return the roles of labels, given those of every cell.

    Colours are for the layer; panels are for the last label, unless it has the colours.

    Args:
        cells: The labels of every cell.
        colour: The label that has the colours instead; panels are for the last of the others.
    """
    telling = telling_labels(cells)
    if not telling:
        return Roles(None, None, ())
    if colour in telling:
        panel = next((name for name in reversed(telling) if name != colour), None)
    else:
        colour = _LAYER if _LAYER in telling else telling[0]
        panel = telling[-1] if telling[-1] != colour else None
    return Roles(panel, colour, tuple(name for name in telling if name not in (colour, panel)))


def telling_labels(cells: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the labels in which cells differ, the protocol apart."""
    names = dict.fromkeys(name for labels in cells for name in labels if name != PROTOCOL)
    return [name for name in names if len({labels.get(name, "") for labels in cells}) > 1]


def natural(text: str) -> tuple[int, float, str]:
    """Return what sorts numbers by their size and before words: 1000 comes before 50000."""
    return (0, float(text), text) if is_number(text) else (1, 0.0, text)


def is_number(text: str) -> bool:
    """Whether a label is a finite number."""
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
