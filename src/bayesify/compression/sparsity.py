"""How many weights of each layer are gone, or would go: a table for people, rows for code."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import nn

from bayesify.compression.prune import Rule, kept_entries, require_posteriors
from bayesify.conversion.convert import record_of
from bayesify.conversion.sites import named_posteriors

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class SparsityRow:
    """One tensor.

    Attributes:
        path: Its first name.
        shape: Its shape in the network it was made from.
        shape_now: Its shape now, smaller where dead units were removed.
        num_total: How many entries it had in the beginning.
        num_live: How many there are, or would be.
    """

    path: str
    shape: tuple[int, ...]
    shape_now: tuple[int, ...]
    num_total: int
    num_live: int

    @property
    def sparsity(self) -> float:
        """The share of entries that are gone."""
        return 1.0 - self.num_live / max(self.num_total, 1)


@dataclass(frozen=True)
class Sparsity:
    """What `sparsity` found; print it, or read its rows."""

    rows: tuple[SparsityRow, ...]

    @property
    def removed(self) -> float:
        """The share of all entries that are gone."""
        return self._total.sparsity

    @property
    def by_path(self) -> dict[str, float]:
        """The share that is gone of each tensor."""
        return {row.path: row.sparsity for row in self.rows}

    @property
    def _total(self) -> SparsityRow:
        totals = (sum(getattr(row, name) for row in self.rows) for name in _COUNTS)
        return SparsityRow("all", (), (), *totals)

    def __str__(self) -> str:
        lines = [_HEADINGS, *map(_cells, (*self.rows, self._total))]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join(
            "  ".join(
                cell.rjust(width) if place > 2 else cell.ljust(width)
                for place, (cell, width) in enumerate(zip(line, widths, strict=True))
            )
            for line in lines
        )

    def __rich__(self) -> Table:
        """Return the same table for a rich console."""
        from rich.box import SIMPLE_HEAD
        from rich.table import Table

        table = Table(box=SIMPLE_HEAD, pad_edge=False)
        for place, heading in enumerate(_HEADINGS):
            table.add_column(heading, justify="right" if place > 2 else "left")
        for row in self.rows:
            table.add_row(*_cells(row))
        table.add_section()
        table.add_row(*_cells(self._total), style="bold")
        return table


_HEADINGS = ("site", "shape", "now", "weights", "live", "sparsity")
_COUNTS = ("num_total", "num_live")


def sparsity(
    model: nn.Module, *, by: str | None = None, threshold: float | None = None
) -> Sparsity:
    """Return how sparse each Bayesian tensor of a model is, or would be.

    Args:
        model: A model from `convert`, `compress` or `load`.
        by: None counts what is stored. A score, such as "snr", counts what `compress` by it
            would leave.
        threshold: The threshold of that score; None takes its usual one.
    """
    if by is None and threshold is not None:
        raise ValueError(f"threshold={threshold} needs by, the score it is a threshold of")
    require_posteriors(model)
    sites = named_posteriors(model)
    live = {path: site.num_live for path, site in sites.items()}
    if by is not None:
        kept = kept_entries(model, Rule(by=by, threshold=threshold))
        live = {path: int(kept[site].sum()) for path, site in sites.items()}
    record = record_of(model)
    original = {} if record is None else {s.path: s.original_shape for s in record.plan.sites}
    rows = []
    for path, site in sites.items():
        now = tuple(site.shape)
        shape = original.get(path) or now
        rows.append(SparsityRow(path, shape, now, math.prod(shape), live[path]))
    return Sparsity(tuple(rows))


def _cells(row: SparsityRow) -> tuple[str, ...]:
    shapes = ("x".join(map(str, shape)) or "-" for shape in (row.shape, row.shape_now))
    counts = (f"{row.num_total:,}", f"{row.num_live:,}", f"{row.sparsity:.2%}")
    return (row.path, *shapes, *counts)
