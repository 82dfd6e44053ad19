"""Factors on propagated variances travel into the file."""

from pathlib import Path

import numpy as np
import torch
from torch import nn

import bayesify as bf


def test_an_exported_file_holds_the_factors_of_its_model(tmp_path: Path) -> None:
    torch.manual_seed(0)
    hidden = [nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    model = bf.convert(nn.Sequential(*hidden, nn.Linear(4, 3)), bf.MeanField(initial_std=0.3))
    x = torch.rand(6, 1, 6, 6)
    raw = bf.predict(model, x, by="moments", likelihood="classification")
    bf.correct_moments(model, x, num_samples=200)
    expected = bf.predict(model, x, by="moments", likelihood="classification")
    path = tmp_path / "model.onnx"
    bf.export(model, path, example_inputs=x, likelihood="classification")
    found = bf.Runtime(path)(x.numpy())
    np.testing.assert_allclose(found["probs"], expected.probs.numpy(), atol=1e-5)
    assert np.abs(found["probs"] - raw.probs.numpy()).max() > 1e-4
    assert not any(module._forward_hooks for module in model.modules())
