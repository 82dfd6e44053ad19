"""Weights of eight bits: a quarter of the size, nearly the same answers, no negative variance."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

import bayesify as bf
from bayesify.exporting import ExportError, Runtime, export
from bayesify.exporting.agreement import QUANTISED_TOLERANCE

CLASSES: dict[str, Any] = {"likelihood": "classification"}
INT8 = onnx.TensorProto.INT8


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(8 * 8 * 8, 64),
        nn.ReLU(),
        nn.Linear(64, 5),
    )


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, dict[str, Path]]:
    """Return a model and its moments in float32 and in eight bits."""
    model = bf.convert(network(), bf.MeanField(initial_std=0.03))
    folder, images = tmp_path_factory.mktemp("int8"), torch.randn(6, 1, 20, 20)
    paths = {kind: folder / f"{kind}.onnx" for kind in ("float32", "int8")}
    for kind, path in paths.items():
        quantize: Any = "int8" if kind == "int8" else None
        export(model, path, example_inputs=images, quantize=quantize, **CLASSES)
    return model, paths


def constants(path: Path) -> dict[str, onnx.TensorProto]:
    return {tensor.name: tensor for tensor in onnx.load(path).graph.initializer}


def test_moments_of_eight_bits_are_nearly_those_of_predict(files):
    model, paths = files
    images = torch.randn(50, 1, 20, 20)
    runtime = Runtime(paths["int8"])
    found = runtime(images.numpy())
    expected = bf.predict(model, images, by="moments", **CLASSES)
    # Two layers of products of 7 bits; a rounding is 1/64 of the largest entry and they average.
    assert np.abs(found["probs"] - expected.probs.numpy()).max() < 0.03
    difference = found["mutual_information"] - expected.mutual_information.numpy()
    assert np.abs(difference).max() < 0.1 * float(expected.mutual_information.max())
    assert found["variance"].min() > 0.0
    assert runtime.manifest["quantized"] == "int8"
    assert runtime.manifest["what"] == "moments"
    assert "quantized" not in Runtime(paths["float32"]).manifest


def test_every_weight_and_variance_is_stored_in_eight_bits(files):
    _, paths = files
    sizes = {kind: path.stat().st_size for kind, path in paths.items()}
    # Squares of weights are stored beside weights and variances, three bytes for eight.
    assert sizes["int8"] < 0.6 * sizes["float32"]
    for name, tensor in constants(paths["int8"]).items():
        is_exact = name == "reading.points" or list(tensor.dims) == [32, 32]
        if np.prod(tensor.dims) >= 256 and not is_exact:
            assert tensor.data_type == INT8, name


def test_a_product_that_orders_entries_stays_exact(files):
    _, paths = files
    ordering = [each for each in constants(paths["int8"]).values() if list(each.dims) == [32, 32]]
    assert ordering
    assert all(each.data_type == onnx.TensorProto.FLOAT for each in ordering)


def test_plain_onnx_runtime_gives_the_same(files):
    _, paths = files
    session = onnxruntime.InferenceSession(paths["int8"], providers=["CPUExecutionProvider"])
    images = np.random.default_rng(0).normal(size=(3, 1, 20, 20)).astype(np.float32)
    probs = session.run(["probs"], {session.get_inputs()[0].name: images})[0]
    np.testing.assert_allclose(probs, Runtime(paths["int8"])(images)["probs"], atol=1e-5)


def test_variances_of_units_of_different_size_survive(tmp_path):
    # One scale for all units would round the small one to 0.
    model = bf.convert(nn.Linear(64, 8, bias=False), bf.MeanField())
    with torch.no_grad():
        rho = model.weight_posterior.rho
        rho[0] = -12.0
        rho[1:] = 0.0
    inputs = torch.randn(4, 64)
    export(
        model, tmp_path / "m.onnx", example_inputs=inputs, quantize="int8", likelihood=nn.MSELoss()
    )
    found = Runtime(tmp_path / "m.onnx")(inputs.numpy())["variance"]
    expected = bf.predict(model, inputs, by="moments", likelihood=nn.MSELoss()).variance.numpy()
    assert expected[:, 0].max() < 1e-6 * expected[:, 1].min()
    np.testing.assert_allclose(found, expected, rtol=0.05)


def test_embeddings_are_stored_in_eight_bits(tmp_path):
    net = nn.Sequential(nn.Embedding(50, 16), nn.Flatten(), nn.Linear(48, 3))
    model = bf.convert(net, bf.MeanField(initial_std=0.02))
    words = torch.randint(0, 50, (6, 3))
    export(model, tmp_path / "m.onnx", example_inputs=words, what="mean", quantize="int8")
    kinds = {tuple(each.dims): each.data_type for each in constants(tmp_path / "m.onnx").values()}
    assert kinds[(50, 16)] == INT8
    found = Runtime(tmp_path / "m.onnx")(words.numpy())["mean"]
    expected = bf.revert(model)(words).detach().numpy()
    assert np.abs(found - expected).max() < 0.05 * np.abs(expected).max()


def test_a_network_that_eight_bits_ruin_leaves_no_file(tmp_path):
    net = nn.Linear(64, 8, bias=False)
    with torch.no_grad():
        net.weight[:, 0] = 1e4  # all others are rounded to 0
    inputs = torch.randn(4, 64)
    inputs[:, 0] = 0.0
    model = bf.convert(net, bf.Deterministic())
    with pytest.raises(ExportError, match=f"at most {QUANTISED_TOLERANCE:g} is allowed"):
        export(model, tmp_path / "m.onnx", example_inputs=inputs, what="mean", quantize="int8")
    assert not list(tmp_path.iterdir())


REFUSED = {
    "pt2": ("m.pt2", {"quantize": "int8"}, "needs an .onnx file"),
    "name": ("m.onnx", {"quantize": "int4"}, "must be 'int8' or None, got 'int4'"),
    "samples": ("m.onnx", {"quantize": "int8", "what": "samples"}, "drawn at every call"),
    "rules": ("m.onnx", {"rules": "second"}, "'shared' or 'pooled', got 'second'"),
    "rules of a mean": ("m.onnx", {"rules": "taylor", "what": "mean"}, "rules of moments"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_makes_no_sense_is_refused(tmp_path, case):
    name, options, message = REFUSED[case]
    model = bf.convert(nn.Linear(6, 3), bf.MeanField())
    with pytest.raises(ValueError, match=message):
        export(model, tmp_path / name, example_inputs=torch.randn(2, 6), **CLASSES, **options)
    assert not list(tmp_path.iterdir())


def test_rules_are_those_of_the_method_or_those_asked_for(tmp_path):
    torch.manual_seed(0)
    net, inputs = nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 3)), torch.randn(4, 6)
    taylor = bf.convert(net, bf.MomentPropagation(rules="taylor", initial_std=0.5))
    expected = bf.predict(taylor, inputs, by="moments", **CLASSES).probs.numpy()
    path = tmp_path / "m.onnx"
    export(taylor, path, example_inputs=inputs, **CLASSES)
    assert Runtime(path).manifest["rules"] == "taylor"
    np.testing.assert_allclose(Runtime(path)(inputs.numpy())["probs"], expected, atol=1e-5)
    export(taylor, path, example_inputs=inputs, rules="exact", **CLASSES)
    assert Runtime(path).manifest["rules"] == "exact"
    assert np.abs(Runtime(path)(inputs.numpy())["probs"] - expected).max() > 1e-3


def test_logging_is_left_as_it_was(files, caplog):
    assert files
    level = logging.root.level
    assert level == logging.getLogger().level != logging.ERROR
    assert not caplog.records
