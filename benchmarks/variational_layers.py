"""Cost of variational layers over nn.Linear's, side by side on one CPU thread.

    python benchmarks/variational_layers.py --out results/vmlp/layers.json

Repeats Tables 3.1 to 3.5 of the VariationalMLP.jl dissertation: one layer 300 -> 100 on 32 rows,
one epoch of a 300-100-10 network (10 batches of 32: forward, backward, KL and optimiser step), and
that epoch with four optimisers; then one training step of LeNet-300-100 on 256 rows. All of a
group take turns within a round. A ratio is the median over rounds of a contestant's time over the
plain network's in the same round; eager is compared with eager, compiled with compiled, and both
sides get their optimisers from the same function, which makes Adam fused. Time is that of the
process, not of the clock: other processes on the machine take turns with this one. Memory is what
torch allocates: `allocated` is the sum of all allocations, which the dissertation gives, and
`peak` the most that is held at one time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from provenance import provenance
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

import bayesify as bf
from bayesify.training.optimiser import make_optimizers

IN, HIDDEN, OUT, BATCH, NUM_BATCHES, NUM_DATA = 300, 100, 10, 32, 10, 60_000
OPTIMIZERS = ("adam", "rmsprop", "sgd", "adagrad")
PLAIN = "nn.Linear"
# The dissertation's layers: Molchanov's, Graves's and Kingma's.
LAYERS: dict[str, Callable[[str], bf.Method]] = {
    "additive": lambda how: bf.VariationalDropout(how=how),  # pyright: ignore
    "dense": lambda how: bf.MeanField(how=how),  # pyright: ignore
    "multiplicative": lambda how: bf.VariationalDropout(noise="multiplicative", how=how),  # pyright: ignore
    # Not the dissertation's: one scale for all weights of an output unit.
    "dense, tied": lambda how: bf.MeanField(how=how, scale="out"),  # pyright: ignore
}
TABLE_OF = {"additive": "3.3", "dense": "3.4", "multiplicative": "3.5"}
# Microseconds of the dissertation. Its Table 3.5 repeats Table 3.3 by mistake.
PAPER_FORWARD = {PLAIN: 37.8, "additive": 313.0, "dense": 323.0, "multiplicative": 364.0}
PAPER_EPOCH = {PLAIN: 1_420.0, "additive": 24_600.0, "dense": 16_200.0, "multiplicative": 20_500.0}
PAPER_OPTIMIZERS = {
    "additive": dict(zip(OPTIMIZERS, (22_300.0, 21_200.0, 19_500.0, 21_000.0), strict=True)),
    "dense": dict(zip(OPTIMIZERS, (15_600.0, 14_200.0, 14_500.0, 14_300.0), strict=True)),
}
Call = Callable[[], object]


@dataclass
class Contestant:
    """One thing to time: what it is, and the call."""

    row: dict[str, Any]
    call: Call

    @property
    def label(self) -> str:
        """What a line of the log calls it."""
        return " ".join(str(self.row[key]) for key in ("layer", "how", "mode") if self.row[key])


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(IN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, OUT))


def lenet() -> nn.Sequential:
    layers = [nn.Linear(784, 300), nn.ReLU(), nn.Linear(300, 100), nn.ReLU(), nn.Linear(100, 10)]
    return nn.Sequential(*layers)


def contests(build: Callable[[], nn.Module], hows: list[str]) -> Iterator[tuple[str, str, Any]]:
    """Yield the plain module, then every variational layer in every way it is wanted."""
    torch.manual_seed(0)
    yield PLAIN, "", build()
    for name, method in LAYERS.items():
        for how in hows:
            torch.manual_seed(0)
            yield name, how, bf.convert(build(), method(how))


def as_mode(function: Any, mode: str) -> Any:
    # The compiler's own random numbers take 70 ns each on a CPU; those of torch take 4.
    options: Any = {"fallback_random": True}
    return torch.compile(function, options=options) if mode == "compiled" else function


def forward_contestants(modes: list[str], hows: list[str]) -> Iterator[list[Contestant]]:
    x = torch.randn(BATCH, IN)
    for mode in modes:
        for kind in ("training", "inference"):
            group = []
            for layer, how, module in contests(lambda: nn.Linear(IN, HIDDEN), hows):
                row = {"table": "3.1", "layer": layer, "how": how, "mode": mode, "pass": kind}
                row |= {"optimizer": None, "paper_us": PAPER_FORWARD.get(layer)}
                call = as_mode(module, mode)
                group.append(Contestant(row, forward(call, x, with_graph=kind == "training")))
            yield group


def forward(module: Any, x: Tensor, *, with_graph: bool) -> Call:
    def training() -> Tensor:
        return module(x)

    return training if with_graph else torch.no_grad()(training)


def epoch_contestants(modes: list[str], hows: list[str]) -> Iterator[list[Contestant]]:
    batches = [(torch.randn(BATCH, IN), torch.randint(OUT, (BATCH,))) for _ in range(NUM_BATCHES)]
    for mode in modes:
        for optimizer in OPTIMIZERS:
            group = []
            for layer, how, module in contests(network, hows):
                row: dict[str, Any] = {"table": TABLE_OF.get(layer, "3.3-3.5"), "layer": layer}
                row |= {"how": how, "mode": mode, "pass": "epoch", "optimizer": optimizer}
                row["paper_us"] = PAPER_OPTIMIZERS.get(layer, {}).get(optimizer)
                step = training_step(module, optimizer, mode, is_plain=layer == PLAIN)
                group.append(Contestant(row, epoch(step, batches)))
            yield group


def fit_step_contestants(modes: list[str], hows: list[str]) -> Iterator[list[Contestant]]:
    x, y = torch.randn(256, 784), torch.randint(10, (256,))
    for mode in modes:
        group = []
        for layer, how, module in contests(lenet, hows):
            row = {"table": "lenet-300-100 step", "layer": layer, "how": how, "mode": mode}
            row |= {"pass": "step, batch 256", "optimizer": "adam", "paper_us": None}
            step = training_step(module, "adam", mode, is_plain=layer == PLAIN)
            group.append(Contestant(row, epoch(step, [(x, y)])))
        yield group


def training_step(
    module: nn.Module, optimizer: str, mode: str, *, is_plain: bool
) -> Callable[[Tensor, Tensor], Tensor]:
    settings = bf.FitSettings(epochs=1, optimizer=optimizer, learning_rate=1e-3)
    optimizers = make_optimizers(module, nn.Module(), settings)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        nll = F.cross_entropy(module(x), y)
        return nll if is_plain else bf.elbo_loss(nll, module, num_data=NUM_DATA).total

    loss_of = as_mode(loss, mode)

    def step(x: Tensor, y: Tensor) -> Tensor:
        for each in optimizers:
            each.zero_grad(set_to_none=True)
        value = loss_of(x, y)
        value.backward()
        for each in optimizers:
            each.step()
        return value

    return step


def epoch(step: Callable[[Tensor, Tensor], Tensor], batches: list[tuple[Tensor, Tensor]]) -> Call:
    def run() -> None:
        for x, y in batches:
            step(x, y)

    return run


def measure(group: list[Contestant], rounds: int, seconds: float) -> list[dict[str, Any]]:
    """Time a group in turns, about `seconds` for each contestant, and return its rows."""
    for contestant in group:
        for _ in range(5):
            contestant.call()
    once = statistics.median(timed(group[0].call, 1) for _ in range(5))
    repeats = max(1, int(seconds / rounds / (2e-6 * once)))
    times: list[list[float]] = [[] for _ in group]
    for _ in range(rounds):
        for contestant, measured in zip(group, times, strict=True):
            measured.append(timed(contestant.call, repeats))
    rows = []
    for contestant, measured in zip(group, times, strict=True):
        ratios = [own / plain for own, plain in zip(measured, times[0], strict=True)]
        allocated, peak = memory(contestant.call)
        found = {
            "median_us": round(statistics.median(measured), 2),
            "least_us": round(min(measured), 2),
            "ratio": round(statistics.median(ratios), 3),
            "allocated_kib": round(allocated / 1024, 1),
            "peak_kib": round(peak / 1024, 1),
        }
        rows.append({**contestant.row, **found})
        print(f"measured: {contestant.row['pass']} {contestant.label}", flush=True)
    return rows


def timed(call: Call, repeats: int) -> float:
    """Return microseconds per call."""
    began = time.process_time()
    for _ in range(repeats):
        call()
    return 1e6 * (time.process_time() - began) / repeats


def memory(call: Call) -> tuple[int, int]:
    """Return the bytes one call allocates in all, and the most it holds at one time."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        call()
    results: Any = profiler.profiler.kineto_results  # pyright: ignore
    changes = [event.nbytes() for event in results.events() if event.name() == "[memory]"]
    held = most = 0
    for change in changes:
        held += change
        most = max(most, held)
    return sum(change for change in changes if change > 0), most


