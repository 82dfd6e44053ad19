"""A recipe is carried out, leaves its folder, and goes on where it stopped."""

import csv
import json
from pathlib import Path

import pytest
import torch

import bayesify as bf
from bayesify.archive import read_archive
from bayesify.moments import Moments
from bayesify.recipes.recipe import make_recipe
from bayesify.recipes.run import build, data_device, run_recipe
from bayesify.recipes.run_folder import RunFolder, model_path, write_json
from bayesify.recipes.trained import load_trained

TABLES = {
    "model": {"name": "mlp", "hidden": [8]},
    "data": {"name": "digits", "batch_size": 256},
    "fit": {"epochs": 2, "progress": False},
}


def weights(run: RunFolder) -> dict[str, torch.Tensor]:
    return read_archive(run.model, "model")[0]


def test_build_lets_the_data_decide_what_the_recipe_leaves_open():
    parts = build(make_recipe(TABLES))
    assert parts.recipe.model["in_features"] == 64
    assert parts.recipe.model["out_features"] == 10
    assert len(parts.train.dataset) == 1293
    assert parts.validation is not None
    assert len(parts.validation.dataset) == 144
    curve = {"data": {"name": "curve_1d", "validation": 0}}
    parts = build(make_recipe(TABLES, curve))
    assert (parts.recipe.model["in_features"], parts.recipe.model["out_features"]) == (1, 1)
    assert parts.validation is None


def test_build_keeps_what_the_recipe_says():
    parts = build(make_recipe(TABLES, {"model": {"out_features": 12}}))
    assert parts.recipe.model["out_features"] == 12


def test_build_starts_from_weights_that_follow_from_the_seed_alone():
    first = build(make_recipe(TABLES)).model.state_dict()
    torch.rand(3)
    again = build(make_recipe(TABLES)).model.state_dict()
    other = build(make_recipe(TABLES, {"seed": 1})).model.state_dict()
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not all(torch.equal(first[key], other[key]) for key in first)


def test_run_leaves_everything_in_its_folder(tmp_path):
    run = RunFolder(tmp_path / "run")
    seen = []
    parts, history = run_recipe(make_recipe(TABLES), run, on_start=seen.append)
    assert seen == [parts]
    names = {path.name for path in run.path.iterdir()}
    expected = {"config.toml", "metrics.csv", "log.txt"}
    assert expected | {"checkpoint.safetensors", "model.safetensors"} == names
    with run.metrics.open() as file:
        assert len(list(csv.DictReader(file))) == len(history.rows) == 2
    assert run.read_recipe().to_dict() == parts.recipe.to_dict()
    model = bf.load(run.model)
    x = torch.randn(3, 1, 8, 8)
    with bf.mean_weights(model), bf.mean_weights(parts.model):
        assert torch.equal(model(x), parts.model(x))


def test_same_recipe_gives_the_same_weights(tmp_path):
    runs = [RunFolder(tmp_path / name) for name in ("one", "two")]
    for run in runs:
        run_recipe(make_recipe(TABLES), run)
    first, second = map(weights, runs)
    assert all(torch.equal(first[key], second[key]) for key in first)


def test_run_is_not_overwritten_unless_asked(tmp_path):
    run = RunFolder(tmp_path)
    run_recipe(make_recipe(TABLES), run)
    with pytest.raises(FileExistsError, match="--resume goes on with it, --overwrite begins"):
        run_recipe(make_recipe(TABLES), run)
    _, history = run_recipe(make_recipe(TABLES, {"fit": {"epochs": 1}}), run, overwrite=True)
    assert len(history.rows) == 1


