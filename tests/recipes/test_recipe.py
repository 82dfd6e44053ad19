"""A recipe is checked when it is made, and survives being written and read."""

from pathlib import Path

import pytest

from bayesify.methods import MCDropout, MeanField
from bayesify.recipes.recipe import make_recipe, read_recipe, read_tables

TEXT = """
seed = 3

[model]
name = "mlp"
hidden = [8]

[data]
name = "digits"
batch_size = 32

[method]
name = "mean_field"
prior_std = 0.3
how = "local"

[fit]
epochs = 2
beta = "warm_up"
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(TEXT, encoding="utf-8")
    return path


def test_read_recipe_makes_what_the_file_says(path):
    recipe = read_recipe(path)
    assert recipe.seed == 3
    assert recipe.make_method() == MeanField(prior_std=0.3, how="local")
    assert recipe.options("model") == {"hidden": [8]}
    assert recipe.options("data") == {}
    settings = recipe.settings(run_dir="somewhere")
    assert (settings.epochs, settings.beta, settings.seed) == (2, "warm_up", 3)
    assert settings.run_path == Path("somewhere")


def test_changes_win_over_the_file(path):
    recipe = read_recipe(path, {"seed": 5, "fit": {"epochs": 7}, "data": {"batch_size": 4}})
    assert (recipe.seed, recipe.fit["epochs"], recipe.data["batch_size"]) == (5, 7, 4)
    assert recipe.fit["beta"] == "warm_up"


def test_naming_another_method_drops_the_options_of_the_old_one(path):
    recipe = read_recipe(path, {"method": {"name": "mc_dropout", "rate": 0.2}})
    assert recipe.make_method() == MCDropout(rate=0.2)
    same = read_recipe(path, {"method": {"name": "mean_field"}})
    assert same.method["prior_std"] == 0.3


def test_naming_another_data_set_keeps_what_is_not_the_data_sets_own(path):
    held = read_recipe(path, {"data": {"device": "auto"}})
    assert held.options("data") == {}
    recipe = make_recipe(held.to_dict(), {"data": {"name": "two_moons"}})
    assert (recipe.data["batch_size"], recipe.data["device"]) == (32, "auto")


def test_defaults_fill_what_is_left_open():
    recipe = make_recipe({"model": {"name": "mlp"}, "data": {"name": "digits"}})
    assert recipe.make_method() == MeanField()
    assert recipe.data == {"name": "digits", "batch_size": 128, "validation": 0.1}
    assert recipe.fit == {"epochs": 20}
    assert recipe.seed == 0


def test_written_recipe_is_read_back_equal(path, tmp_path):
    recipe = read_recipe(path)
    other = tmp_path / "config.toml"
    other.write_text(recipe.to_toml(), encoding="utf-8")
    again = read_recipe(other)
    assert again.to_dict() == recipe.to_dict()
    # Written out, every default is there, so that a later default cannot change the run.
    assert again.fit["learning_rate"] == 1e-3
    assert again.model["activation"] == "relu"
    assert again.method["scale"] == "weight"


def test_one_seed_in_a_written_recipe_can_be_changed_in_one_place(path, tmp_path):
    other = tmp_path / "config.toml"
    other.write_text(read_recipe(path).to_toml(), encoding="utf-8")
    assert read_recipe(other, {"seed": 9}).settings().seed == 9
    own = read_recipe(path, {"fit": {"seed": 4}})
    assert own.settings().seed == 4
    assert own.to_dict()["fit"]["seed"] == 4


def test_settings_that_need_a_run_folder_are_accepted(path):
    recipe = read_recipe(path, {"fit": {"tensorboard": True}})
    assert recipe.settings(run_dir="runs").tensorboard


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"modle": {}}, "unknown key of a recipe 'modle'. Did you mean 'model'?"),
        ({"model": 3}, "model must be a table, such as [model], got 3"),
        ({"model": {"name": "mpl"}}, "unknown model 'mpl'. Did you mean 'mlp'?"),
        ({"model": {"name": 3}}, "model.name must be the name of a model, got 3"),
        ({"model": {"hiden": [3]}}, "unknown model 'mlp' option 'hiden'. Did you mean 'hidden'?"),
        ({"data": {"name": "digit"}}, "unknown data set 'digit'. Did you mean 'digits'?"),
        ({"data": {"batchsize": 3}}, "Did you mean 'batch_size'?"),
        ({"data": {"batch_size": 0}}, "data.batch_size must be a whole number >= 1, got 0"),
        ({"data": {"validation": 1.5}}, "data.validation must be a fraction below 1"),
        ({"data": {"validation": -1}}, "data.validation must be a fraction below 1"),
        ({"data": {"root": 3}}, "data.root must be the path of a folder, got 3"),
        (
            {"data": {"device": "gpu"}},
            "data.device must be one of 'auto', 'cpu', 'cuda', got 'gpu'",
        ),
        ({"fit": {"channels_last": 1}}, "channels_last of [fit] must be true or false, got 1"),
        ({"method": {"name": "meanfield"}}, "unknown method 'meanfield'. Did you mean"),
        ({"method": {"prior_sd": 1}}, "unknown method 'mean_field' option 'prior_sd'. Did you"),
        ({"method": {"how": "both"}}, "how of method 'mean_field' must be 'sample' or 'local'"),
        ({"fit": {"epohcs": 1}}, "unknown [fit] option 'epohcs'. Did you mean 'epochs'?"),
        ({"fit": {"epochs": -1}}, "epochs must be a whole number >= 0, got -1"),
        ({"fit": {"learning_rate": "fast"}}, "learning_rate of [fit] must be a number"),
        ({"fit": {"optimizer": "adma"}}, "unknown optimizer 'adma'. Did you mean 'adam'?"),
        ({"fit": {"beta": "warmup"}}, "unknown schedule 'warmup'. Did you mean 'warm_up'?"),
        ({"fit": {"likelihood": "classify"}}, "unknown likelihood 'classify'. Did you mean"),
        ({"seed": "one"}, "seed must be a whole number, got 'one'"),
    ],
)
def test_a_slip_is_answered_by_one_sentence(path, changes, sentence):
    with pytest.raises((ValueError, TypeError, LookupError)) as error:
        read_recipe(path, changes)
    assert sentence in str(error.value)


def test_a_likelihood_may_be_a_table_and_survives_being_written(path, tmp_path):
    path.write_text(
        f"{TEXT}\nlikelihood = {{name = 'classification', class_weights = [0.5, 2]}}\n", "utf-8"
    )
    recipe = read_recipe(path)
    expected = {"name": "classification", "class_weights": [0.5, 2]}
    assert recipe.settings().likelihood == expected
    again = tmp_path / "again.toml"
    again.write_text(recipe.to_toml(), encoding="utf-8")
    assert read_recipe(again).settings().likelihood == expected
    with pytest.raises(TypeError, match="Did you mean 'class_weights'"):
        read_recipe(path, {"fit": {"likelihood": {"class_weight": [1.0]}}})


@pytest.mark.parametrize("table", ["model", "data"])
def test_a_recipe_must_name_its_model_and_data(table):
    tables = {"model": {"name": "mlp"}, "data": {"name": "digits"}}
    del tables[table]
    with pytest.raises(ValueError, match=rf"{table}.name must be given. Known: "):
        make_recipe(tables)


def test_read_tables_says_when_a_file_is_missing_or_not_toml(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no file"):
        read_tables(tmp_path / "nothing.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("[model\nname = 3", encoding="utf-8")
    with pytest.raises(ValueError, match="is not a TOML file"):
        read_tables(broken)
    broken.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="is not a TOML file"):
        read_tables(broken)


def test_one_option_of_a_nested_table_can_be_changed():
    method = {"name": "monte_carlo_kl", "prior": {"name": "normal", "mean": 0.1, "std": 0.1}}
    tables = {"model": {"name": "mlp"}, "data": {"name": "digits"}, "method": method}
    changed = make_recipe(tables, {"method": {"prior": {"std": 0.3}}}).make_method()
    assert (changed.prior.mean, changed.prior.std) == (0.1, 0.3)
    other = make_recipe(tables, {"method": {"prior": {"name": "laplace"}}}).make_method()
    assert (other.prior.mean, other.prior.std) == (0.0, 1.0)


def test_noise_to_train_under_is_checked(path):
    noise = {"decibels": [-6, 20], "as": "variance"}
    recipe = read_recipe(path, {"data": {"noise": noise, "num_train": 50}})
    assert make_recipe(recipe.to_dict()).data == recipe.data
    wrong = (
        ({"noise": 3.0}, "data.noise must be a table of decibels and as"),
        ({"noise": {"decibels": 3.0}}, "data.noise must be a table of decibels and as"),
        ({"noise": {**noise, "as": "draw"}}, "draws"),
        ({"noise": {**noise, "decibels": [20, -6]}}, "decibels must be a number, or two"),
        ({"num_train": 0}, "data.num_train must be a whole number >= 1, got 0"),
    )
    for data, message in wrong:
        with pytest.raises(ValueError, match=message):
            read_recipe(path, {"data": data})