def table_32(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return Table 3.2's rows: the epochs with Adam, beside the figures it prints for them."""
    epochs = [row for row in rows if row["pass"] == "epoch" and row["optimizer"] == "adam"]
    return [{**row, "table": "3.2", "paper_us": PAPER_EPOCH.get(row["layer"])} for row in epochs]


def print_table(rows: list[dict[str, Any]]) -> None:
    columns = ("table", "pass", "layer", "how", "mode", "optimizer")
    print(f"\n{'':88s}{'median us':>10s} {'ratio':>7s} {'paper':>7s} {'KiB':>8s} {'peak':>7s}")
    plain_paper = {row["table"]: row["paper_us"] for row in rows if row["layer"] == PLAIN}
    for row in rows:
        name = " ".join(f"{row[column] or '':14s}" for column in columns)
        paper = plain_paper.get(row["table"])
        theirs = f"{row['paper_us'] / paper:.1f}" if paper and row["paper_us"] else ""
        figures = f"{row['median_us']:10.1f} {row['ratio']:7.2f} {theirs:>7s}"
        print(f"{name:88s}{figures} {row['allocated_kib']:8.0f} {row['peak_kib']:7.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each contestant")
    parser.add_argument("--modes", default="eager,compiled")
    parser.add_argument("--hows", default="local,sample")
    parser.add_argument("--parts", default="forward,epoch,step")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    # Every contestant is the same closure with another module in it.
    torch._dynamo.config.recompile_limit = 256
    modes, hows = arguments.modes.split(","), arguments.hows.split(",")
    makers = {"forward": forward_contestants, "epoch": epoch_contestants}
    makers["step"] = fit_step_contestants
    rows: list[dict[str, Any]] = []
    for part in arguments.parts.split(","):
        for group in makers[part](modes, hows):
            rows += measure(group, arguments.rounds, arguments.seconds)
    rows = sorted([*rows, *table_32(rows)], key=lambda row: (row["table"], row["mode"]))
    if arguments.out is not None:
        report = {"study": "vmlp/layers", "provenance": provenance(__file__), "rows": rows}
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(report, indent=2) + "\n")
    print_table(rows)


if __name__ == "__main__":
    main()
