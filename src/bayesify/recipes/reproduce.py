"""Carry out a study cell by cell, and leave one JSON file for each."""

from __future__ import annotations

import json
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

# Filed under their kinds.
import bayesify.recipes.measure_confidence
import bayesify.recipes.measure_noise
import bayesify.recipes.measure_pruning
import bayesify.recipes.measure_regression
import bayesify.recipes.measure_segmentation
import bayesify.recipes.measure_uncertainty  # noqa: F401
from bayesify.recipes.measure import measures
from bayesify.recipes.provenance import provenance
from bayesify.recipes.recipe import Recipe
from bayesify.recipes.run import run_recipe
from bayesify.recipes.run_folder import RunFolder, write_json
from bayesify.recipes.study import Cell, Study
from bayesify.registry import unknown


@dataclass(frozen=True)
class Reproduction:
    """How a study is carried out.

    Attributes:
        results: Folder of the result files; quick ones lie in "quick" inside.
        runs: Folder of checkpoints and models.
        cells: Names of the cells to run; empty for all.
        is_quick: Whether to run the small form.
        seed: Seed of every run.
        overwrite: Whether to run cells again whose result is there already.
        changes: Tables of a recipe that win over the study's.
    """

    results: Path = Path("results")
    runs: Path = Path("runs")
    cells: Sequence[str] = ()
    is_quick: bool = False
    seed: int = 0
    overwrite: bool = False
    changes: Mapping[str, Any] = field(default_factory=dict)

    def chosen(self, study: Study) -> list[Cell]:
        """Return the cells to run; an unknown name is an error."""
        every = study.cells(is_quick=self.is_quick, seed=self.seed, changes=self.changes)
        names = [cell.name for cell in every]
        for name in self.cells:
            if name not in names:
                raise LookupError(unknown(f"cell of {study.name}", name, names))
        return [cell for cell in every if not self.cells or cell.name in self.cells]

    def result_path(self, cell: Cell) -> Path:
        """Return the file of a cell's result."""
        folder = self.results / "quick" if self.is_quick else self.results
        return folder / cell.study / f"{self.name_of(cell)}-seed{self.seed}.json"

    def name_of(self, cell: Cell) -> str:
        """Return the name of a cell's result: a changed recipe is not the study's own."""
        return f"{cell.name}-changed" if self.changes else cell.name

    def run_folder(self, cell: Cell, seed: int | None = None) -> RunFolder:
        """Return the folder of a cell's run, of another seed if told."""
        kind = "quick" if self.is_quick else "full"
        seed = self.seed if seed is None else seed
        return RunFolder(self.runs / kind / cell.study / f"{self.name_of(cell)}-seed{seed}")

    def others(self, study: Study, cell: Cell, done: Sequence[Cell]) -> list[RunFolder]:
        """Return the folders whose plain networks a cell may take over.

        Args:
            study: The study.
            cell: The cell; if it is an ensemble, runs of its members' seeds will do too.
            done: Cells that ran just now. Only theirs, where older ones are not to be trusted.
        """
        if self.overwrite or self.is_quick:
            return [self.run_folder(each) for each in done]
        every = study.cells(is_quick=self.is_quick, seed=self.seed, changes=self.changes)
        num_seeds = getattr(cell.recipe.make_method(), "num_members", 1)
        seeds = range(self.seed, self.seed + num_seeds)
        folders = [self.run_folder(each, seed) for seed in seeds for each in every]
        return [folder for folder in folders if folder != self.run_folder(cell)]

    def has_result(self, cell: Cell) -> bool:
        """Whether this very cell, changes and all, has been run."""
        path = self.result_path(cell)
        if not path.is_file() or self.overwrite:
            return False
        return json.loads(path.read_text(encoding="utf-8")).get("changes", {}) == self.changes

    def can_go_on(self, cell: Cell) -> bool:
        """Whether a run of this very recipe was interrupted, and can be taken up."""
        run = self.run_folder(cell)
        if self.overwrite or self.is_quick or not run.has_begun or not run.config.is_file():
            return False
        # As TOML has them: a list is no tuple, and what is None is not there.
        before, now = (
            tomllib.loads(recipe.to_toml()) for recipe in (run.read_recipe(), cell.recipe)
        )
        # The data decided the other options of the model when the run began.
        chosen = {key: now["model"][key] for key in cell.recipe.model}
        now["model"] = {**before["model"], **chosen}
        for tables in (before, now):
            for name in ("fit", "warm_start"):
                # How the passes are compiled is no part of what is learned by them.
                tables.get(name, {}).pop("compile", None)
        return before == now

    def check_folder(self, cell: Cell) -> None:
        """Raise a FileExistsError where the run of another recipe would be written over."""
        run = self.run_folder(cell)
        if self.is_quick or self.overwrite or not run.has_begun or self.can_go_on(cell):
            return
        raise FileExistsError(
            f"{run.path} holds a run of another recipe, which this one cannot go on with: "
            "--overwrite begins it again, another --runs folder leaves it alone"
        )


def reproduce(
    study: Study,
    how: Reproduction,
    command: str,
    on_cell: Callable[[Cell, str], object] | None = None,
) -> list[Path]:
    """Run every chosen cell of a study and return the files of their results.

    A cell whose result is there is left alone; one that was interrupted goes on from its
    checkpoint. A plain network that several cells begin from is trained once.

    Args:
        study: What to run.
        how: Which cells, and where to.
        command: What was typed, for the record.
        on_cell: Called with each cell and "there", "begins" or "done".

    Raises:
        FileExistsError: A folder holds the run of another recipe, and `overwrite` was not asked
            for.
    """
    measure = measures[study.kind]
    tell = on_cell or (lambda *_: None)
    paths: list[Path] = []
    done: list[Cell] = []
    for cell in how.chosen(study):
        if not how.has_result(cell):
            how.check_folder(cell)  # of all of them, before hours of work on the first
    for cell in how.chosen(study):
        path = how.result_path(cell)
        paths.append(path)
        if how.has_result(cell):
            tell(cell, "there")
            continue
        tell(cell, "begins")
        began, started = time.perf_counter(), datetime.now(UTC)
        run = how.run_folder(cell)
        goes_on = how.can_go_on(cell)
        others = how.others(study, cell, done)
        options = {"resume": goes_on, "overwrite": not goes_on, "others": others}
        parts, history = run_recipe(cell.recipe, run, **options)
        done.append(cell)
        trained = time.perf_counter() - began
        found = measure(parts, cell.measure)
        origin = provenance(command)
        origin |= {"started": started.isoformat(timespec="seconds"), "training_seconds": trained}
        # Of a run that was interrupted only the part since then.
        origin |= {"wall_seconds": time.perf_counter() - began, "was_resumed": goes_on}
        # Nor is the training of a plain network that another cell trained.
        origin |= {"warm_start_was_shared": _was_shared(parts.recipe, run)}
        result = {
            "study": study.name,
            "title": study.title,
            "kind": study.kind,
            "cell": how.name_of(cell),
            "labels": dict(cell.labels),
            "seed": how.seed,
            "is_quick": how.is_quick,
            "provenance": origin,
            "recipe": parts.recipe.to_dict(),
            "changes": how.changes,
            "measure": dict(cell.measure),
            "paper": cell.paper,
            "history": history.rows,
            "measured": found,
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, result)
        tell(cell, "done")
    return paths


def _was_shared(recipe: Recipe, run: RunFolder) -> bool:
    is_trained = recipe.warm_start_settings(run_dir=".") is not None
    return is_trained and not run.warm_start.metrics.is_file()
