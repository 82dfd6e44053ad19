"""A LeNet-5 and its exported file, made once: an export takes seconds."""

from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch

import bayesify as bf
from bayesify.exporting import export

NOTE = {
    "classes": [str(digit) for digit in range(10)],
    "preprocessing": {"mean": [0.13], "std": [0.31]},
    "trained_on": "digits",
}


@pytest.fixture(autouse=True)
def seeded_noise() -> None:
    """Let every file of samples that a test opens draw the same noise in every run."""
    onnxruntime.set_seed(0)


@pytest.fixture(scope="session")
def lenet(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """Return a converted LeNet-5 and the .onnx file of its moments."""
    torch.manual_seed(0)
    model = bf.convert(bf.build_model("lenet_5"), bf.MeanField(initial_std=0.05))
    path = tmp_path_factory.mktemp("lenet") / "model.onnx"
    export(
        model,
        path,
        example_inputs=torch.randn(3, 1, 28, 28),
        likelihood="classification",
        note=NOTE,
        calibration={"temperature": 1.5},
    )
    return model, path
