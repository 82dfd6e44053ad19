"""One HTML page about reproduced studies: tables against the papers' numbers, and figures.

The page is one file that needs no other: figures and style are inside it, and it fetches nothing.
The same results give the same page.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from bayesify.archive import write_atomically
from bayesify.report.averages import NOTHING, counted, duration
from bayesify.report.illustrations import (
    Illustration,
    log_uniform_illustration,
    study_illustrations,
)
from bayesify.report.json_value import ResultError, scalars
from bayesify.report.results import Cell, CellGroup, Results, Study, read_results
from bayesify.report.study_tables import study_tables
from bayesify.report.tables import Table, fact_table, seed_table

_TEMPLATE = "page.html.jinja"
# Layers whose posterior is held against the log-uniform prior.
_LOG_UNIFORM_LAYERS = {"additive", "multiplicative"}


@dataclass(frozen=True)
class Report:
    """What a report was written to, and what it holds.

    Attributes:
        path: The page.
        num_studies: Number of studies; a study with quick and full runs counts once.
        num_cells: Number of runs.
        num_quick: How many of them were quick runs.
        skipped: JSON files that are no cell of a study, relative to the folder of results.
    """

    path: Path
    num_studies: int
    num_cells: int
    num_quick: int
    skipped: tuple[str, ...]


@dataclass(frozen=True)
class Details:
    """Where the runs of a cell come from, and every choice that made them."""

    title: str
    tables: tuple[Table, ...]


@dataclass(frozen=True)
class Section:
    """A study as it stands on the page.

    Attributes:
        anchor: Where links lead.
        study: The study.
        size: How large it is, in words.
        warnings: What keeps its numbers from meaning what they seem to.
        tables: Its tables.
        illustrations: Its figures.
        details: Where each of its cells comes from.
    """

    anchor: str
    study: Study
    size: str
    warnings: tuple[str, ...]
    tables: tuple[Table, ...]
    illustrations: tuple[Illustration, ...]
    details: tuple[Details, ...]


def write_report(results: str | os.PathLike[str], out: str | os.PathLike[str]) -> Report:
    """Write one HTML page about every study in a folder of results.

    Args:
        results: Folder of JSON files, one for each run of a cell: `<study>/<cell>.json`.
        out: The page; an old one is replaced, whole or not at all.

    Returns:
        What was written.

    Raises:
        ResultError: A result is damaged, or there is none.
    """
    found = read_results(results)
    if not found.studies:
        raise ResultError(
            f"there is no cell of a study under {results} ({len(found.skipped)} other JSON "
            "files): expected files such as vmlp/mnist_pruning/additive.json"
        )
    page = render(found)
    write_atomically(out, lambda file: file.write(page.encode("utf-8")))
    return Report(
        path=Path(out),
        num_studies=len({study.name for study in found.studies}),
        num_cells=len(found.cells),
        num_quick=sum(cell.is_quick for cell in found.cells),
        skipped=found.skipped,
    )


def render(results: Results) -> str:
    """Return the page as text."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    text = resources.files(__package__ or "").joinpath(_TEMPLATE).read_text(encoding="utf-8")
    has_log_uniform = any(
        group.labels.get("layer") in _LOG_UNIFORM_LAYERS
        for study in results.studies
        for group in study.groups
    )
    return environment.from_string(text).render(
        overview=_overview(results),
        num_quick=sum(cell.is_quick for cell in results.cells),
        sections=_sections(results.studies),
        log_uniform=log_uniform_illustration() if has_log_uniform else None,
        skipped=results.skipped,
    )


def _overview(results: Results) -> Mapping[str, str]:
    """Return what was run, where, and of which code."""
    cells = results.cells
    num_quick = sum(cell.is_quick for cell in cells)
    found = {
        "Studies": str(len({study.name for study in results.studies})),
        "Runs": f"{len(cells)} ({len(cells) - num_quick} full, {num_quick} quick)",
        "Commits": _counted(cells, "commit"),
        "Hardware": _counted(cells, "hardware"),
        "bayesify": _counted(cells, "bayesify"),
        "torch": _counted(cells, "torch"),
        "Run between": _dates(cells),
        "Computing time": _computing_time(cells),
    }
    return {name: text for name, text in found.items() if text}


def _counted(cells: Iterable[Cell], key: str) -> str:
    counts = Counter(str(cell.provenance.get(key) or NOTHING) for cell in cells)
    if len(counts) == 1:
        return next(iter(counts))
    return ", ".join(f"{text} ({counted(num, 'run')})" for text, num in counts.most_common())


def _dates(cells: Iterable[Cell]) -> str:
    days = sorted({str(cell.provenance["started"])[:10] for cell in cells if _started(cell)})
    return "" if not days else days[0] if len(days) == 1 else f"{days[0]} and {days[-1]}"


def _started(cell: Cell) -> bool:
    return isinstance(cell.provenance.get("started"), str)


def _computing_time(cells: Iterable[Cell]) -> str:
    times = [cell.provenance.get("wall_seconds") for cell in cells]
    known = [time for time in times if isinstance(time, (int, float))]
    return duration(sum(known)) if known else ""


def _sections(studies: Iterable[Study]) -> list[Section]:
    sections: list[Section] = []
    anchors: Counter[str] = Counter()
    for study in studies:
        name = f"{study.name}-quick" if study.is_quick else study.name
        slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "study"
        anchors[slug] += 1
        anchor = slug if anchors[slug] == 1 else f"{slug}--{anchors[slug]}"
        sections.append(
            Section(
                anchor,
                study,
                f"{counted(len(study.groups), 'cell')}, {counted(len(study.cells), 'run')}",
                tuple(_warnings(study)),
                study_tables(study),
                study_illustrations(study),
                tuple(map(_details, study.groups)),
            )
        )
    return sections


def _warnings(study: Study) -> Iterator[str]:
    if study.is_quick:
        yield "These runs were cut short: they show that the code works, not how well it does."
    for group in study.groups:
        if group.differing_choices:
            choices = ", ".join(group.differing_choices)
            yield f"The seeds of {group.name} differ in more than the seed: {choices}."


def _details(group: CellGroup) -> Details:
    seeds = ", ".join(str(cell.seed) for cell in group.cells)
    word = "seeds" if len(group.cells) > 1 else "seed"
    tables = [
        seed_table("Provenance", group.cells, _provenance),
    ]
    if any(cell.recipe for cell in group.cells):
        marked = group.differing_choices
        tables.append(seed_table("Recipe", group.cells, _recipe, marked))
    if group.paper is not None:
        tables.append(fact_table("Paper", "reported", scalars(dict(group.paper.everything))))
    return Details(f"{group.name}, {word} {seeds}", tuple(tables))


def _provenance(cell: Cell) -> Mapping[str, Any]:
    return {"file": Path(cell.file).name, **scalars(dict(cell.provenance))}


def _recipe(cell: Cell) -> Mapping[str, Any]:
    return scalars(dict(cell.recipe))