def test_resume_goes_on_and_refuses_another_run(tmp_path):
    run = RunFolder(tmp_path)
    run_recipe(make_recipe(TABLES), run)
    _, history = run_recipe(make_recipe(TABLES, {"fit": {"epochs": 4}}), run, resume=True)
    assert [row["epoch"] for row in history.rows] == [1, 2, 3, 4]
    for table, change in {
        "seed": 1,
        "method": {"prior_std": 2.0},
        "model": {"hidden": [9]},
    }.items():
        with pytest.raises(ValueError, match=f"cannot be resumed with another {table}"):
            run_recipe(make_recipe(TABLES, {table: change}), run, resume=True)


def test_examples_are_held_where_the_recipe_says(monkeypatch):
    def device(**tables):
        return str(data_device(make_recipe(TABLES, tables)))

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device() == device(data={"device": "auto"}) == device(data={"device": "cpu"}) == "cpu"
    with pytest.raises(ValueError, match="'cuda', but torch finds no GPU: choose 'auto' or 'cpu'"):
        build(make_recipe(TABLES, {"data": {"device": "cuda"}}))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert device() == device(data={"device": "cpu"}) == "cpu"
    assert device(data={"device": "auto"}, fit={"accelerator": "cpu"}) == "cpu"
    assert device(data={"device": "auto"}) == device(data={"device": "cuda"}) == "cuda:0"
    monkeypatch.setenv("LOCAL_RANK", "2")
    assert device(data={"device": "auto"}) == "cuda:2"


def test_where_examples_are_held_changes_neither_the_run_nor_who_may_resume_it(tmp_path):
    runs = [RunFolder(tmp_path / name) for name in ("one", "two")]
    run_recipe(make_recipe(TABLES), runs[0])
    held = make_recipe(TABLES, {"data": {"device": "auto"}, "fit": {"accelerator": "cpu"}})
    run_recipe(held, runs[1])
    first, second = map(weights, runs)
    assert all(torch.equal(first[key], second[key]) for key in first)
    _, history = run_recipe(held, runs[0], resume=True)
    assert len(history.rows) == 2
    # A model remembers its data set, and loads it where it is asked to.
    assert load_trained(runs[1].path).load_data().test.inputs.device.type == "cpu"


def test_model_path_finds_the_file_or_says_what_is_missing(tmp_path):
    run = RunFolder(tmp_path / "run")
    with pytest.raises(FileNotFoundError, match="no model file or run folder"):
        model_path(run.path)
    run.path.mkdir()
    with pytest.raises(FileNotFoundError, match="is not the folder of a run"):
        model_path(run.path)
    with pytest.raises(FileNotFoundError, match=r"holds no config\.toml"):
        run.read_recipe()
    run.checkpoint.touch()
    with pytest.raises(FileNotFoundError, match=r"has not ended.*--resume"):
        model_path(run.path)
    run.model.touch()
    assert model_path(run.path) == model_path(run.model) == run.model


def test_write_json_refuses_what_json_cannot_say(tmp_path):
    path = Path(tmp_path) / "found.json"
    write_json(path, {"nll": 0.5})
    assert json.loads(path.read_text()) == {"nll": 0.5}
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(path, {"nll": float("nan")})
    assert json.loads(path.read_text()) == {"nll": 0.5}


@pytest.mark.parametrize(("kind", "is_drawn"), [("draws", True), ("variance", False)])
def test_a_recipe_trains_on_some_examples_under_noise(kind, is_drawn):
    noise = {"decibels": 3.0, "as": kind}
    tables = {**TABLES, "data": {**TABLES["data"], "noise": noise, "num_train": 40}}
    parts = build(make_recipe(tables))
    (first, _), (again, _) = (next(iter(parts.train)) for _ in range(2))
    assert isinstance(first, torch.Tensor) is is_drawn
    assert isinstance(again, Moments) is not is_drawn
    assert sum(len(targets) for _, targets in parts.train) == 40
    assert parts.validation is None or isinstance(next(iter(parts.validation))[0], torch.Tensor)
    too_many = {**tables, "data": {**tables["data"], "num_train": 5000}}
    with pytest.raises(ValueError, match=r"data\.num_train must be at most"):
        build(make_recipe(too_many))
