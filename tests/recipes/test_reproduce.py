"""Carry out a study: one file per cell, nothing run twice, everything said in the file."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import bayesify as bf
from bayesify.data import imdb, loader
from bayesify.recipes.measure_pruning import PruningOptions, error_by_samples
from bayesify.recipes.reproduce import Reproduction, reproduce
from bayesify.recipes.run import run_recipe
from bayesify.recipes.study import Study, read_study, study_names
from bayesify.report import write_report

REVIEWS = ("a good film with good people", "a bad film with bad people", "so so", "not good")


@pytest.fixture
def reviews(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder of few short reviews where the IMDB ones are looked for."""
    for half in ("train", "test"):
        for label in ("pos", "neg"):
            folder = tmp_path / "data" / "aclImdb" / half / label
            folder.mkdir(parents=True)
            for number in range(12):
                text = f"{REVIEWS[number % 4]} {label}"
                (folder / f"{number}_{9 if label == 'pos' else 2}.txt").write_text(text)
    monkeypatch.setattr(imdb, "NUM_PER_LABEL", 12)
    monkeypatch.setenv("BAYESIFY_DATA", str(tmp_path / "data"))
    return tmp_path


def how(folder: Path, **options: object) -> Reproduction:
    return Reproduction(folder / "results", folder / "runs", is_quick=True, **options)


def each_choice_once(study: Study) -> tuple[str, ...]:
    """Return cells that have every choice of every axis among them, if not every combination."""
    seen: set[tuple[str, str]] = set()
    chosen = []
    for cell in study.cells():
        if not seen.issuperset(cell.labels.items()) or not cell.labels:
            chosen.append(cell.name)
            seen |= set(cell.labels.items())
    return tuple(chosen)


@pytest.mark.slow
@pytest.mark.parametrize("name", study_names())
def test_every_published_study_runs_in_its_quick_form_and_is_reported(
    name: str, reviews: Path
) -> None:
    study = read_study(name)
    cells = each_choice_once(study)
    paths = reproduce(study, how(reviews, cells=cells), "bayesify reproduce")
    assert len(paths) == len(cells) > 0
    report = write_report(reviews / "results", reviews / "report.html")
    assert report.num_cells == report.num_quick == len(paths)
    for path in paths:
        result = json.loads(path.read_text())
        assert result["is_quick"]
        assert result["provenance"]["wall_seconds"] > 0
        assert {"commit", "hardware", "torch", "command"} <= result["provenance"].keys()
        for pruning in result["measured"].get("prunings", []):
            assert pruning["loads_identical"]
            assert 0 <= pruning["removed"] <= 1


def test_a_result_is_left_alone_and_overwritten_on_demand(tmp_path: Path) -> None:
    study = read_study("vmlp/regression")
    options = {"cells": ("dense-elbo",)}
    told: list[str] = []
    (path,) = reproduce(study, how(tmp_path, **options), "x", lambda _, state: told.append(state))
    before = path.read_bytes()
    reproduce(study, how(tmp_path, **options), "x", lambda _, state: told.append(state))
    assert told == ["begins", "done", "there"]
    assert path.read_bytes() == before
    reproduce(study, how(tmp_path, overwrite=True, **options), "y")
    again = json.loads(path.read_text())
    assert again["provenance"]["command"] == "y"
    assert again["measured"] == json.loads(before)["measured"]


def test_cells_share_the_plain_network_they_begin_from(tmp_path: Path) -> None:
    study, cells = read_study("pbn/cubic"), ("partial_1", "partial_5")
    wanted = how(tmp_path, cells=cells)
    paths = reproduce(study, wanted, "x")
    shared = [json.loads(path.read_text())["provenance"] for path in paths]
    assert [each["warm_start_was_shared"] for each in shared] == [False, True]
    # A quick run trusts nothing that was there before.
    alone = how(tmp_path, cells=cells[1:], overwrite=True)
    (again,) = reproduce(study, alone, "x")
    assert not json.loads(again.read_text())["provenance"]["warm_start_was_shared"]
    assert again == paths[1]


