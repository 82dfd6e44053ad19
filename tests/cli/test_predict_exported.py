"""`bayesify predict model.onnx`: the table of an exported file is the table of its run."""

import csv
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import bayesify as bf


@pytest.fixture(scope="module")
def exported(tmp_path_factory, invoke, run_folder) -> Path:
    out = tmp_path_factory.mktemp("exported") / "model.onnx"
    result = invoke("export", run_folder, "--out", out)
    assert result.exit_code == 0, result.output
    return out


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def assert_same_table(found: list[dict[str, str]], expected: list[dict[str, str]]) -> None:
    assert len(found) == len(expected) > 0
    assert list(found[0]) == list(expected[0])
    for name in found[0]:
        left, right = ([row[name] for row in each] for each in (found, expected))
        if name in ("predicted", "target"):
            assert left == right
        else:
            # Float32 rounding of probabilities, and of entropies of up to log 10.
            np.testing.assert_allclose(
                np.array(left, float), np.array(right, float), atol=1e-5, err_msg=name
            )


def test_table_of_a_file_is_that_of_its_run(invoke, run_folder, exported, tmp_path):
    outs = [tmp_path / "file.csv", tmp_path / "run.csv"]
    result = invoke("predict", exported, "--batch-size", 100, "--out", outs[0])
    assert result.exit_code == 0, result.output
    assert "least sure of 360" in result.stdout
    assert "360 predictions written to" in result.stdout
    assert invoke("predict", run_folder, "--by", "moments", "--out", outs[1]).exit_code == 0
    assert_same_table(rows(outs[0]), rows(outs[1]))


@pytest.mark.parametrize("suffix", [".npy", ".csv", ".npz"])
def test_a_file_of_inputs_is_normalised_as_in_training(invoke, exported, tmp_path, suffix):
    raw = bf.load_dataset("digits").test.inputs[:6].numpy()
    path = tmp_path / f"inputs{suffix}"
    if suffix == ".npz":
        np.savez(path, inputs=raw)
    elif suffix == ".npy":
        np.save(path, raw)
    else:
        np.savetxt(path, raw.reshape(6, -1), delimiter=",")
    outs = [tmp_path / "file.csv", tmp_path / "set.csv"]
    for data, out in zip((path, "digits"), outs, strict=True):
        result = invoke("predict", exported, "--data", data, "--out", out)
        assert result.exit_code == 0, result.output
    expected = [{key: row[key] for key in row if key != "target"} for row in rows(outs[1])[:6]]
    assert_same_table(rows(outs[0]), expected)


def test_the_command_without_torch_gives_the_same_table(invoke, exported, tmp_path):
    np.save(tmp_path / "inputs.npy", bf.load_dataset("digits").test.inputs[:4].numpy())
    out = tmp_path / "typer.csv"
    assert (
        invoke("predict", exported, "--data", tmp_path / "inputs.npy", "--out", out).exit_code == 0
    )
    command = [sys.executable, "-m", "bayesify_runtime", str(exported)]
    done = subprocess.run(
        [*command, str(tmp_path / "inputs.npy")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == out.read_text().splitlines()
    done = subprocess.run([*command, "none.npy"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "Error: there is no file none.npy\n"


def test_numbers_have_an_interval_and_several_inputs_a_name(invoke, tmp_path):
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 1)

        def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
            return self.layer(left) + self.layer(right)

    model = bf.convert(Sum(), bf.MeanField(initial_std=0.3))
    likelihood = bf.GaussianRegression(0.5)
    pair = torch.randn(5, 2), torch.randn(5, 2)
    bf.export(model, tmp_path / "sum.onnx", example_inputs=pair, likelihood=likelihood)
    np.savez(tmp_path / "pair.npz", left=pair[0], right=pair[1])
    arguments = ["--data", tmp_path / "pair.npz", "--out", tmp_path / "sum.csv"]
    result = invoke("predict", tmp_path / "sum.onnx", *arguments)
    assert result.exit_code == 0, result.output
    expected = bf.predict(model, pair, by="moments", likelihood=likelihood)
    low, high = expected.interval(0.95)
    found = rows(tmp_path / "sum.csv")
    parts = {"mean": expected.mean, "std": expected.std, "low_95": low, "high_95": high}
    for name, part in parts.items():
        column = [float(row[name]) for row in found]
        np.testing.assert_allclose(column, part[:, 0].numpy(), rtol=1e-4, atol=1e-6)
    np.save(tmp_path / "one.npy", pair[0].numpy())
    result = invoke("predict", tmp_path / "sum.onnx", "--data", tmp_path / "one.npy")
    assert result.exit_code == 2
    assert "give an .npz file with the arrays left, right" in result.stderr
    assert "data must be named" in invoke("predict", tmp_path / "sum.onnx").stderr


def test_a_file_of_means_has_no_ignorance(invoke, run_folder, tmp_path):
    path, outs = tmp_path / "mean.onnx", [tmp_path / "file.csv", tmp_path / "run.csv"]
    assert invoke("export", run_folder, "--out", path, "--what", "mean").exit_code == 0
    assert invoke("predict", path, "--out", outs[0]).exit_code == 0
    assert invoke("predict", run_folder, "--by", "mean", "--out", outs[1]).exit_code == 0
    assert_same_table(rows(outs[0]), rows(outs[1]))


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--by", "mean"], "--by cannot be chosen"),
        (["--num-samples", 3], "--num-samples cannot be chosen"),
        (["--data", "missing.npy"], "there is no file missing.npy"),
        (["--data", "two_moons"], "has inputs of shape (2,), but the model takes"),
        (["--batch-size", 0], "batch_size must be at least 1"),
    ],
)
def test_what_a_file_cannot_do_is_said_in_a_sentence(invoke, exported, flags, sentence):
    result = invoke("predict", exported, *flags)
    assert result.exit_code == 2
    assert sentence in result.stderr


def test_other_files_are_refused(invoke, tmp_path):
    assert "there is no file" in invoke("predict", tmp_path / "none.onnx").stderr
    (tmp_path / "m.onnx").write_bytes(b"nothing")
    assert "cannot be run as an ONNX file" in invoke("predict", tmp_path / "m.onnx").stderr
    assert "torch.export.load" in invoke("predict", tmp_path / "m.pt2").stderr
