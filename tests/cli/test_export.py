import numpy as np
import pytest

import bayesify as bf
from bayesify.data import loader
from bayesify.exporting import Runtime, read_manifest
from bayesify.recipes.trained import load_trained


def test_a_file_is_written_that_predicts_as_the_run_does(invoke, run_folder, tmp_path):
    out = tmp_path / "model.onnx"
    result = invoke("export", run_folder, "--out", out, "--what", "moments")
    assert result.exit_code == 0, result.output
    assert "probs" in result.output
    runtime, trained = Runtime(out), load_trained(run_folder)
    part = trained.load_data().test
    inputs, _ = part.__getitems__(range(3))
    expected = bf.predict(trained.model, inputs, by="moments").probs.numpy()
    stored = part.inputs[:3].numpy()
    # Float32 rounding, once of probabilities and once more of the normalisation.
    np.testing.assert_allclose(runtime(inputs.numpy())["probs"], expected, atol=1e-5)
    np.testing.assert_allclose(runtime(runtime.normalise(stored))["probs"], expected, atol=1e-5)
    assert runtime.manifest["classes"] == list(trained.classes)


def test_wrong_choices_are_answered_by_a_sentence(invoke, run_folder, tmp_path):
    result = invoke("export", run_folder, "--out", tmp_path / "model.bin")
    assert result.exit_code == 2
    assert "must end in .onnx or .pt2" in result.output
    result = invoke("export", run_folder, "--out", tmp_path / "m.onnx", "--what", "median")
    assert result.exit_code == 2
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("what", "way"), [("moments", "moments"), ("mean", "mean")])
def test_the_file_says_how_well_its_way_predicts(invoke, run_folder, tmp_path, what, way):
    out = tmp_path / "model.onnx"
    result = invoke("export", run_folder, "--out", out, "--what", what)
    assert result.exit_code == 0, result.output
    trained = load_trained(run_folder)
    test = trained.load_data().test
    scores = bf.evaluate(trained.model, loader(test, 256), by=way, progress=False).scores
    found = read_manifest(out)["calibration"]
    assert (found["data"], found["part"], found["num_examples"]) == ("digits", "test", len(test))
    for name in ("accuracy", "nll", "ece"):
        assert found[name] == pytest.approx(scores[name], rel=1e-6)
        assert f"{name} {scores[name]:.4f}" in " ".join(result.output.split())
    # The figures are those of the file: its own answers give the same accuracy.
    stored = test.inputs.numpy()
    runtime = Runtime(out)
    answer = runtime(runtime.normalise(stored))
    predicted = answer["probs" if what == "moments" else "mean"].argmax(1)
    assert found["accuracy"] == pytest.approx(float((predicted == test.targets.numpy()).mean()))


def test_fewer_examples_are_measured_or_none(invoke, run_folder, tmp_path):
    out = tmp_path / "model.onnx"
    for number, expected in ((50, 50), (0, None)):
        arguments = ["--out", out, "--what", "mean", "--num-measured", number]
        assert invoke("export", run_folder, *arguments).exit_code == 0
        found = read_manifest(out)["calibration"]
        assert (found and found["num_examples"]) == expected
    result = invoke("export", run_folder, "--out", out, "--num-measured", -1)
    assert result.exit_code == 2
    assert "must be 0 or more" in result.output


def test_what_is_measured_follows_the_rules_of_the_file(invoke, run_folder, tmp_path):
    found = {}
    for rules in ("exact", "taylor"):
        out = tmp_path / f"{rules}.onnx"
        assert invoke("export", run_folder, "--out", out, "--rules", rules).exit_code == 0
        manifest = read_manifest(out)
        assert manifest["rules"] == rules
        found[rules] = manifest["calibration"]
    # Both are of the same examples, by other rules.
    assert found["exact"]["num_examples"] == found["taylor"]["num_examples"]
    assert found["exact"]["nll"] != found["taylor"]["nll"]
    result = invoke("export", run_folder, "--out", tmp_path / "m.onnx", "--rules", "second")
    assert result.exit_code == 2
    assert "got 'second'" in result.output
    assert not (tmp_path / "m.onnx").exists()
