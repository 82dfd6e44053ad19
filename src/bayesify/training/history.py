"""What `fit` returns."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class History:
    """What happened in a run: one row of numbers per epoch."""

    rows: list[dict[str, float]] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def last(self) -> dict[str, float]:
        """The last epoch's row."""
        return self.rows[-1]

    def column(self, name: str) -> list[float]:
        """Return one quantity over the epochs that have it."""
        return [row[name] for row in self.rows if name in row]
