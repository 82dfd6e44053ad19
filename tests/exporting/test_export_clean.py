"""Transformers run where there are numpy and ONNX Runtime, and nothing else of ours or of torch."""

import importlib.util
import subprocess
import venv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bayesify as bf

SHOWN = ("numpy", "numpy.libs", "onnxruntime", "bayesify_runtime")
OF_CLASSES = ("probs", "entropy", "expected_entropy", "mutual_information")
# Rounding of float32 in sums over 256 points and in entropies of up to log C.
ROUNDING = 1e-5
ALONE = """
import importlib.util, sys

for name in ("torch", "bayesify", "onnx", "transformers"):
    assert importlib.util.find_spec(name) is None, name
import numpy as np
from bayesify_runtime import Runtime

runtime = Runtime(sys.argv[1])
np.savez(sys.argv[3], **runtime(**np.load(sys.argv[2])))
"""


@pytest.fixture(scope="module")
def clean_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the interpreter of an environment in which only the packages of SHOWN exist."""
    folder = tmp_path_factory.mktemp("clean")
    venv.EnvBuilder(with_pip=False, symlinks=True).create(folder)
    (packages,) = folder.glob("lib/python*/site-packages")
    for name in SHOWN:
        place = _place(name)
        if place is not None:
            (packages / name).symlink_to(place, target_is_directory=True)
    return folder / "bin" / "python"


def _place(name: str) -> Path | None:
    """Return the folder of a package; numpy.libs, which is none, lies beside numpy or nowhere."""
    top = name.split(".")[0]
    spec = importlib.util.find_spec(top)
    assert spec is not None, name
    assert spec.origin is not None, name
    place = Path(spec.origin).resolve().parent.with_name(name)
    return place if place.is_dir() else None


def vision_transformer() -> tuple[Any, dict[str, torch.Tensor]]:
    net = bf.build_model("vit_tiny", image_size=32, depth=2, num_classes=10)
    # From the second block on all is uncertain: the first one's mean is computed as it was.
    method = bf.PartialBayes(
        0.2, score="magnitude", where="blocks.1.*", initial_std=0.02, scope="layer"
    )
    return bf.convert(net, method), {"images": torch.randn(4, 3, 32, 32)}


def language_model() -> tuple[Any, dict[str, torch.Tensor]]:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=30,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=20,
        num_labels=3,
        initializer_range=0.2,
    )
    net = transformers.BertForSequenceClassification(config)
    mask = torch.ones(4, 6, dtype=torch.long)
    mask[1, 4:] = 0
    inputs = {"input_ids": torch.randint(1, 30, (4, 6)), "attention_mask": mask}
    labels = torch.randint(0, 3, (4,))
    # Scored by its own derivatives, as a classifier from elsewhere is made partly Bayesian.
    method = bf.PartialBayes(0.3, data=[{**inputs, "labels": labels}], initial_std=0.1)
    return bf.convert(net, method), inputs


@pytest.mark.parametrize("make", [vision_transformer, language_model])
def test_transformer_says_the_same_without_torch(clean_python, tmp_path, make):
    torch.manual_seed(0)
    model, inputs = make()
    path = tmp_path / "model.onnx"
    bf.export(model, path, example_inputs=inputs, likelihood="classification", what="moments")
    for size in (1, 3, 7):
        rows = torch.arange(size) % 4
        batch = {name: tensor[rows] for name, tensor in inputs.items()}
        np.savez(tmp_path / "in.npz", **{name: each.numpy() for name, each in batch.items()})
        found = run_alone(clean_python, path, tmp_path)
        expected = bf.predict(model, batch, by="moments", likelihood="classification")
        for name in OF_CLASSES:
            reference = getattr(expected, name).numpy()
            np.testing.assert_allclose(found[name], reference, rtol=0, atol=ROUNDING, err_msg=name)
        assert float(expected.mutual_information.max()) > 20 * ROUNDING  # or nothing was compared
    command = [clean_python, "-I", "-m", "bayesify_runtime", path, tmp_path / "in.npz"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert len(done.stdout.splitlines()) == 1 + 7


def run_alone(python: Path, path: Path, folder: Path) -> dict[str, np.ndarray]:
    files = [path, folder / "in.npz", folder / "out.npz"]
    # -I: neither this folder nor PYTHONPATH shows what is installed here.
    command = [python, "-I", "-c", ALONE, *files]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(np.load(files[2]))