def test_an_ensemble_may_take_over_runs_of_its_members_seeds(tmp_path: Path) -> None:
    study = read_study("pbn/cifar10")
    wanted = Reproduction(runs=tmp_path, seed=2)
    cells = {cell.name: cell for cell in wanted.chosen(study)}
    folders = wanted.others(study, cells["ensemble"], [])
    assert wanted.run_folder(cells["plain"], seed=6) in folders
    assert wanted.run_folder(cells["ensemble"]) not in folders
    assert wanted.run_folder(cells["plain"], seed=6) not in wanted.others(study, cells["vi"], [])


def test_an_unknown_cell_is_named_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(LookupError, match="dense-elbo"):
        reproduce(read_study("vmlp/regression"), how(tmp_path, cells=("dense-elb",)), "x")
    assert not (tmp_path / "results").exists()


def test_error_falls_as_samples_are_averaged() -> None:
    torch.manual_seed(0)
    data = bf.load_dataset("digits")
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    model = bf.convert(net, bf.MeanField())
    bf.fit(model, loader(data.train, 256, True), epochs=8, learning_rate=0.01, progress=False)
    model[1].weight_posterior.rho.data.fill_(-0.5)  # so much noise that one draw is a bad guess
    curve = error_by_samples(model, data.test, PruningOptions(num_samples=60, repeats=4))
    assert curve["num_samples"] == list(range(1, 61))
    assert curve["mean"][0] > curve["mean"][-1] + 0.05
    assert max(curve["std"]) > 0
    found = bf.evaluate(model, loader(data.test, 64), num_samples=60, progress=False)
    accuracy = found["accuracy"]
    spread = max(curve["std"]) + (accuracy * (1 - accuracy) / len(data.test)) ** 0.5
    assert abs(curve["mean"][-1] - (1 - accuracy)) < 4 * spread


def test_a_changed_cell_is_not_taken_for_the_studys_own(tmp_path: Path) -> None:
    study, cells = read_study("vmlp/regression"), ("dense-elbo",)
    (changed,) = reproduce(study, how(tmp_path, cells=cells, changes={"fit": {"epochs": 2}}), "x")
    (own,) = reproduce(study, how(tmp_path, cells=cells), "x")
    assert changed != own
    assert json.loads(changed.read_text())["changes"] == {"fit": {"epochs": 2}}
    assert len(json.loads(own.read_text())["history"]) == 20
    told: list[str] = []
    again = how(tmp_path, cells=cells, changes={"fit": {"epochs": 3}})
    reproduce(study, again, "x", lambda _, state: told.append(state))
    assert told == ["begins", "done"]


def test_only_a_run_of_the_same_recipe_is_taken_up(tmp_path: Path) -> None:
    study = read_study("vmlp/regression")
    full = Reproduction(tmp_path / "results", tmp_path / "runs", cells=("frequentist-elbo",))
    (cell,) = full.chosen(study)
    run = full.run_folder(cell)
    short = replace(cell.recipe, fit={**cell.recipe.fit, "epochs": 1})
    run_recipe(short, run)
    assert not full.can_go_on(cell)
    assert full.can_go_on(replace(cell, recipe=short))
    compiled = replace(short, fit={**short.fit, "compile": "reduce-overhead"})
    assert full.can_go_on(replace(cell, recipe=compiled))


def test_a_run_of_another_recipe_is_not_written_over(tmp_path: Path) -> None:
    study = read_study("vmlp/regression")
    full = Reproduction(tmp_path / "results", tmp_path / "runs", cells=("frequentist-elbo",))
    (cell,) = full.chosen(study)
    run = full.run_folder(cell)
    run_recipe(replace(cell.recipe, fit={**cell.recipe.fit, "epochs": 1}), run)
    before = {path: path.read_bytes() for path in run.path.iterdir()}
    with pytest.raises(FileExistsError, match=r"holds a run of another recipe.*--overwrite"):
        reproduce(study, full, "x")
    assert {path: path.read_bytes() for path in run.path.iterdir()} == before
    replace(full, overwrite=True).check_folder(cell)
