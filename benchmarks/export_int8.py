"""What weights of eight bits do to an exported network: accuracy, calibration, size, speed.

    python benchmarks/export_int8.py              # some minutes on one core

Mean-field networks trained on Fashion-MNIST for a few epochs, exported in float32 and with
`quantize="int8"`, as the plain network and as moments, and measured on the test set. "mean" is read
by its softmax. Mutual information against MNIST says whether the uncertainty survived: AUROC of
telling its images from those of the test set. Times as in `export_latency.py`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from export_latency import in_turns, show
from provenance import provenance
from torch import Tensor

import bayesify as bf
from bayesify.data import loader
from bayesify.evaluation.detection import auroc
from bayesify.evaluation.scores import (
    accuracy,
    expected_calibration_error,
    negative_log_likelihood,
)
from bayesify_runtime import Runtime

NETWORKS: dict[str, tuple[int, ...]] = {"lenet_300_100": (784,), "lenet_5": (1, 28, 28)}
BATCHES = (1, 32)
AT_ONCE = 1000


def images_of(name: str, part: str, data: Path | None) -> tuple[Tensor, Tensor]:
    images, targets = next(iter(loader(getattr(bf.load_dataset(name, data), part), 10_000)))
    return images, targets


def trained(name: str, epochs: int, data: Path | None) -> Any:
    torch.manual_seed(0)
    model = bf.convert(bf.build_model(name), bf.MeanField(prior_std=0.1, how="local"))
    batches = loader(bf.load_dataset("fashion_mnist", data).train, 128, shuffle=True)
    bf.fit(model, batches, epochs=epochs, beta=0.1, seed=0, progress=False)
    return model


def answers(file: Path, images: Tensor) -> dict[str, Tensor]:
    """Return what a file says of all images, with probabilities by the softmax of a mean."""
    runtime = Runtime(file)
    parts = [runtime(part.numpy()) for part in images.split(AT_ONCE)]
    joined = {
        name: torch.from_numpy(np.concatenate([part[name] for part in parts])) for name in parts[0]
    }
    return {"probs": joined["mean"].softmax(1), **joined}


def rows_of(name: str, epochs: int, seconds: float, data: Path | None) -> list[dict[str, Any]]:
    shape, model = NETWORKS[name], trained(name, epochs, data)
    (images, targets), (others, _) = (
        images_of(each, "test", data) for each in ("fashion_mnist", "mnist")
    )
    images, others = (each.reshape(-1, *shape) for each in (images, others))
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        files: dict[str, Path] = {}
        for what in ("mean", "moments"):
            for kind in (None, "int8"):
                label = f"{what} {kind or 'float32'}"
                files[label] = Path(folder) / f"{what}_{kind}.onnx"
                options: dict[str, Any] = {"what": what, "quantize": kind}
                bf.export(model, files[label], example_inputs=images[:64], **options)
        times = {batch: in_turns(files, shape, batch, seconds) for batch in BATCHES}
        for label, file in files.items():
            found, unknown = answers(file, images), answers(file, others)
            row: dict[str, Any] = {
                "network": name,
                "file": label,
                "bytes": file.stat().st_size,
                "accuracy": round(accuracy(found["probs"], targets), 4),
                "nll": round(negative_log_likelihood(found["probs"], targets), 4),
                "ece": round(expected_calibration_error(found["probs"], targets), 4),
            }
            if "mutual_information" in found:
                known, strange = found["mutual_information"], unknown["mutual_information"]
                row["auroc_mnist"] = round(auroc(known, strange), 4)
                row["least_variance"] = float(f"{float(found['variance'].min()):.3g}")
            row |= {f"ms_batch_{batch}": round(times[batch][label], 4) for batch in BATCHES}
            rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results/export/int8_cpu.json"))
    parser.add_argument("--only", default=",".join(NETWORKS))
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0, help="of timing for each file")
    parser.add_argument("--data", type=Path, help="where data sets lie; BAYESIFY_DATA if absent")
    wanted = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    for name in wanted.only.split(","):
        found = rows_of(name, wanted.epochs, wanted.seconds, wanted.data)
        rows += found
        show(found)
    report = {"provenance": provenance(__file__), "epochs": wanted.epochs, "rows": rows}
    wanted.out.parent.mkdir(parents=True, exist_ok=True)
    wanted.out.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
