"""Time and memory of sparse subspaces on a GPU: ResNet-18, CIFAR-sized images, bfloat16.

    python benchmarks/sparse_subspace_gpu.py --out results/ssvi/cost_gpu.json    # about 3 minutes

Memory: what the allocator holds after some steps, gradients included and activations gone, over
what it holds for a dense posterior; and the peak of a step. Time: a compiled training step
(forward, ELBO, backward, fused optimisers), median of repeats. Every variant has a process of its
own; they compile side by side and are timed one after the other. Last, a linear layer by the
hardware's own two-of-four product against the dense one, for inference.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from gpu_turns import give_row, in_turn, milliseconds, rows_of
from provenance import provenance
from torch import Tensor, nn

import bayesify as bf

BATCH, NUM_REPEATS, MEMORY_STEPS = 250, 40, 3
DENSITIES = (0.1, 0.05)
METHODS: dict[str, bf.Method] = {
    "plain": bf.Deterministic(),
    "dense, weights drawn": bf.MeanField(how="sample"),
    "dense, outputs drawn": bf.MeanField(how="local"),
    "10 %, weights drawn": bf.SparseSubspace(0.1, how="sample"),
    "10 %, outputs drawn": bf.SparseSubspace(0.1, how="local"),
    "5 %, weights drawn": bf.SparseSubspace(0.05, how="sample"),
    "10 %, blocks 4x1, weights drawn": bf.SparseSubspace(0.1, how="sample", pattern="4x1"),
    "10 %, blocks 8x8, weights drawn": bf.SparseSubspace(0.1, how="sample", pattern="8x8"),
    "10 %, filters, weights drawn": bf.SparseSubspace(0.1, how="sample", pattern="filter"),
    "2:4, weights drawn": bf.SparseSubspace(how="sample", pattern="2:4"),
}
NAMES = tuple(METHODS)


def make_step(model: nn.Module, *, optimizer: str, is_compiled: bool) -> Callable[[], None]:
    scales = [value for name, value in model.named_parameters() if name.endswith(".rho")]
    ids = set(map(id, scales))
    others = [value for value in model.parameters() if id(value) not in ids]
    made: list[torch.optim.Optimizer] = [torch.optim.Adam(others, fused=True)]
    if optimizer == "sgd":
        made = [torch.optim.SGD(others, lr=1e-3, momentum=0.9, fused=True)]
    if scales:
        made.append(torch.optim.Adam(scales, fused=True))
    inputs = torch.randn(BATCH, 3, 32, 32, device="cuda").to(memory_format=torch.channels_last)
    targets = torch.randint(0, 10, (BATCH,), device="cuda")
    forward: Any = torch.compile(model) if is_compiled else model

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            nll = F.cross_entropy(forward(inputs), targets)
        bf.elbo_loss(nll, model, num_data=50_000).total.backward()
        for each in made:
            each.step()
        for each in made:
            each.zero_grad(set_to_none=True)

    return step


def made(method: bf.Method) -> nn.Module:
    torch.manual_seed(0)
    net = bf.build_model("resnet_18").to(memory_format=torch.channels_last)
    return bf.convert(net, method).cuda()


def kept_bytes(method: bf.Method, optimizer: str) -> int:
    """Bytes the allocator holds of parameters, buffers, gradients and optimiser state."""
    gc.collect()
    before = torch.cuda.memory_allocated()
    model = made(method)
    step = make_step(model, optimizer=optimizer, is_compiled=False)
    held = BATCH * (3 * 32 * 32 * 4 + 8)
    for _ in range(MEMORY_STEPS):
        step()
    with torch.autocast("cuda", torch.bfloat16):
        nll = model(torch.zeros(2, 3, 32, 32, device="cuda")).square().mean()
    bf.elbo_loss(nll, model, num_data=50_000).total.backward()
    del nll
    gc.collect()
    torch.cuda.synchronize()
    found = torch.cuda.memory_allocated() - before - held
    del step, model
    return found


def memory_rows() -> list[dict[str, Any]]:
    rows = []
    # The libraries' own workspaces come with the first step, and stay.
    kept_bytes(bf.MeanField(), "sgd")
    for optimizer in ("sgd", "adam"):
        dense = kept_bytes(bf.MeanField(), optimizer)
        rows.append({"optimizer": optimizer, "density": 1.0, "bytes": dense})
        for density in DENSITIES:
            found = kept_bytes(bf.SparseSubspace(density, how="sample"), optimizer)
            ratio = round(found / dense, 4)
            row = {"optimizer": optimizer, "density": density, "bytes": found}
            rows.append({**row, "ratio_to_dense": ratio})
    return rows


def time_one(name: str, folder: Path) -> None:
    """Compile, wait until all have, then be timed while nobody else runs."""
    step = make_step(made(METHODS[name]), optimizer="sgd", is_compiled=True)

    def warm_up() -> None:
        for _ in range(5):
            step()

    with in_turn(NAMES, name, folder, warm_up):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        times = [milliseconds(step) for _ in range(NUM_REPEATS)]
        peak = torch.cuda.max_memory_allocated()
    row = {"step_ms": round(statistics.median(times), 3), "peak_bytes": peak, "held": before}
    give_row(NAMES, name, folder, row)


def time_rows() -> list[dict[str, Any]]:
    rows = rows_of(__file__, NAMES)
    for row in rows:
        if "step_ms" in row and "step_ms" in rows[0]:
            row["ratio_to_plain"] = round(row["step_ms"] / rows[0]["step_ms"], 3)
    return rows


@torch.no_grad()
def two_of_four_rows() -> list[dict[str, Any]]:
    from torch.sparse import to_sparse_semi_structured

    rows = []
    for width in (512, 1024, 4096):
        for batch in (64, 4096):
            dense = torch.randn(width, width, device="cuda", dtype=torch.bfloat16)
            stays = torch.tensor([1, 1, 0, 0], device="cuda", dtype=torch.bfloat16)
            dense *= stays.repeat(width // 4)
            inputs = torch.randn(batch, width, device="cuda", dtype=torch.bfloat16)
            sparse = to_sparse_semi_structured(dense)
            row: dict[str, Any] = {"width": width, "batch": batch}
            for what, weight in (("dense_us", dense), ("two_of_four_us", sparse)):
                row[what] = round(1000 * _median(weight, inputs), 2)
            rows.append({**row, "ratio": round(row["two_of_four_us"] / row["dense_us"], 3)})
    return rows


def _median(weight: Tensor, inputs: Tensor) -> float:
    def call() -> None:
        F.linear(inputs, weight)

    return statistics.median(milliseconds(call, 20) for _ in range(NUM_REPEATS))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results/ssvi/cost_gpu.json"))
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--variant", help=argparse.SUPPRESS)
    wanted = parser.parse_args()
    if wanted.one is not None:
        time_one(wanted.variant, wanted.one)
        return
    report: dict[str, Any] = {"provenance": provenance(__file__), "memory": memory_rows()}
    for part, rows in (("two_of_four", two_of_four_rows), ("time", time_rows)):
        try:
            report[part] = rows()
        except RuntimeError as error:  # what was measured before is kept
            report[part] = str(error)
        wanted.out.parent.mkdir(parents=True, exist_ok=True)
        wanted.out.write_text(json.dumps(report, indent=2) + "\n")
        print(json.dumps(report[part], indent=1))
    print(json.dumps(report["memory"], indent=1))


if __name__ == "__main__":
    main()
