"""Time and memory of sparse subspaces over those of the dense posterior and the plain network.

    python benchmarks/sparse_subspace.py       # about a minute on one core

Time: a training step (forward, ELBO, backward, SGD with momentum) and a forward pass at the mean
weights, of dense networks on random inputs; "dense kernels" multiplies whole matrices, "compressed"
live weights only, whatever their number; and of ResNet-20 with weights of every pattern. Medians
of repeats. Memory: bytes of parameters, buffers,
gradients and optimiser state of ResNet-18 over those of a dense posterior, by the sizes of the
tensors.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from provenance import provenance
from torch import Tensor, nn

import bayesify as bf
from bayesify.conversion import sparse_linear

NETWORKS = {"784-300-100-10": (300, 100), "784-1200-1200-10": (1200, 1200)}
DENSITIES, BATCHES, NUM_REPEATS = (0.1, 0.05, 0.01), (32, 256), 15


def milliseconds(call: Callable[[], object]) -> float:
    times = []
    for _ in range(NUM_REPEATS + 2):
        began = time.perf_counter()
        call()
        times.append(1000 * (time.perf_counter() - began))
    return round(statistics.median(times[2:]), 3)


def calls(
    model: nn.Module, inputs: Tensor, targets: Tensor
) -> tuple[Callable[[], None], Callable[[], None]]:
    """Return a training step of a model, and a forward pass at its mean weights."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        nll = F.cross_entropy(model(inputs), targets)
        bf.elbo_loss(nll, model, num_data=60_000).total.backward()
        optimizer.step()

    def forward() -> None:
        with torch.no_grad(), bf.mean_weights(model):
            model(inputs)

    return step, forward


def costs(model: nn.Module, inputs: Tensor, targets: Tensor) -> dict[str, float]:
    step, forward = calls(model, inputs, targets)
    return {"step_ms": milliseconds(step), "forward_ms": milliseconds(forward)}


def time_rows() -> list[dict[str, Any]]:
    rows = []
    sparse_linear.LEAST_WEIGHTS = sparse_linear.LEAST_TRAINED = 0
    for name, hidden in NETWORKS.items():
        torch.manual_seed(0)
        net = bf.build_model("mlp", in_features=784, hidden=hidden)
        for batch in BATCHES:
            data = torch.randn(batch, 784), torch.randint(0, 10, (batch,))
            about: dict[str, Any] = {"network": name, "batch": batch}
            rows.append({**about, "what": "plain", **costs(net, *data)})
            dense = bf.convert(net, bf.MeanField(how="local"))
            rows.append({**about, "what": "dense posterior", **costs(dense, *data)})
            for density in DENSITIES:
                model = bf.convert(net, bf.SparseSubspace(density, first_dense=False))
                for what, largest in (("dense kernels", 0.0), ("compressed", 1.0)):
                    sparse_linear.LARGEST_DENSITY = largest
                    row = {**about, "what": what, "density": density}
                    rows.append({**row, **costs(model, *data)})
    return rows


PATTERNS = ("free", "4x1", "8x8", "filter", "2:4")


def pattern_rows() -> list[dict[str, Any]]:
    """Steps and passes of ResNet-20 with weights of every pattern, over those of the plain one."""
    torch.manual_seed(0)
    net = bf.build_model("resnet_20")
    data = torch.randn(32, 3, 32, 32), torch.randint(0, 10, (32,))
    models: dict[str, nn.Module] = {
        "plain": net,
        "dense, weights drawn": bf.convert(net, bf.MeanField()),
        "dense, outputs drawn": bf.convert(net, bf.MeanField(how="local")),
    }
    for pattern in PATTERNS:
        for how, words in (("sample", "weights drawn"), ("local", "outputs drawn")):
            method = bf.SparseSubspace(0.1, pattern=pattern, how=how)  # pyright: ignore[reportArgumentType]
            models[f"10 %, {pattern}, {words}"] = bf.convert(net, method)
    # In turns: whatever else the machine does then slows all of them alike.
    pairs = {name: calls(model, *data) for name, model in models.items()}
    times: dict[str, list[tuple[float, ...]]] = {name: [] for name in models}
    for _ in range(NUM_REPEATS):
        for name, pair in pairs.items():
            times[name].append(tuple(_milliseconds_once(call) for call in pair))
    ratios = {
        name: [
            statistics.median(
                mine[part] / plain[part] for mine, plain in zip(taken, times["plain"], strict=True)
            )
            for part in (0, 1)
        ]
        for name, taken in times.items()
    }
    return [
        {"what": name, "step_ratio": round(step, 3), "forward_ratio": round(forward, 3)}
        for name, (step, forward) in ratios.items()
    ]


def _milliseconds_once(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return 1000 * (time.perf_counter() - began)


def num_bytes(model: nn.Module, optimizer: str) -> int:
    inputs, targets = torch.randn(2, 3, 32, 32), torch.tensor([0, 1])
    nll = F.cross_entropy(model(inputs), targets)
    bf.elbo_loss(nll, model, num_data=50_000).total.backward()
    scales = [value for name, value in model.named_parameters() if name.endswith(".rho")]
    ids = set(map(id, scales))
    others = [value for value in model.parameters() if id(value) not in ids]
    means = torch.optim.Adam(others)
    if optimizer == "sgd":
        means = torch.optim.SGD(others, lr=1e-3, momentum=0.9)
    kept: list[Tensor] = [*model.parameters(), *model.buffers()]
    kept += [value.grad for value in model.parameters() if value.grad is not None]
    for each in (means, torch.optim.Adam(scales)):
        each.step()
        states = [value for state in each.state.values() for value in state.values()]
        kept += [value for value in states if isinstance(value, Tensor)]
    return sum(value.numel() * value.element_size() for value in kept)


def memory_rows() -> list[dict[str, Any]]:
    net = bf.build_model("resnet_18")
    rows = []
    for optimizer in ("sgd", "adam"):
        dense = num_bytes(bf.convert(net, bf.MeanField()), optimizer)
        for density in (0.1, 0.05):
            sparse = num_bytes(bf.convert(net, bf.SparseSubspace(density)), optimizer)
            ratio = round(sparse / dense, 4)
            rows.append({"optimizer": optimizer, "density": density, "ratio_to_dense": ratio})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results/ssvi/cost_cpu.json"))
    wanted = parser.parse_args()
    torch.set_num_threads(1)
    report = {"provenance": provenance(__file__), "memory": memory_rows()}
    report |= {"patterns": pattern_rows(), "time": time_rows()}
    wanted.out.parent.mkdir(parents=True, exist_ok=True)
    wanted.out.write_text(json.dumps(report, indent=2) + "\n")
    for row in (*report["memory"], *report["patterns"], *report["time"]):
        print(", ".join(f"{key} {value}" for key, value in row.items()))


if __name__ == "__main__":
    main()
