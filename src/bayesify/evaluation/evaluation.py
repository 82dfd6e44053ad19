"""What an evaluation found: a record that reads as a mapping, a text table or a JSON object."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bayesify.prediction.predictive import Task

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

Row = tuple[str, ...]
_ARROWS = {True: "higher", False: "lower", None: ""}


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation(Mapping[str, float]):
    """Metrics by name: `evaluation["nll"]`. NaN marks what is undefined.

    Attributes:
        task: What was predicted: classification, regression or custom.
        scores: Every metric and its value.
        directions: Whether a metric is better higher (True), lower (False) or neither (None).
        ood: For every ood data set "auroc", "aupr" and "fpr95" of the task's leading score, and
            the same of the other scores, as in "mutual_information_auroc".
        num_examples: How many examples the metrics average over.
        num_samples: How many posterior samples each prediction averages.
        made_by: How the predictions were made, in words.
        seconds: How long predicting and scoring took.
    """

    task: Task
    scores: Mapping[str, float]
    directions: Mapping[str, bool | None]
    ood: Mapping[str, Mapping[str, float]]
    num_examples: int
    num_samples: int
    made_by: str
    seconds: float

    def __getitem__(self, name: str) -> float:
        if name in self.scores:
            return self.scores[name]
        raise KeyError(f"no metric {name!r} in this evaluation; it has {', '.join(self.scores)}")

    def __iter__(self) -> Iterator[str]:
        return iter(self.scores)

    def __len__(self) -> int:
        return len(self.scores)

    def to_dict(self) -> dict[str, Any]:
        """Return what `json.dumps` accepts, with None for numbers that are not finite."""
        return {
            "task": self.task,
            "metrics": _finite(self.scores),
            "ood": {name: _finite(found) for name, found in self.ood.items()},
            "num_examples": self.num_examples,
            "num_samples": self.num_samples,
            "made_by": self.made_by,
            "seconds": self.seconds,
        }

    def __str__(self) -> str:
        blocks = [self._title()]
        blocks += [_aligned(header, rows) for header, rows in self._tables()]
        return "\n\n".join(blocks)

    __repr__ = __str__

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the same tables, drawn by rich."""
        from rich.markup import escape
        from rich.table import Table

        yield escape(self._title())
        for header, rows in self._tables():
            table = Table()
            for number, name in enumerate(header):
                table.add_column(escape(name), justify="left" if number == 0 else "right")
            for row in rows:
                table.add_row(*map(escape, row))
            yield table

    def _title(self) -> str:
        return f"{self.task}, {self.num_examples} examples, {self.made_by} ({self.seconds:.1f} s)"

    def _tables(self) -> Iterator[tuple[Row, list[Row]]]:
        yield (
            ("metric", "value", "better"),
            [
                (name, _number(value), _ARROWS[self.directions.get(name)])
                for name, value in self.items()
            ],
        )
        if self.ood:
            names = tuple(self.ood)
            keys = dict.fromkeys(key for found in self.ood.values() for key in found)
            yield (
                ("ood detection", *names),
                [(key, *(_number(self.ood[name][key]) for name in names)) for key in keys],
            )


def _finite(numbers: Mapping[str, float]) -> dict[str, float | None]:
    return {name: value if math.isfinite(value) else None for name, value in numbers.items()}


def _number(value: float) -> str:
    return f"{value:.4g}" if abs(value) >= 1000 else f"{value:.4f}"


def _aligned(header: Row, rows: list[Row]) -> str:
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    rule = tuple("-" * width for width in widths)
    return "\n".join(
        "  ".join(
            cell.ljust(width) if number == 0 else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (header, rule, *rows)
    )
