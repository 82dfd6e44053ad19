"""A file says what it is, and runs where there is no torch."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

import bayesify as bf
import bayesify_runtime
from bayesify.data import Normalise
from bayesify.exporting import Runtime, read_manifest

WITHOUT_TORCH = """
import sys

class Forbidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "bayesify"):
            raise ImportError(f"{name} must not be needed")

sys.meta_path.insert(0, Forbidden())
import numpy as np
from bayesify_runtime import Runtime

runtime = Runtime(sys.argv[1])
np.save(sys.argv[3], runtime(np.load(sys.argv[2]))["probs"])
assert not {"torch", "bayesify"} & set(sys.modules)
"""


def test_runtime_needs_no_torch(lenet, tmp_path):
    _, path = lenet
    images = np.random.default_rng(0).normal(size=(2, 1, 28, 28)).astype(np.float32)
    np.save(tmp_path / "images.npy", images)
    files = [str(path), str(tmp_path / "images.npy"), str(tmp_path / "probs.npy")]
    source = str(Path(bayesify_runtime.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, *files],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": source},
    )
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(np.load(files[2]), Runtime(path)(images)["probs"])


def test_manifest_travels_inside_the_file(lenet):
    _, path = lenet
    manifest = read_manifest(path)
    assert manifest == Runtime(path).manifest
    assert (manifest["what"], manifest["task"]) == ("moments", "classification")
    assert manifest["library"] == bf.__version__
    assert manifest["method"] == bf.MeanField(initial_std=0.05).to_dict()
    expected = {"name": "images", "shape": ["batch", 1, 28, 28], "dtype": "float32"}
    assert manifest["inputs"] == [expected]
    assert manifest["outputs"][2] == {"name": "probs", "shape": ["batch", 10], "dtype": "float32"}
    assert manifest["num_random_weights"] == 430500
    assert manifest["classes"][3] == "3"
    assert manifest["calibration"] == {"temperature": 1.5}
    assert manifest["note"] == {"trained_on": "digits"}


def test_file_holds_no_folder_of_this_machine(lenet):
    _, path = lenet
    content = path.read_bytes()
    for folder in (Path(torch.__file__).parent, Path(bf.__file__).parent):
        assert str(folder).encode() not in content
    batch = onnx.load(path).graph.input[0].type.tensor_type.shape.dim[0]
    assert batch.dim_param == "batch"


def test_images_are_normalised_as_in_training(lenet):
    _, path = lenet
    runtime, normalise = Runtime(path), Normalise((0.13,), (0.31,))
    pixels = np.random.default_rng(0).integers(0, 256, (2, 1, 28, 28), dtype=np.uint8)
    for images in (pixels, (pixels / 255.0).astype(np.float32)):
        expected = normalise(torch.from_numpy(images)).numpy()
        np.testing.assert_allclose(runtime.normalise(images), expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="images must have shape"):
        runtime.normalise(np.zeros((2, 3, 28, 28)))


def test_wrong_inputs_are_refused_by_name(lenet):
    _, path = lenet
    runtime = Runtime(path)
    images = np.zeros((2, 1, 28, 28), np.float32)
    by_name = runtime(images=images)
    assert np.array_equal(by_name["probs"], runtime(images)["probs"])
    with pytest.raises(ValueError, match=r"input images must have shape \['batch', 1, 28, 28\]"):
        runtime(images[:, 0])
    with pytest.raises(TypeError, match="must be float32, got complex"):
        runtime(images.astype(np.complex64))
    with pytest.raises(TypeError, match=r"takes 1 inputs \(images\)"):
        runtime(images, images)
    assert runtime(images[:0])["probs"].shape == (0, 10)


def test_another_file_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no file"):
        Runtime(tmp_path / "nothing.onnx")
    (tmp_path / "m.onnx").write_bytes(b"no such thing")
    with pytest.raises(ValueError, match="cannot be run as an ONNX file"):
        Runtime(tmp_path / "m.onnx")
    value = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1])
    out = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1])
    node = onnx.helper.make_node("Relu", ["x"], ["y"])
    graph = onnx.helper.make_graph([node], "g", [value], [out])
    opset = [onnx.helper.make_opsetid("", 20)]
    model = onnx.helper.make_model(graph, opset_imports=opset, ir_version=10)
    onnx.save(model, tmp_path / "foreign.onnx")
    with pytest.raises(ValueError, match="holds no manifest"):
        Runtime(tmp_path / "foreign.onnx")
