"""LeNet-5 on MNIST, mean field: accuracy, calibration, and Fashion-MNIST as the unknown.

    python benchmarks/mnist_lenet_5.py --data data --out results/core/mnist_lenet_5.json

Trains a grid of settings on 55,000 images, chooses the one with the lowest nll on the other 5,000
of the training set, and only then measures that one, and a plain network, on the test set.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from provenance import provenance, store

import bayesify as bf
from bayesify.data import loader, split

GRID: list[dict[str, Any]] = [
    {"prior_std": prior_std, "beta": beta, "how": how}
    for prior_std, beta, how in (
        (0.1, 1.0, "sample"),
        (0.1, 0.1, "sample"),
        (0.05, 0.1, "sample"),
        (0.1, 0.01, "sample"),
        (0.05, 0.01, "sample"),
        (0.1, 0.1, "local"),
        (0.05, 0.03, "local"),
    )
]
PLAIN: dict[str, Any] = {"plain": True}


def train(cell: dict[str, Any], data: Path, epochs: int, folder: Path, seed: int) -> None:
    """Train one cell of the grid and write its model and validation row."""
    mnist = bf.load_dataset("mnist", data)
    train_data, val_data = split(mnist.train, 5000, seed=0)
    torch.manual_seed(seed)
    net = bf.build_model("lenet_5")
    options = {key: value for key, value in cell.items() if key in ("prior_std", "how")}
    method = bf.Deterministic() if "plain" in cell else bf.MeanField(**options)
    model = bf.convert(net, method)
    beta = cell.get("beta", 1.0)
    history = bf.fit(
        model,
        loader(train_data, 128, shuffle=True),
        epochs=epochs,
        seed=seed,
        beta=lambda progress: beta * min(2 * progress, 1.0),
        progress=False,
    )
    table = bf.evaluate(model, loader(val_data, 1000), num_samples=30, progress=False)
    folder.mkdir(parents=True, exist_ok=True)
    bf.save(model, folder / "model.safetensors", architecture="lenet_5")
    row = {**cell, "seconds": history.seconds, "validation": table.to_dict()["metrics"]}
    (folder / "row.json").write_text(json.dumps(row))


def measure(folder: Path, data: Path) -> dict[str, Any]:
    """Measure a trained cell on the test set, Fashion-MNIST as the unknown."""
    mnist = bf.load_dataset("mnist", data)
    fashion = bf.load_dataset("fashion_mnist", data).normalised(mnist.mean, mnist.std)
    test, unknown = loader(mnist.test, 1000), loader(fashion.test, 1000)
    model = bf.load(folder / "model.safetensors")
    if torch.cuda.is_available():
        model.cuda()
    torch.manual_seed(0)
    ood = {"fashion_mnist": unknown}
    return bf.evaluate(model, test, ood=ood, num_samples=30, progress=False).to_dict()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path("runs/mnist_lenet_5"))
    parser.add_argument("--cell", type=int, help="train one cell of the grid only")
    arguments = parser.parse_args()
    cells = [*GRID, PLAIN]
    folders = [arguments.folder / f"cell_{index}" for index in range(len(cells))]
    if arguments.cell is not None:
        cell = cells[arguments.cell]
        folder = folders[arguments.cell]
        train(cell, arguments.data, arguments.epochs, folder, arguments.seed)
        return
    began = time.perf_counter()
    command = [sys.executable, __file__, "--data", arguments.data, "--folder", arguments.folder]
    command += ["--epochs", str(arguments.epochs), "--seed", str(arguments.seed), "--cell"]
    at_once = len(cells) if torch.cuda.is_available() else 1
    for start in range(0, len(cells), at_once):
        part = range(start, min(start + at_once, len(cells)))
        jobs = [subprocess.Popen([*command, str(index)]) for index in part]
        if any(job.wait() for job in jobs):
            raise SystemExit("a cell of the grid failed; its error is above")
    rows = [json.loads((folder / "row.json").read_text()) for folder in folders]
    chosen = min(range(len(GRID)), key=lambda index: rows[index]["validation"]["nll"])
    report = {
        **provenance(__file__),
        "seed": arguments.seed,
        "epochs": arguments.epochs,
        "grid": rows,
        "chosen": rows[chosen],
        "test": measure(folders[chosen], arguments.data),
        "test_of_plain_network": measure(folders[-1], arguments.data),
        "wall_seconds": round(time.perf_counter() - began, 1),
    }
    print(json.dumps(report, indent=2))
    store(arguments.out, report)


if __name__ == "__main__":
    main()
