"""Begin from a plain network: trained first, or loaded from a file."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import bayesify as bf
from bayesify.recipes import RunFolder, make_recipe, run_recipe
from bayesify.recipes.warm_start import trained_alike, with_weights

TABLES = {
    "model": {"name": "mlp", "hidden": [16]},
    "data": {"name": "two_moons", "batch_size": 10, "validation": 0},
    "method": {"name": "variational_dropout", "initial_std": 0.01},
    "fit": {"epochs": 2, "beta": "linear", "learning_rate": 1e-4, "progress": False},
    "warm_start": {"epochs": 30, "learning_rate": 0.02, "progress": False},
}


def accuracy(model: torch.nn.Module) -> float:
    data = bf.load_dataset("two_moons")
    with bf.mean_weights(model):
        found = model(data.test.inputs).argmax(1)
    return float((found == data.test.targets).float().mean())


def test_the_posterior_begins_on_the_trained_network(tmp_path: Path) -> None:
    parts, history = run_recipe(make_recipe(TABLES), RunFolder(tmp_path / "run"))
    assert len(history.rows) == 2
    assert accuracy(parts.model) > 0.85
    plain = bf.revert(
        bf.load(tmp_path / "run/warm_start/model.safetensors", bf.revert(parts.model))
    )
    trained = plain.layers.hidden_1.weight
    moved = parts.model.layers.hidden_1.weight_posterior.mean - trained
    assert moved.abs().max() < 0.01
    cold, _ = run_recipe(make_recipe(TABLES | {"warm_start": {}}), RunFolder(tmp_path / "cold"))
    assert accuracy(cold.model) < accuracy(parts.model) - 0.1


def test_resume_takes_up_the_trained_network(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    first, _ = run_recipe(make_recipe(TABLES), run)
    written = run.warm_start.model.stat().st_mtime_ns
    again, _ = run_recipe(make_recipe(TABLES), run, resume=True)
    assert run.warm_start.model.stat().st_mtime_ns == written
    state = first.model.state_dict()
    assert all(torch.equal(state[key], value) for key, value in again.model.state_dict().items())
    compiled = TABLES["warm_start"] | {"compile": "reduce-overhead"}
    run_recipe(make_recipe(TABLES | {"warm_start": compiled}), run, resume=True)
    assert run.warm_start.model.stat().st_mtime_ns == written
    changed = make_recipe(TABLES | {"warm_start": {"epochs": 3, "progress": False}})
    with pytest.raises(ValueError, match="another warm_start"):
        run_recipe(changed, run, resume=True)


@pytest.mark.parametrize("kind", ["state.safetensors", "state.pt", "model.safetensors"])
def test_weights_of_every_kind_of_file_are_taken(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(5)
    trained = bf.build_model("mlp", in_features=2, hidden=(16,), out_features=2)
    path = tmp_path / kind
    if kind == "state.pt":
        torch.save({f"module.{key}": value for key, value in trained.state_dict().items()}, path)
    elif kind == "state.safetensors":
        save_file(trained.state_dict(), path)
    else:
        bf.save(bf.convert(trained, bf.MeanField()), path)
    tables = TABLES | {"warm_start": {"weights": str(path)}}
    tables["fit"] = {"epochs": 1, "learning_rate": 1e-9, "progress": False}
    parts, _ = run_recipe(make_recipe(tables), RunFolder(tmp_path / "run"))
    mean = parts.model.layers.hidden_1.weight_posterior.mean
    torch.testing.assert_close(mean, trained.layers.hidden_1.weight)


def test_weights_are_also_found_below_the_folder_of_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BAYESIFY_DATA", str(tmp_path))
    (tmp_path / "weights").mkdir()
    trained = bf.build_model("mlp", in_features=2, hidden=(16,), out_features=2)
    save_file(trained.state_dict(), tmp_path / "weights/some.safetensors")
    tables = TABLES | {"warm_start": {"weights": "weights/some.safetensors"}}
    parts, _ = run_recipe(make_recipe(tables), RunFolder(tmp_path / "run"))
    assert parts.plain is not None
    assert torch.equal(parts.plain.layers.hidden_1.weight, trained.layers.hidden_1.weight)
    tables = TABLES | {"warm_start": {"weights": "weights/none.safetensors"}}
    with pytest.raises(FileNotFoundError, match=r"there is no file weights/none\.safetensors"):
        run_recipe(make_recipe(tables), RunFolder(tmp_path / "other"))


def test_an_older_file_need_not_count_the_batches_of_norms(tmp_path: Path) -> None:
    trained = bf.build_model("lenet_300_100", batch_norm=True)
    torch.nn.init.normal_(next(trained.parameters()))
    state = trained.state_dict()
    older = {key: value for key, value in state.items() if not key.endswith("batches_tracked")}
    assert len(older) < len(state)
    torch.save(older, tmp_path / "older.th")
    network = with_weights(bf.build_model("lenet_300_100", batch_norm=True), tmp_path / "older.th")
    for key, value in network.state_dict().items():
        assert torch.equal(value, state[key])


def test_weights_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    save_file(bf.build_model("mlp", in_features=3, hidden=(16,), out_features=2).state_dict(), path)
    network = bf.build_model("mlp", in_features=2, hidden=(16,), out_features=2)
    with pytest.raises(ValueError, match=r"hidden_1.weight has shape \(16, 3\), expected"):
        with_weights(network, path)
    with pytest.raises(FileNotFoundError, match="there is no file"):
        with_weights(network, tmp_path / "none.pt")


@pytest.mark.parametrize(
    ("warm_start", "message"),
    [
        ({"learning_rate": 0.1}, "warm_start.epochs must be given"),
        ({"epochs": 2, "weights": "a.pt"}, "got both"),
        ({"epochs": 2, "lerning_rate": 0.1}, "learning_rate"),
        ({"epochs": 2, "optimizer": "adm"}, "adam"),
        ({"weights": 3}, "must be a path"),
    ],
)
def test_a_slip_in_the_table_is_named(warm_start: dict, message: str) -> None:
    with pytest.raises((ValueError, TypeError, LookupError), match=message):
        make_recipe(TABLES | {"warm_start": warm_start})


@pytest.mark.parametrize("warm_start", [{}, {"weights": "a.pt"}])
def test_members_that_would_all_be_alike_are_refused(warm_start: dict) -> None:
    method = {"name": "deep_ensemble", "start": "copy"}
    tables = TABLES | {"method": method}
    with pytest.raises(ValueError, match="all members at the same weights"):
        make_recipe(tables | {"warm_start": warm_start})
    make_recipe(tables)
    make_recipe(tables | {"method": method | {"start": "fresh"}, "warm_start": warm_start})


def test_a_recipe_with_a_warm_start_reads_back_equal() -> None:
    recipe = make_recipe(TABLES)
    assert make_recipe(recipe.to_dict()).to_dict() == recipe.to_dict()
    assert "[warm_start]" in recipe.to_toml()


def test_an_overwritten_run_does_not_take_up_what_the_old_one_left(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    run_recipe(make_recipe(TABLES), run)
    other = make_recipe(TABLES | {"seed": 1})

    class StopError(Exception):
        pass

    def stop(parts: object) -> None:
        raise StopError

    with pytest.raises(StopError):
        run_recipe(other, run, overwrite=True, on_start=stop)
    assert not run.model.exists()
    assert not run.warm_start.model.exists()
    resumed, _ = run_recipe(other, run, resume=True)
    fresh, _ = run_recipe(other, RunFolder(tmp_path / "fresh"))
    state = fresh.model.state_dict()
    assert all(torch.equal(state[key], value) for key, value in resumed.model.state_dict().items())


def test_weights_of_a_smaller_network_or_of_no_network_are_refused(tmp_path: Path) -> None:
    network = bf.build_model("mlp", in_features=2, hidden=(16,), out_features=2)
    small = bf.compress(bf.convert(network, bf.MeanField()), by="magnitude", keep=0.1)
    path = tmp_path / "small.safetensors"
    bf.save(small, path)
    with pytest.raises(ValueError, match="does not fit the network: layers"):
        with_weights(network, path)
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(ValueError, match="must hold a state dict, got a list"):
        with_weights(network, tmp_path / "list.pt")


def test_a_plain_network_that_another_run_trained_alike_is_taken_over(tmp_path: Path) -> None:
    first, others = RunFolder(tmp_path / "first"), [RunFolder(tmp_path / "none")]
    run_recipe(make_recipe(TABLES), first, others=others)
    other = make_recipe(TABLES | {"method": {"name": "mean_field"}})
    shared, own = RunFolder(tmp_path / "shared"), RunFolder(tmp_path / "own")
    found, _ = run_recipe(other, shared, others=[*others, first])
    assert not shared.warm_start.metrics.is_file()
    assert shared.warm_start.model.read_bytes() == first.warm_start.model.read_bytes()
    expected, _ = run_recipe(other, own)
    state = expected.model.state_dict()
    assert all(torch.equal(state[key], value) for key, value in found.model.state_dict().items())
    # It goes on from its own copy, whatever became of the other run.
    first.clear()
    run_recipe(other, shared, resume=True, others=[first])


def test_the_result_of_a_plain_run_is_a_warm_start_too(tmp_path: Path) -> None:
    plain = RunFolder(tmp_path / "plain")
    alone = {key: TABLES[key] for key in ("model", "data")}
    alone |= {"method": {"name": "deterministic"}, "fit": TABLES["warm_start"]}
    run_recipe(make_recipe(alone), plain)
    run = RunFolder(tmp_path / "run")
    parts, _ = run_recipe(make_recipe(TABLES), run, others=[plain])
    assert not run.warm_start.metrics.is_file()
    trained = bf.revert(bf.load(plain.model, bf.revert(parts.model)))
    assert parts.plain is not None
    for one, two in zip(parts.plain.parameters(), trained.parameters(), strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"model": {"name": "mlp", "hidden": [17]}},
        {"data": {"name": "two_moons", "batch_size": 11, "validation": 0}},
        {"warm_start": {"epochs": 30, "learning_rate": 0.01, "progress": False}},
        {"warm_start": {"epochs": 29, "learning_rate": 0.02, "progress": False}},
    ],
    ids=str,
)
def test_a_plain_network_that_was_trained_otherwise_is_left_alone(
    change: dict, tmp_path: Path
) -> None:
    run = RunFolder(tmp_path / "run")
    short = TABLES | {"fit": TABLES["fit"] | {"epochs": 1}}
    parts, _ = run_recipe(make_recipe(short), run)
    assert trained_alike(parts.recipe, [run]) == run.warm_start.model
    options = {"in_features": 2, "out_features": 2}
    other = make_recipe(TABLES | change).with_model_options(options)
    assert trained_alike(other, [run]) is None
    # A posterior's own weights are no plain network, whatever they were trained by.
    run.warm_start.model.unlink()
    assert trained_alike(parts.recipe, [run]) is None


def test_members_of_an_ensemble_are_trained_apart(tmp_path: Path) -> None:
    ensemble = {"name": "deep_ensemble", "start": "copy", "num_members": 3}
    data = TABLES["data"] | {"validation": 0.2}
    start = {"epochs": 3, "learning_rate": 0.02, "progress": False}
    tables = {"model": TABLES["model"], "data": data, "warm_start": start}
    tables |= {"method": ensemble, "fit": {"epochs": 0, "progress": False}, "seed": 4}
    # The second member was trained already, by a run that has its seed.
    plain = RunFolder(tmp_path / "plain")
    alone = {"model": TABLES["model"], "data": data, "fit": start, "seed": 5}
    apart, _ = run_recipe(make_recipe(alone | {"method": {"name": "deterministic"}}), plain)
    run = RunFolder(tmp_path / "run")
    parts, history = run_recipe(make_recipe(tables), run, others=[plain])
    members = [dict(member.state_dict()) for member in parts.model.get_submodule("members")]
    assert history.rows == []
    assert (run.warm_start.path / "metrics.csv").is_file()
    assert not run.member(1).warm_start.metrics.is_file()
    assert run.member(2).warm_start.metrics.is_file()
    expected = bf.revert(apart.model).state_dict()
    assert all(torch.equal(value, members[1][key]) for key, value in expected.items())
    assert not any(torch.equal(members[0][key], members[2][key]) for key in expected)
    # Whoever trains them, they are the same.
    again, _ = run_recipe(make_recipe(tables), RunFolder(tmp_path / "again"))
    state = again.model.state_dict()
    assert all(torch.equal(state[key], value) for key, value in parts.model.state_dict().items())
    # Nothing is trained twice by a run that goes on.
    written = run.member(2).warm_start.model.stat().st_mtime_ns
    run_recipe(make_recipe(tables), run, resume=True)
    assert run.member(2).warm_start.model.stat().st_mtime_ns == written
    run.clear()
    assert not run.member(2).path.exists()
