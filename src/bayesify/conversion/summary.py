"""What of a model is random, what is not, and why: a table for people, records for code."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from bayesify.conversion.convert import record_of
from bayesify.conversion.kl import kl
from bayesify.conversion.layer_class import SUFFIX
from bayesify.conversion.plan import Skip
from bayesify.conversion.posterior import Posterior, posteriors
from bayesify.distributions import Prior, estimators

if TYPE_CHECKING:
    from rich.console import RenderableType

_SITE_HEADINGS = ("site", "shape", "module", "family", "prior", "KL", "how")
_COUNT_HEADINGS = ("random", "live", "total", "mean std")
_SKIP_HEADINGS = ("deterministic", "shape", "why")


@dataclass(frozen=True)
class SiteRow:
    """One Bayesian tensor as it stands now.

    Attributes:
        path: Its first name.
        paths: Every name it has; tied tensors have several.
        shape: The shape of the whole tensor.
        module: The type of the module that owns it.
        family: The name of its posterior family.
        prior: Its prior, in words.
        kl: How its KL is found, with the number of draws where it is found by drawing.
        how: How its randomness travels: "sample", "local" or "mean".
        num_random: How many of its entries are random.
        num_live: How many exist.
        num_total: How many the plain network has.
        mean_std: The mean standard deviation of the random entries, None where there are none.
    """

    path: str
    paths: tuple[str, ...]
    shape: tuple[int, ...]
    module: str
    family: str
    prior: str
    kl: str
    how: str
    num_random: int
    num_live: int
    num_total: int
    mean_std: float | None


@dataclass(frozen=True)
class Summary:
    """What `summary` found; print it, or read its rows.

    Attributes:
        model: The name of the model's class.
        method: The name of the method it was made by, None where it carries no record of one.
        rows: Every Bayesian tensor.
        skipped: Every other tensor, and why it has no posterior.
        num_weights: How many weights the plain network has.
        num_random: How many of them are random.
        num_deterministic: How many exist and are not.
        kl: KL(posterior ‖ prior) in nats.
    """

    model: str
    method: str | None
    rows: tuple[SiteRow, ...]
    skipped: tuple[Skip, ...]
    num_weights: int
    num_random: int
    num_deterministic: int
    kl: float

    @property
    def is_plain(self) -> bool:
        """Whether the model has neither a posterior nor a record of a method."""
        return not self.rows and self.method is None

    def __str__(self) -> str:
        parts = [self._title()]
        if self.rows:
            headings = (*_SITE_HEADINGS, *_COUNT_HEADINGS)
            parts.append(_aligned(headings, self._site_cells(), num_right=len(_COUNT_HEADINGS)))
        if self.skipped:
            parts.append(_aligned(_SKIP_HEADINGS, self._skip_cells()))
        return "\n\n".join([*parts, self._totals()])

    def __rich__(self) -> RenderableType:
        """Return the same tables for a rich console."""
        from rich.box import SIMPLE_HEAD
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        parts: list[RenderableType] = [Text(self._title(), style="bold")]
        # Narrower than the text: one column of counts, which says no more than it has to.
        sites = [
            (*cells[:4], f"{cells[4]}; {cells[5]}", cells[6], _merged(cells[7:10]), cells[10])
            for cells in self._site_cells()
        ]
        named = (*_SITE_HEADINGS[:4], "prior; KL", _SITE_HEADINGS[6])
        headings = (*named, _COUNT_HEADINGS[0], _COUNT_HEADINGS[-1])
        for names, rows in ((headings, sites), (_SKIP_HEADINGS, self._skip_cells())):
            table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
            for name in names:
                table.add_column(
                    name,
                    justify="right" if name in _COUNT_HEADINGS else "left",
                    no_wrap=name not in ("site", "prior; KL", "why"),
                    overflow="fold",
                )
            for row in rows:
                table.add_row(*map(Text, row))
            parts += [table] if rows else []
        return Group(*parts, Text(self._totals()))

    def _title(self) -> str:
        if self.is_plain:
            return f"{self.model}: a plain model, not converted"
        num_tensors = len(self.rows) + len(self.skipped)
        made_by = f" by {self.method}" if self.method else ""
        return f"{self.model}: {len(self.rows)} of {num_tensors} tensors Bayesian{made_by}"

    def _totals(self) -> str:
        return (
            f"{self.num_weights:,} weights: {self.num_random:,} random, "
            f"{self.num_deterministic:,} deterministic; KL {self.kl:,.2f} nats"
        )

    def _site_cells(self) -> list[tuple[str, ...]]:
        return [
            (
                " = ".join(row.paths),
                _shape(row.shape),
                row.module,
                row.family,
                row.prior,
                row.kl,
                row.how,
                f"{row.num_random:,}",
                f"{row.num_live:,}",
                f"{row.num_total:,}",
                "-" if row.mean_std is None else f"{row.mean_std:.3g}",
            )
            for row in self.rows
        ]

    def _skip_cells(self) -> list[tuple[str, ...]]:
        return [(skip.path, _shape(skip.shape), skip.reason) for skip in self.skipped]


def summary(model: nn.Module) -> Summary:
    """Return every tensor of a model: its posterior as it stands, or why it has none.

    Works on any module; a plain one has no rows.
    """
    record = record_of(model)
    rows = tuple(_site_rows(model))
    others = list(_other_parameters(model))
    num_live = sum(row.num_live for row in rows) + sum(_count(value) for _, value in others)
    num_random = sum(row.num_random for row in rows)
    skipped: tuple[Skip, ...] = ()
    if record is not None or rows:
        reasons = {} if record is None else {skip.path: skip.reason for skip in record.plan.skipped}
        skipped = tuple(
            Skip(path, _shape_of(value), reasons.get(path, "the method leaves it as it is"))
            for path, value in others
        )
    with torch.no_grad():
        divergence = float(kl(model))
    return Summary(
        model=type(model).__name__,
        method=None if record is None else record.method.name,
        rows=rows,
        skipped=skipped,
        num_weights=sum(row.num_total - row.num_live for row in rows) + num_live,
        num_random=num_random,
        num_deterministic=num_live - num_random,
        kl=divergence,
    )


def _site_rows(model: nn.Module) -> Iterator[SiteRow]:
    owners: dict[Posterior, list[tuple[str, str]]] = {site: [] for site in posteriors(model)}
    for prefix, module in model.named_modules(remove_duplicate=False):
        for name, child in module.named_children():
            if isinstance(child, Posterior):
                path = f"{prefix}.{name}" if prefix else name
                owners[child].append((path.removesuffix(SUFFIX), type(module).__name__))
    for site, places in owners.items():
        yield SiteRow(
            path=places[0][0] if places else "",
            paths=tuple(path for path, _ in places),
            shape=tuple(site.shape),
            module=places[0][1] if places else type(site).__name__,
            family=site.family.name,
            prior=_describe(site.prior),
            kl=_describe_kl(site),
            how=site.how,
            num_random=site.num_random,
            num_live=site.num_live,
            num_total=site.shape.numel(),
            mean_std=_mean_std(site),
        )


def _other_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    ours = {id(value) for site in posteriors(model) for value in site.parameters()}
    for path, value in model.named_parameters():
        if id(value) not in ours:
            yield path, value


def _mean_std(site: Posterior) -> float | None:
    if site.num_random == 0:
        return None
    with torch.no_grad():
        return float(site.family.variance(site.random_parameters()).sqrt().mean())


def _describe(prior: Prior) -> str:
    options = [
        f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}"
        for key, value in dataclasses.asdict(prior).items()
    ]
    return f"{prior.name}({', '.join(options)})"


def _describe_kl(site: Posterior) -> str:
    if not estimators[site.estimator].needs_samples:
        return site.estimator
    return f"{site.estimator} ({site.num_samples:,} draws)"


def _shape_of(value: nn.Parameter) -> tuple[int, ...]:
    return () if is_lazy(value) else tuple(value.shape)


def _count(value: nn.Parameter) -> int:
    return 0 if is_lazy(value) else value.numel()


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "-"


def _merged(counts: Sequence[str]) -> str:
    return counts[0] if len(set(counts)) == 1 else "/".join(counts)


def _aligned(headings: Sequence[str], rows: Sequence[Sequence[str]], *, num_right: int = 0) -> str:
    """Return a table in plain text; the last `num_right` columns are numbers."""
    lines = [tuple(headings), *map(tuple, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    first_right = len(widths) - num_right
    return "\n".join(
        "  ".join(
            cell.rjust(width) if place >= first_right else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )
