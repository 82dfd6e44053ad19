"""A model from a file meets data it fits, or a sentence that says why not."""

from pathlib import Path

import numpy as np
import pytest
import torch

import bayesify as bf
from bayesify.recipes.recipe import make_recipe
from bayesify.recipes.run import run_recipe
from bayesify.recipes.run_folder import RunFolder
from bayesify.recipes.trained import Trained, load_trained, read_numbers

TABLES = {
    "model": {"name": "mlp", "hidden": [8]},
    "data": {"name": "digits", "batch_size": 256},
    "fit": {"epochs": 1, "progress": False},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    run = RunFolder(tmp_path_factory.mktemp("run"))
    run_recipe(make_recipe(TABLES), run)
    return run


@pytest.fixture(scope="module")
def trained(run: RunFolder) -> Trained:
    return load_trained(run.path)


def test_trained_model_remembers_its_data(trained):
    assert trained.data["name"] == "digits"
    assert trained.classes == tuple("0123456789")
    own = bf.load_dataset("digits")
    data = trained.load_data()
    assert torch.equal(data.test.inputs, own.test.inputs)
    assert (data.mean, data.std) == (own.mean, own.std)


def test_other_data_is_normalised_as_the_models_own(trained):
    other = Trained(trained.path, trained.model, {}, {**trained.data, "mean": [0.2], "std": [2.0]})
    inputs, _ = other.load_data("digits").test[0]
    raw = bf.load_dataset("digits").test.inputs[0]
    torch.testing.assert_close(inputs, (raw - 0.2) / 2.0)


def test_data_of_another_shape_is_refused(trained):
    with pytest.raises(ValueError, match=r"'two_moons' has inputs of shape \(2,\).*\(1, 8, 8\)"):
        trained.load_data("two_moons")


def test_model_saved_by_hand_asks_for_its_data(tmp_path):
    model = bf.convert(bf.build_model("mlp", in_features=2, out_features=2), bf.MeanField())
    path = tmp_path / "hand.safetensors"
    options = {"in_features": 2, "out_features": 2}
    bf.save(model, path, architecture="mlp", options=options)
    trained = load_trained(path)
    assert trained.classes is None
    with pytest.raises(ValueError, match="does not say what the model was trained on"):
        trained.load_data()
    assert trained.load_data("two_moons").name == "two_moons"


def test_on_moves_the_model(trained):
    assert next(trained.on("cpu").model.parameters()).device.type == "cpu"
    assert next(trained.on("auto").model.parameters()).device.type in ("cpu", "cuda")


@pytest.mark.parametrize("shape", [(5, 64), (5, 8, 8), (5, 1, 8, 8)])
def test_read_inputs_shapes_and_normalises_rows(trained, tmp_path, shape):
    raw = bf.load_dataset("digits").test.inputs[:5]
    path = tmp_path / "inputs.npy"
    np.save(path, raw.numpy().reshape(shape))
    expected, _ = trained.load_data().test.__getitems__(range(5))
    torch.testing.assert_close(trained.read_inputs(path), expected)


def test_read_inputs_scales_integer_images(trained, tmp_path):
    path = tmp_path / "inputs.npy"
    np.save(path, np.full((2, 8, 8), 255, dtype=np.uint8))
    mean, std = trained.data["mean"][0], trained.data["std"][0]
    expected = torch.full((2, 1, 8, 8), (1.0 - mean) / std)
    torch.testing.assert_close(trained.read_inputs(path), expected)


def test_read_inputs_refuses_rows_of_another_size(trained, tmp_path):
    path = tmp_path / "inputs.npy"
    np.save(path, np.zeros((5, 63)))
    with pytest.raises(ValueError, match=r"inputs of shape \(63,\)"):
        trained.read_inputs(path)


@pytest.mark.parametrize("header", ["", "a,b,c\n"])
def test_read_numbers_takes_csv_with_and_without_a_header(tmp_path, header):
    path = tmp_path / "numbers.csv"
    path.write_text(f"{header}1,2,3\n4,5.5,-6e1\n\n")
    assert read_numbers(path).tolist() == [[1, 2, 3], [4, 5.5, -60]]


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.csv", "1,2\n3\n", "row 2 of .* must hold 2 numbers, got 3"),
        ("a.csv", "1,2\n3,x\n", "row 2 of .* must hold 2 numbers, got 3, x"),
        ("a.csv", "a,b\n", "holds no rows of numbers"),
        ("a.csv", "", "holds no rows of numbers"),
        ("a.txt", "1,2\n", "must be an .npy or a .csv file, got .txt"),
    ],
)
def test_read_numbers_says_what_is_wrong(tmp_path: Path, name, content, sentence):
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(ValueError, match=sentence):
        read_numbers(path)


def test_read_numbers_unpickles_nothing(tmp_path):
    path = tmp_path / "objects.npy"
    np.save(path, np.array([[object()]]), allow_pickle=True)
    with pytest.raises(ValueError, match="allow_pickle=False"):
        read_numbers(path)
    np.save(path, np.array([["text"]]))
    with pytest.raises(ValueError, match="must hold numbers"):
        read_numbers(path)
    np.save(path, np.zeros(3))
    with pytest.raises(ValueError, match="one row per example"):
        read_numbers(path)
    with pytest.raises(FileNotFoundError, match="there is no file"):
        read_numbers(tmp_path / "nothing.npy")


@pytest.mark.parametrize("kind", [np.uint16, np.uint32, np.int16, np.float16])
def test_read_numbers_takes_every_kind_of_number(tmp_path, kind):
    path = tmp_path / "numbers.npy"
    np.save(path, np.array([[1, 2]], dtype=kind))
    assert read_numbers(path).tolist() == [[1, 2]]
