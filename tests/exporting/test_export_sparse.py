"""A sparse network has a small file, and one without its dead units a smaller one."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from torch import nn

import bayesify as bf
from bayesify.exporting import Runtime, export
from bayesify.exporting.sparse_weights import store_sparse

CLASSES: dict[str, Any] = {"likelihood": "classification"}
NUM_IN, NUM_HIDDEN = 120, 80


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(NUM_IN, NUM_HIDDEN),
        nn.ReLU(),
        nn.Linear(NUM_HIDDEN, NUM_HIDDEN),
        nn.ReLU(),
        nn.Linear(NUM_HIDDEN, 4),
    )


def test_pruned_weights_are_stored_by_their_entries(tmp_path):
    pruned = bf.compress(bf.convert(network(), bf.MeanField()), keep=0.05, shrink=False)
    inputs, path = torch.randn(7, NUM_IN), tmp_path / "m.onnx"
    export(pruned, path, example_inputs=inputs, what="mean")
    onnx.checker.check_model(str(path))
    graph = onnx.load(path).graph
    shapes = {tuple(each.dims) for each in graph.sparse_initializer}
    assert {(NUM_HIDDEN, NUM_IN), (NUM_HIDDEN, NUM_HIDDEN)} <= shapes
    # Of 4 bytes for an entry 0.05 * 12 are left; biases, names and the manifest take the rest.
    assert _size(path) < 0.05 * 12 * NUM_HIDDEN * (NUM_IN + NUM_HIDDEN) + 6000
    found = Runtime(path)(inputs.numpy())["mean"]
    expected = bf.revert(pruned)(inputs).detach().numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_a_sparse_subspace_and_a_plain_session(tmp_path):
    model = bf.convert(network(), bf.SparseSubspace(density=0.05))
    inputs, path = torch.randn(3, NUM_IN), tmp_path / "m.onnx"
    export(model, path, example_inputs=inputs, **CLASSES)
    assert onnx.load(path).graph.sparse_initializer
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    probs = session.run(["probs"], {session.get_inputs()[0].name: inputs.numpy()})[0]
    expected = bf.predict(model, inputs, by="moments", **CLASSES).probs.numpy()
    np.testing.assert_allclose(probs, expected, atol=1e-5)


def test_moments_of_a_network_without_its_dead_units_are_small(tmp_path):
    small = bf.compress(bf.convert(network(), bf.MeanField(initial_std=0.05)), keep=0.01)
    inputs, path = torch.randn(5, NUM_IN), tmp_path / "m.onnx"
    export(small, path, example_inputs=inputs, **CLASSES)
    # Two numbers of four bytes for each weight of the whole network.
    assert _size(path) < 0.4 * 2 * 4 * NUM_HIDDEN * (NUM_IN + NUM_HIDDEN)
    units = [layer.out_features for layer in small.modules() if isinstance(layer, nn.Linear)]
    assert min(units[:2]) < NUM_HIDDEN // 2
    graph = onnx.load(path).graph
    tensors = (*graph.initializer, *graph.sparse_initializer)
    # Nothing of the shape of the network that it was.
    assert not any(NUM_HIDDEN in tensor.dims for tensor in tensors)
    found = Runtime(path)(inputs.numpy())["probs"]
    expected = bf.predict(small, inputs, by="moments", **CLASSES).probs.numpy()
    np.testing.assert_allclose(found, expected, atol=1e-5)


def _model(array: np.ndarray) -> Any:
    tensor = onnx.numpy_helper.from_array(array, "w")
    value = onnx.helper.make_tensor_value_info("y", tensor.data_type, array.shape)
    node = onnx.helper.make_node("Identity", ["w"], ["y"])
    graph = onnx.helper.make_graph([node], "g", [], [value], [tensor])
    return onnx.helper.make_model(graph)


def test_only_what_gets_smaller_becomes_sparse():
    values = np.zeros((64, 32), np.float32)
    values[::8, 0] = 3.0
    assert store_sparse(_model(values)) == 1
    assert store_sparse(_model(np.zeros((64, 32), np.float32))) == 1  # no entry at all
    assert store_sparse(_model(values[:8])) == 0  # a kilobyte
    assert store_sparse(_model(np.ones((64, 32), np.float32))) == 0
    assert store_sparse(_model(values.astype(np.int64))) == 0  # no weight
    values[:, :8] = 1.0  # a quarter: 12 bytes of 16 for every four
    assert store_sparse(_model(values)) == 0


def _size(path: Path) -> int:
    return path.stat().st_size
