"""A graph compiled ahead of time says what torch says, at any size of the batch."""

import shutil

import pytest
import torch
from torch import nn

import bayesify as bf
from bayesify.exporting.aot_file import (
    AotRunner,
    aot_content,
    is_aot,
    read_manifest_of_aot,
    require_compiler,
)
from bayesify.exporting.folding import FoldedNetwork, WeightMoments
from bayesify.exporting.graphs import MomentsGraph
from bayesify.exporting.torch_file import torch_content, trace

HAS_COMPILER = any(map(shutil.which, ("g++", "c++", "clang++")))


@pytest.mark.skipif(not HAS_COMPILER, reason="there is no C++ compiler")
def test_compiled_moments_agree_with_predict(tmp_path):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    model = bf.convert(net, bf.MeanField(initial_std=0.3)).eval()
    likelihood = bf.GaussianRegression(0.5)
    folded = FoldedNetwork(model, WeightMoments, None)
    graph = MomentsGraph(folded, likelihood.requires_grad_(False), torch.zeros(2, 2))
    program = trace(graph, [torch.randn(2, 3)], [True])
    path = tmp_path / "model.pt2"
    path.write_bytes(aot_content(program, {"what": "moments"}))
    run = AotRunner(path.read_bytes())
    for size in (1, 2, 9):
        inputs = torch.randn(size, 3)
        found = run([inputs])
        expected = bf.predict(model, inputs, by="moments", likelihood=likelihood)
        torch.testing.assert_close(found["mean"], expected.mean)
        torch.testing.assert_close(found["variance"], expected.epistemic)
    assert is_aot(path)
    assert read_manifest_of_aot(path) == {"what": "moments"}
    path.write_bytes(torch_content(program, {"what": "moments"}))
    assert not is_aot(path)
    with pytest.raises(ValueError, match="holds no manifest"):
        read_manifest_of_aot(path)


def test_a_missing_compiler_is_named(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(RuntimeError, match="needs a C\\+\\+ compiler"):
        require_compiler()


@pytest.mark.skipif(not HAS_COMPILER, reason="there is no C++ compiler")
def test_export_writes_a_compiled_package_and_its_manifest(tmp_path):
    model = bf.convert(nn.Linear(3, 2), bf.MeanField(initial_std=0.3)).eval()
    path = tmp_path / "model.pt2"
    bf.export(model, path, example_inputs=torch.randn(2, 3), likelihood="classification", aot=True)
    assert is_aot(path)
    assert bf.read_manifest(path)["what"] == "moments"


def test_code_needs_a_file_that_can_hold_it(tmp_path):
    model = bf.convert(nn.Linear(3, 2), bf.MeanField()).eval()
    options = {"example_inputs": torch.randn(2, 3), "likelihood": "classification", "aot": True}
    with pytest.raises(ValueError, match=r"aot=True needs a \.pt2 file"):
        bf.export(model, tmp_path / "model.onnx", **options)
    assert not list(tmp_path.iterdir())
