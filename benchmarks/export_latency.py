"""What an exported network costs to run: moments against the plain network and against samples.

    python benchmarks/export_latency.py           # about ten minutes on one core

Files of ONNX Runtime on one thread of a CPU. "mean" is the plain network, "moments" one pass of
means and variances by the exact rules, "taylor" by the first-order ones, "unit scales" the moments
of a network with one scale for each output unit, "samples" thirty networks drawn inside one file;
"30 passes" is thirty times the time of the mean, what drawing outside the file would take at least.
Networks are untrained: what they cost does not depend on their weights.

The pruned network is a LeNet-300-100 trained on MNIST for a few epochs of which `compress` keeps
five weights in a hundred, those of the largest |mean| / std, and the units that they leave alive;
these are trained for half as many epochs again.

Medians of the process's own time, all files of a network in turns; each is run once untimed before
every timed call, so that its weights are as near as they will come.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from provenance import provenance
from torch import nn

import bayesify as bf
from bayesify.data import loader
from bayesify_runtime import Runtime

# Name, shape of an input, sizes of the batch.
NETWORKS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "lenet_300_100": ((784,), (1, 32)),
    "lenet_5": ((1, 28, 28), (1, 32)),
    "resnet_20": ((3, 32, 32), (1, 32)),
    "resnet_18": ((3, 32, 32), (1, 8)),
    "vit_mini": ((3, 32, 32), (1, 32)),
}
SMALL = ("lenet_300_100", "lenet_5")
NUM_SAMPLES, STD, KEEP = 30, 0.02, 0.05
FEWEST_ROUNDS, NUM_FIRST = 5, 2
CLASSES: dict[str, Any] = {"likelihood": "classification"}


def exported(name: str, shape: tuple[int, ...], folder: Path) -> dict[str, Path]:
    """Export a network in every way, and return the files."""
    torch.manual_seed(0)
    net, inputs = bf.build_model(name), torch.randn(4, *shape)
    models = {
        "": bf.convert(net, bf.MeanField(initial_std=STD)),
        "out": bf.convert(net, bf.MeanField(initial_std=STD, scale="out")),
    }
    ways: dict[str, tuple[str, dict[str, Any]]] = {
        "mean": ("", {"what": "mean"}),
        "moments": ("", {"what": "moments"}),
        "taylor": ("", {"what": "moments", "rules": "taylor"}),
        "unit scales": ("out", {"what": "moments"}),
    }
    if name in SMALL:
        ways["samples"] = ("", {"what": "samples", "num_samples": NUM_SAMPLES})
    files = {}
    for way, (scale, options) in ways.items():
        files[way] = folder / f"{name}_{way.replace(' ', '_')}.onnx"
        bf.export(models[scale], files[way], example_inputs=inputs, **CLASSES, **options)
    return files


def session(file: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])


def in_turns(
    files: Mapping[str, Path], shape: tuple[int, ...], batch: int, seconds: float
) -> dict[str, float]:
    """Return the median milliseconds of each file, timed in rounds: a slow moment hits all."""
    sessions = {what: session(file) for what, file in files.items()}
    array = np.random.default_rng(0).normal(size=(batch, *shape)).astype(np.float32)
    times: dict[str, list[float]] = {what: [] for what in files}
    ends = time.process_time() + seconds * len(files)
    num_rounds = 0
    while num_rounds < NUM_FIRST + FEWEST_ROUNDS or time.process_time() < ends:
        num_rounds += 1
        for what, each in sessions.items():
            inputs = {each.get_inputs()[0].name: array}
            each.run(None, inputs)
            began = time.process_time()
            each.run(None, inputs)
            times[what].append(1000 * (time.process_time() - began))
    return {what: statistics.median(each[NUM_FIRST:]) for what, each in times.items()}


def rows_of(name: str, folder: Path, seconds: float) -> list[dict[str, Any]]:
    shape, batches = NETWORKS[name]
    files = exported(name, shape, folder)
    rows = []
    for batch in batches:
        # What takes a thousand times as long would leave few rounds, and cold caches, to the rest.
        slow = {what: file for what, file in files.items() if what == "samples"}
        quick = {what: file for what, file in files.items() if what not in slow}
        found = in_turns(quick, shape, batch, seconds) | in_turns(slow, shape, batch, seconds)
        sizes = {what: file.stat().st_size for what, file in files.items()}
        found[f"{NUM_SAMPLES} passes"] = NUM_SAMPLES * found["mean"]
        for what, milliseconds in found.items():
            rows.append(
                {
                    "network": name,
                    "batch": batch,
                    "file": what,
                    "ms": round(milliseconds, 4),
                    "ratio_to_mean": round(milliseconds / found["mean"], 2),
                    "bytes": sizes.get(what),
                }
            )
    return rows


def pruned_rows(folder: Path, seconds: float, epochs: int, data: Path | None) -> dict[str, Any]:
    mnist = bf.load_dataset("mnist", data)
    torch.manual_seed(0)
    dense = bf.convert(bf.build_model("lenet_300_100"), bf.MeanField(prior_std=0.1, how="local"))
    batches = loader(mnist.train, 128, shuffle=True)
    bf.fit(dense, batches, epochs=epochs, beta=0.1, seed=0, progress=False)
    pruned = bf.compress(dense, keep=KEEP)
    bf.fit(pruned, batches, epochs=max(1, epochs // 2), beta=0.1, seed=0, progress=False)
    models = {"dense": dense, "pruned": pruned}
    test = next(iter(loader(mnist.test, 10_000)))
    images, targets = test[0].flatten(1), test[1].numpy()
    files, rows = {}, []
    for which, model in models.items():
        for what in ("mean", "moments"):
            files[f"{which} {what}"] = file = folder / f"{which}_{what}.onnx"
            bf.export(model, file, example_inputs=images[:4], what=what, **CLASSES)
    for batch in (1, 32):
        for file, milliseconds in in_turns(files, (784,), batch, seconds).items():
            answer = Runtime(files[file])(images.numpy())
            classes = answer.get("probs", answer["mean"]).argmax(1)
            row = {"file": file, "batch": batch, "ms": round(milliseconds, 4)}
            rows.append(
                {
                    **row,
                    "bytes": files[file].stat().st_size,
                    "accuracy": round(float((classes == targets).mean()), 4),
                }
            )
    layers = [layer for layer in models["pruned"].modules() if isinstance(layer, nn.Linear)]
    widths = [layer.out_features for layer in layers]
    return {"keep": KEEP, "epochs": epochs, "units_left": widths, "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results/export/latency_cpu.json"))
    parser.add_argument("--only", default=",".join((*NETWORKS, "pruned")))
    parser.add_argument("--seconds", type=float, default=1.0, help="of timing for each file")
    parser.add_argument("--epochs", type=int, default=5, help="of training the pruned network")
    parser.add_argument("--data", type=Path, help="where data sets lie; BAYESIFY_DATA if absent")
    wanted = parser.parse_args()
    torch.set_num_threads(1)
    names = wanted.only.split(",")
    report: dict[str, Any] = {"provenance": provenance(__file__), "networks": []}
    with tempfile.TemporaryDirectory() as folder:
        for name in (name for name in NETWORKS if name in names):
            report["networks"] += (rows := rows_of(name, Path(folder), wanted.seconds))
            show(rows)
        if "pruned" in names:
            found = pruned_rows(Path(folder), wanted.seconds, wanted.epochs, wanted.data)
            report["pruned"] = found
            show(found["rows"])
    wanted.out.parent.mkdir(parents=True, exist_ok=True)
    wanted.out.write_text(json.dumps(report, indent=2) + "\n")


def show(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)


if __name__ == "__main__":
    main()
