"""The registry of data sets, and what every set that needs no files must do."""

from pathlib import Path

import pytest
import torch

from bayesify.data import datasets, load_dataset, loader
from bayesify.data.catalogue import data_root

WITHOUT_FILES = ("cubic_1d", "curve_1d", "digits", "two_moons", "volumes")
WITH_FILES = ("cifar10", "cifar100_test", "fashion_mnist", "imdb", "mnist")


def test_datasets_lists_every_set():
    assert set(datasets) >= {*WITHOUT_FILES, *WITH_FILES, "camvid"}


@pytest.mark.parametrize("name", WITHOUT_FILES)
def test_data_set_gives_float_batches_with_fitting_targets(name):
    data = load_dataset(name)
    assert data.name == name
    inputs, targets = next(iter(loader(data.train, 8)))
    assert inputs.shape == (8, *data.input_shape)
    assert inputs.dtype == torch.float32
    assert inputs.isfinite().all()
    if data.task == "classification":
        assert targets.dtype == torch.int64
        assert 0 <= data.train.targets.min() <= data.train.targets.max() < data.num_classes
    else:
        assert targets.dtype == torch.float32
        assert targets.shape == (8, 1)


@pytest.mark.parametrize("name", WITH_FILES)
def test_data_set_without_files_fails_before_it_makes_a_folder(name, tmp_path):
    with pytest.raises(FileNotFoundError, match="put these files into"):
        load_dataset(name, tmp_path / "root", download=False)
    assert not (tmp_path / "root").exists()


def test_load_dataset_unknown_name_suggests_the_closest():
    with pytest.raises(LookupError, match=r"unknown data set 'minst'\. Did you mean 'mnist'\?"):
        load_dataset("minst")


def test_load_dataset_unknown_option_lists_what_there_is():
    with pytest.raises(TypeError, match="'mnist' has no option 'augment'; it has download"):
        load_dataset("mnist", augment=True)
    with pytest.raises(TypeError, match="'digits' has no option 'seed'; it has none"):
        load_dataset("digits", seed=1)


def test_data_root_prefers_argument_then_environment_then_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("BAYESIFY_DATA", str(tmp_path))
    assert data_root("elsewhere") == Path("elsewhere")
    assert data_root(None) == tmp_path
    monkeypatch.delenv("BAYESIFY_DATA")
    assert data_root(None) == Path("data")


def test_data_root_expands_the_home_folder():
    assert data_root("~/sets") == Path.home() / "sets"
