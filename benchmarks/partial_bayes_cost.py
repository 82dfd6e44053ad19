"""What partial Bayesian networks cost to train: the published model against what is measured.

    python benchmarks/partial_bayes_cost.py       # about a minute on one core
    python benchmarks/partial_bayes_cost.py --device cuda --out results/pbn/cost_gpu.json

Ratios to the plain network. Parameters and bytes: of LeNet-300-100 with batch norm and of
ResNet-18, by the formulas of the published model and by the tensors themselves (see
`bayesify/compression/cost.py`). "kept" are parameters, buffers (positions included) and the state
of the optimisers, what lies there between two steps; "bytes" has the gradients too. A partial
network is allowed 2 % more than its share, (1 + r) x 1.02. On a GPU both are what the allocator
was asked for ("requested") and what it holds for that ("allocated": a block may be up to a megabyte
larger than what is in it), of ResNet-18, and nothing else is measured.

Steps: five draws of the weights, each with a backward pass of its own, then both optimisers; one
step of the plain network and of each member of the ensemble. Medians of the process's own time on
one thread, all kinds in turns.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from provenance import provenance
from torch import Tensor, nn

import bayesify as bf
from bayesify.compression import Cost, Costs, count_costs
from bayesify.conversion.convert import require_record
from bayesify.conversion.posterior import posteriors
from bayesify.training.likelihood import Classification
from bayesify.training.optimiser import make_optimizers
from bayesify.training.settings import FitSettings

FRACTIONS = (0.0, 0.01, 0.05, 0.2, 1.0)
NUM_SAMPLES, BATCH, NUM_ROUNDS, NUM_FIRST = 5, 50, 60, 5
# Of means and plain weights, and of scales.
OPTIMIZERS: tuple[tuple[Literal["sgd", "adam"], Literal["adam", "rmsprop"]], ...] = (
    ("adam", "adam"),
    ("sgd", "adam"),
    ("sgd", "rmsprop"),
)
ALLOWED, MEMORY_STEPS = 1.02, 3
SMALL, LARGE = "lenet_300_100", "resnet_18"
PLAIN, ENSEMBLE, DENSE = "plain", "5-ensemble", "full VI"


def networks() -> dict[str, tuple[nn.Module, tuple[int, ...]]]:
    torch.manual_seed(0)
    small = bf.build_model("lenet_300_100", batch_norm=True)
    return {SMALL: (small, (784,)), LARGE: (bf.build_model("resnet_18"), (3, 32, 32))}


def methods() -> dict[str, Any]:
    # What is chosen does not change what it costs, so no data are asked.
    partial = {
        f"partial {100 * fraction:g} %": bf.PartialBayes(fraction, score="magnitude")
        for fraction in FRACTIONS
    }
    plain = {PLAIN: bf.Deterministic(), ENSEMBLE: bf.DeepEnsemble(5)}
    return {**plain, DENSE: bf.MeanField(), **partial}


def converted(net: nn.Module) -> dict[str, nn.Module]:
    return {what: bf.convert(net, method) for what, method in methods().items()}


def cost_rows(name: str, net: nn.Module, shape: tuple[int, ...]) -> list[dict[str, Any]]:
    inputs, rows = torch.randn(2, *shape), []
    models = converted(net)
    for optimizer, scale_optimizer in OPTIMIZERS:
        options: dict[str, Any] = {"num_samples": NUM_SAMPLES, "optimizer": optimizer}
        options |= {"scale_optimizer": scale_optimizer}
        every = {what: count_costs(model, inputs, **options) for what, model in models.items()}
        for what, costs in every.items():
            about = {"network": name, "optimizer": optimizer, "scale_optimizer": scale_optimizer}
            about |= {"what": what}
            rows.append({**about, **ratios(costs, every[PLAIN]), **allowed(what)})
    return rows


def allowed(what: str) -> dict[str, float]:
    """Return the largest ratio of bytes a partial network may have."""
    limits = {f"partial {100 * each:g} %": ALLOWED * (1 + each) for each in FRACTIONS}
    return {"allowed": round(limits[what], 4)} if what in limits else {}


def ratios(costs: Costs, plain: Costs) -> dict[str, float]:
    found = {
        "parameters_modelled": costs.modelled.num_parameters / plain.modelled.num_parameters,
        "parameters_measured": costs.measured.num_parameters / plain.measured.num_parameters,
        "bytes_modelled": costs.modelled.num_bytes / plain.modelled.num_bytes,
        "bytes_measured": costs.measured.num_bytes / plain.measured.num_bytes,
        "kept_modelled": kept(costs.modelled) / kept(plain.modelled),
        "kept_measured": kept(costs.measured) / kept(plain.measured),
        "flops_modelled": costs.modelled.flops / plain.modelled.flops,
        "flops_counted": costs.measured.flops / plain.measured.flops,
    }
    return {key: round(value, 4) for key, value in found.items()}


def kept(cost: Cost) -> float:
    return cost.num_bytes - cost.num_gradient_bytes


def allocated(
    model: nn.Module, shape: tuple[int, ...], optimizers: tuple[str, str]
) -> dict[str, int]:
    """Return the bytes a GPU's allocator holds between steps, and with the gradients of one."""
    data = torch.randn(2, *shape, device="cuda"), torch.zeros(2, dtype=torch.long, device="cuda")
    gc.collect()
    before = held()
    step = training_step(copy.deepcopy(model).cuda().train(), optimizers, *data)
    for _ in range(MEMORY_STEPS):
        step.go()
    found = {}
    for name, act in (("kept", step.clear), ("bytes", step.backward)):
        act()
        gc.collect()
        torch.cuda.synchronize()
        found |= {f"{name}_{kind}": value - before[kind] for kind, value in held().items()}
    return found


