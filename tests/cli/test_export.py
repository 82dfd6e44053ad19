import numpy as np

import bayesify as bf
from bayesify.exporting import Runtime
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
