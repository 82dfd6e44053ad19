"""`bayesify predict`: every prediction in a CSV file, the least sure in the terminal."""

import csv
from pathlib import Path

import numpy as np
import pytest
import torch

import bayesify as bf
from bayesify.cli.predict import prediction_columns
from bayesify.prediction.predictive import ClassificationAccumulator, RegressionPredictive


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_predict_writes_a_row_for_every_example(run_folder, invoke, tmp_path):
    out = tmp_path / "predictions.csv"
    arguments = ["--data", "digits", "--num-samples", 7, "--out", out]
    result = invoke("predict", run_folder, *arguments)
    assert result.exit_code == 0, result.output
    assert "360 predictions written to" in result.stdout
    found = rows(out)
    data = bf.load_dataset("digits").test
    inputs, targets = data.__getitems__(range(len(data)))
    model = bf.load(run_folder / "model.safetensors")
    expected = bf.predict(model, inputs, num_samples=7, seed=0)
    assert [int(row["target"]) for row in found] == targets.tolist()
    assert [int(row["predicted"]) for row in found] == expected.classes.tolist()
    for name in ("entropy", "aleatoric", "epistemic"):
        column = [float(row[name]) for row in found]
        assert column == getattr(expected, name).tolist()
    total = [sum(float(row[f"probability_{digit}"]) for digit in range(10)) for row in found]
    # Ten float32 probabilities, each rounded by at most half a unit in the last place.
    np.testing.assert_allclose(total, 1.0, atol=10 * np.finfo(np.float32).eps)


def test_predict_shows_the_least_sure_first(run_folder, invoke, tmp_path):
    out = tmp_path / "predictions.csv"
    shown = invoke("predict", run_folder, "--num-samples", 3, "--out", out).stdout
    order = sorted(rows(out), key=lambda row: -float(row["entropy"]))
    lines = [line.split("│") for line in shown.splitlines() if line.startswith("│")]
    assert [line[1].strip() for line in lines[:3]] == [row["example"] for row in order[:3]]


@pytest.mark.parametrize("suffix", [".npy", ".csv"])
def test_predict_reads_a_file_of_inputs(run_folder, invoke, tmp_path, suffix):
    raw = bf.load_dataset("digits").test.inputs[:6].flatten(1).numpy()
    path = tmp_path / f"inputs{suffix}"
    np.save(path, raw) if suffix == ".npy" else np.savetxt(path, raw, delimiter=",")
    written = {}
    for name, source in (("file", path), ("set", "digits")):
        out = tmp_path / f"{name}.csv"
        # The mean weights: draws of another number of examples would differ.
        arguments = ["--data", source, "--by", "mean", "--out", out]
        assert invoke("predict", run_folder, *arguments).exit_code == 0
        written[name] = rows(out)
    assert len(written["file"]) == 6
    assert "target" not in written["file"][0]
    for row, same in zip(written["file"], written["set"], strict=False):
        assert float(row["entropy"]) == pytest.approx(float(same["entropy"]), rel=1e-4, abs=1e-6)


def test_predict_says_what_it_cannot_read(run_folder, invoke, tmp_path):
    path = tmp_path / "inputs.npy"
    np.save(path, np.zeros((2, 5)))
    result = invoke("predict", run_folder, "--data", path)
    assert result.exit_code == 2
    assert "has inputs of shape (5,)" in result.stderr
    assert (
        "there is no file missing.npy"
        in invoke("predict", run_folder, "--data", "missing.npy").stderr
    )


def test_columns_of_a_regression_hold_its_interval():
    predictive = RegressionPredictive.build(torch.randn(50, 4, 2), 0.25, "test")
    columns = prediction_columns(predictive, None, torch.zeros(4, 2))
    names = ("target", "mean", "std", "aleatoric", "epistemic", "low_95", "high_95")
    assert list(columns) == ["example", *(f"{name}_{i}" for name in names for i in (0, 1))]
    for low, mean, high in zip(
        columns["low_95_0"], columns["mean_0"], columns["high_95_0"], strict=True
    ):
        assert low < mean < high


def test_columns_name_classes_and_refuse_positions():
    accumulator = ClassificationAccumulator()
    accumulator.update(torch.tensor([[[3.0, 0.0]]]))
    columns = prediction_columns(accumulator.result("test"), ["cat", "dog"], torch.tensor([1]))
    assert (columns["predicted"], columns["target"]) == (["cat"], ["dog"])
    # A target the model has no name for, as in another data set, stays a number.
    columns = prediction_columns(accumulator.result("test"), ["cat", "dog"], torch.tensor([7]))
    assert columns["target"] == [7]
    positions = ClassificationAccumulator()
    positions.update(torch.randn(1, 2, 3, 4, 4))
    with pytest.raises(ValueError, match="one class per example"):
        prediction_columns(positions.result("test"))
