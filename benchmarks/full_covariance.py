"""The diagonal rules against a full covariance: time, memory, and what the variances say.

    python benchmarks/full_covariance.py      # some minutes on one core; MNIST

LeNet-5 with mean-field weights, trained on MNIST for three epochs. Cost: a forward pass of moments
and the backward pass of the sum of means and variances, one image at a time, since a full
covariance is of one image, and for the diagonal rules also a batch of 64, per image. "mebibytes" is
how far the process's peak grows, each kind in a process of its own. Agreement: standard
deviations of all logits of 8 test images, clean and with white noise, over those of 2,000 sampled
networks; and the variance of the predicted class, by the diagonal rules, by the full covariance
(activations and pooling to first order) and by sampling, at four signal-to-noise ratios.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from moment_accuracy import sampled_std, trained
from provenance import provenance
from torch import Tensor, nn

import bayesify as bf
from bayesify.conversion.scope import forward_by
from bayesify.data.noisy import noisy
from bayesify.moments import FullMoments, Moments

KINDS = ("plain", "diagonal", "diagonal, batch of 64", "full")
DECIBELS = (-6.0, 1.0, 10.0, 40.0)
EPOCHS = 3
NUM_IMAGES, NUM_SAMPLES, NUM_REPEATS = 8, 2000, 5


def moments_of(model: nn.Module, images: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    """Return means and variances of the outputs."""
    if kind == "full":
        rows = []
        for image in images:
            with forward_by(model, "moments"):
                rows.append(model(FullMoments(image[None])))
        return torch.cat([row.expected for row in rows]), torch.cat([row.variance for row in rows])
    with forward_by(model, "moments"):
        return model(Moments(images, torch.zeros_like(images))).pair()


def cost(path: Path, kind: str) -> dict[str, float]:
    """Return seconds and peak memory of a pass forward and back, per image."""
    model = bf.load(path)
    count = 64 if kind.endswith("64") else 1
    images = torch.randn(count, 1, 28, 28)

    def step() -> None:
        if kind == "plain":
            with bf.mean_weights(model):
                total = model(images).sum()
        else:
            mean, variance = moments_of(model, images, kind.partition(",")[0])
            total = mean.sum() + variance.sum()
        total.backward()

    step()
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here (Linux)
    before = memory("VmRSS")
    seconds = []
    for _ in range(1 if kind == "full" else NUM_REPEATS):
        began = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - began)
    return {"seconds": min(seconds) / count, "mebibytes": memory("VmHWM") - before}


def memory(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{field}:"))


@torch.no_grad()
def agreement(model: nn.Module, data: Any) -> list[dict[str, Any]]:
    """Return, for each ratio of signal to noise, what three ways say of the same images."""
    rows = []
    test = data.test.select(torch.arange(NUM_IMAGES))
    for decibels in (None, *DECIBELS):
        each = test if decibels is None else noisy(test, decibels)
        images, _ = each.__getitems__(list(range(NUM_IMAGES)))
        truth, _ = sampled_std(model, images, NUM_SAMPLES)
        row: dict[str, Any] = {"decibels": decibels}
        chosen = None
        for kind in ("diagonal", "full"):
            mean, variance = moments_of(model, images, kind)
            chosen = mean.argmax(1, keepdim=True) if chosen is None else chosen
            ratio = variance.double().sqrt() / truth
            row[kind] = {
                "median ratio": round(float(ratio.median()), 3),
                "class variance": round(float(variance.gather(1, chosen).mean()), 4),
            }
        assert chosen is not None
        row["sampled class variance"] = round(float(truth.square().gather(1, chosen).mean()), 4)
        rows.append(row)
        print(json.dumps(row), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results/vdp/full_covariance.json"))
    parser.add_argument("--child", nargs=2, metavar=("MODEL", "KIND"), help=argparse.SUPPRESS)
    wanted = parser.parse_args()
    torch.set_num_threads(1)
    if wanted.child:
        print(json.dumps(cost(Path(wanted.child[0]), wanted.child[1])))
        return
    data = bf.load_dataset("mnist")
    model = trained("lenet_5", data, "cpu", epochs=EPOCHS)
    report: dict[str, Any] = {"provenance": provenance(__file__), "cost": {}}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        bf.save(model, path, architecture="lenet_5", options={"in_channels": 1})
        for kind in KINDS:
            command = [sys.executable, __file__, "--child", str(path), kind]
            found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            report["cost"][kind] = json.loads(found)
            print(kind, report["cost"][kind], flush=True)
    report["agreement"] = agreement(model, data)
    wanted.out.parent.mkdir(parents=True, exist_ok=True)
    wanted.out.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