def held() -> dict[str, int]:
    stats = torch.cuda.memory_stats()
    return {kind: stats[f"{kind}_bytes.all.current"] for kind in ("allocated", "requested")}


def memory_rows(net: nn.Module, shape: tuple[int, ...]) -> list[dict[str, Any]]:
    rows, models = [], converted(net)
    # The libraries' own workspaces come with the first step, and stay.
    allocated(models[DENSE], shape, OPTIMIZERS[0])
    for optimizers in OPTIMIZERS:
        every = {what: allocated(model, shape, optimizers) for what, model in models.items()}
        for what, found in every.items():
            about = {"optimizer": optimizers[0], "scale_optimizer": optimizers[1], "what": what}
            over = {name: round(value / every[PLAIN][name], 4) for name, value in found.items()}
            rows.append({"network": LARGE, **about, **over, **allowed(what)})
    return rows


@dataclass(frozen=True)
class Step:
    """A training step and its parts."""

    backward: Callable[[], None]
    clear: Callable[[], None]
    move: Callable[[], None]

    def go(self) -> None:
        """Take the whole step."""
        self.backward()
        self.move()
        self.clear()


def training_step(
    model: nn.Module, optimizers: tuple[str, str], inputs: Tensor, targets: Tensor
) -> Step:
    method, num_passes = require_record(model).method, NUM_SAMPLES if posteriors(model) else 1
    settings = FitSettings(epochs=1, optimizer=optimizers[0], scale_optimizer=optimizers[1])
    made = make_optimizers(model, Classification(), settings)

    def nll(output: Tensor, *, is_logged: bool = True) -> Tensor:
        del is_logged
        return F.cross_entropy(output, targets)

    def backward() -> None:
        for number in range(num_passes):
            part = method.nll(model, lambda: model(inputs), nll) / num_passes
            if number == num_passes - 1:
                part = bf.elbo_loss(part, model, num_data=60_000).total
            part.backward()

    def move() -> None:
        for each in made:
            each.step()

    def clear() -> None:
        for each in made:
            each.zero_grad(set_to_none=True)

    return Step(backward, clear, move)


def in_turns(steps: Mapping[str, Callable[[], None]]) -> dict[str, float]:
    """Return the median milliseconds of each, timed in rounds: a slow moment hits all alike."""
    times: dict[str, list[float]] = {what: [] for what in steps}
    for _ in range(NUM_FIRST + NUM_ROUNDS):
        for what, step in steps.items():
            step()  # to have its own tensors at hand, as in a run
            began = time.process_time()
            step()
            times[what].append(1000 * (time.process_time() - began))
    return {what: statistics.median(each[NUM_FIRST:]) for what, each in times.items()}


def time_rows(net: nn.Module, shape: tuple[int, ...]) -> list[dict[str, Any]]:
    data = torch.randn(BATCH, *shape), torch.randint(0, 10, (BATCH,))
    rows = []
    for optimizers in OPTIMIZERS:
        steps = {
            what: training_step(bf.convert(net, method).train(), optimizers, *data).go
            for what, method in methods().items()
        }
        found = in_turns(steps)
        for what, milliseconds in found.items():
            about = {"network": SMALL, "optimizer": optimizers[0], "scale_optimizer": optimizers[1]}
            about |= {"what": what, "batch": BATCH}
            ratio = round(milliseconds / found[PLAIN], 3)
            rows.append({**about, "step_ms": round(milliseconds, 3), "ratio_to_plain": ratio})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results/pbn/cost_cpu.json"))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    wanted = parser.parse_args()
    if wanted.device == "cpu":
        torch.set_num_threads(1)
    every = networks()
    report: dict[str, Any] = {"provenance": provenance(__file__), "num_samples": NUM_SAMPLES}
    if wanted.device == "cuda":
        report["memory"] = memory_rows(*every[LARGE])
    else:
        report["cost"] = [
            row for name, (net, shape) in every.items() for row in cost_rows(name, net, shape)
        ]
        report["time"] = time_rows(*every[SMALL])
    wanted.out.parent.mkdir(parents=True, exist_ok=True)
    wanted.out.write_text(json.dumps(report, indent=2) + "\n")
    for part in ("cost", "memory", "time"):
        for row in report.get(part, ()):
            print(", ".join(f"{key} {value}" for key, value in row.items()))


if __name__ == "__main__":
    main()
