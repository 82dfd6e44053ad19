"""Published studies: their cells, their checksums, and what a slip of the pen says."""

import hashlib
import json
from importlib.resources import files

import pytest

from bayesify.recipes.recipe import deep_merged
from bayesify.recipes.study import make_study, read_study, study_names

TABLES = {
    "title": "A study",
    "kind": "pruning",
    "recipe": {
        "model": {"name": "mlp", "hidden": [8]},
        "data": {"name": "digits", "batch_size": 64},
        "fit": {"epochs": 4, "beta": {"name": "warm_up", "start": 0.0, "fraction": 1.0}},
    },
    "measure": {"num_samples": 10},
    "axes": {
        "start": {
            "plain": {"warm_start": {"epochs": 3}},
            "cold": {"fit": {"beta": {"start": 0.5, "fraction": 0.5}}},
        },
        "kl": {"full": {}, "weak": {"fit": {"beta": {"value": 0.1}}, "measure": {"repeats": 0}}},
    },
    "skip": [{"start": "cold", "kl": "full"}],
    "quick": {"warm_start": {"epochs": 1}, "fit": {"epochs": 1}},
    "paper": [{"start": "plain", "source": "a table", "sparsity": [0.5]}],
}


def test_cells_are_every_combination_that_is_not_skipped() -> None:
    cells = make_study("a/b", TABLES).cells(seed=3)
    assert [cell.name for cell in cells] == ["plain-full", "plain-weak", "cold-weak"]
    cold = cells[2]
    assert cold.recipe.fit["beta"] == {
        "name": "warm_up",
        "start": 0.5,
        "fraction": 0.5,
        "value": 0.1,
    }
    assert cold.measure == {"num_samples": 10, "repeats": 0}
    assert cold.recipe.seed == 3
    assert cells[0].recipe.warm_start == {"epochs": 3}
    assert cells[0].paper == {"source": "a table", "sparsity": [0.5]}
    assert cold.paper is None


def test_a_quick_cell_is_short_and_starts_no_warmer_than_the_cell() -> None:
    cells = {cell.name: cell for cell in make_study("a/b", TABLES).cells(is_quick=True)}
    assert cells["plain-full"].recipe.warm_start == {"epochs": 1}
    assert cells["plain-full"].recipe.fit["epochs"] == 1
    assert cells["cold-weak"].recipe.warm_start == {}


def test_a_choice_may_add_to_the_quick_form() -> None:
    small = {"model": {"hidden": [2]}, "measure": {"num_samples": 1}, "fit": {"epochs": 2}}
    axes = {
        **TABLES["axes"],
        "width": {"wide": {"model": {"hidden": [9]}, "quick": small}, "narrow": {}},
    }
    study = make_study("a/b", TABLES | {"axes": axes})
    full = {cell.name: cell for cell in study.cells()}
    quick = {cell.name: cell for cell in study.cells(is_quick=True)}
    assert full["plain-full-wide"].recipe.model["hidden"] == [9]
    assert full["plain-full-wide"].measure == {"num_samples": 10}
    wide, narrow = quick["plain-full-wide"], quick["plain-full-narrow"]
    assert (wide.recipe.model["hidden"], wide.measure["num_samples"]) == ([2], 1)
    assert wide.recipe.fit["epochs"] == 2
    assert wide.recipe.warm_start == {"epochs": 1}
    assert (narrow.recipe.model["hidden"], narrow.recipe.fit["epochs"]) == ([8], 1)


def test_changes_win_over_the_study() -> None:
    changes = {"fit": {"epochs": 9}, "measure": {"num_samples": 2}}
    cell = make_study("a/b", TABLES).cells(changes=changes)[0]
    assert cell.recipe.fit["epochs"] == 9
    assert cell.measure["num_samples"] == 2


def test_another_name_drops_the_old_options() -> None:
    first = {"method": {"name": "mean_field", "prior_std": 1.0}, "data": {"name": "a", "root": "r"}}
    first["data"]["device"] = "auto"
    second = {"method": {"name": "deterministic"}, "data": {"name": "b"}}
    assert deep_merged(first, second) == {
        "method": {"name": "deterministic"},
        "data": {"name": "b", "root": "r", "device": "auto"},
    }


def test_weights_to_begin_from_and_how_to_train_them_replace_each_other() -> None:
    weights, trained = {"weights": "a.pt"}, {"epochs": 3, "learning_rate": 0.1}
    assert deep_merged({"warm_start": weights}, {"warm_start": trained}) == {"warm_start": trained}
    assert deep_merged({"warm_start": trained}, {"warm_start": weights}) == {"warm_start": weights}
    assert deep_merged(trained, {"epochs": 1}) == {"epochs": 1, "learning_rate": 0.1}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"axis": {}}, "axes"),
        ({"recipe": {"model": {"name": "mpl"}, "data": {"name": "digits"}}}, "mlp"),
    ],
)
def test_a_slip_is_named(change: dict, message: str) -> None:
    with pytest.raises((ValueError, LookupError), match=message):
        make_study("a/b", TABLES | change).cells()


def test_an_unknown_study_names_the_closest() -> None:
    with pytest.raises(LookupError, match="vmlp/mnist_pruning"):
        read_study("vmlp/mnist_prunning")


@pytest.mark.parametrize("name", study_names())
def test_every_published_study_makes_its_cells(name: str) -> None:
    study = read_study(name)
    for is_quick in (False, True):
        names = [cell.name for cell in study.cells(is_quick=is_quick)]
        assert names
        assert len(set(names)) == len(names)


def test_published_studies_are_never_edited() -> None:
    folder = files("bayesify.recipes") / "studies"
    published = json.loads((folder / "published.json").read_text())
    found = {
        name: hashlib.sha256((folder / f"{name}.toml").read_bytes()).hexdigest()
        for name in study_names()
    }
    # A study that has to change becomes a new one; a new one adds its line to published.json.
    assert found == published
