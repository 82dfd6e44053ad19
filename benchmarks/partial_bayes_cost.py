"""What partial Bayesian networks cost to train: the published model against what is measured.

    python benchmarks/partial_bayes_cost.py       # about a minute on one core

Ratios to the plain network. Parameters and bytes: of LeNet-300-100 with batch norm and of
ResNet-18, by the formulas of the published model and by the tensors themselves (see
`bayesify/compression/cost.py`). Steps: five draws of the weights, each with a backward pass of its
own, then both optimisers; one step of the plain network and of each member of the ensemble.
Medians of the process's own time on one thread, all kinds in turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from provenance import provenance
from torch import Tensor, nn

import bayesify as bf
from bayesify.compression import Costs, count_costs
from bayesify.conversion.convert import require_record
from bayesify.conversion.posterior import posteriors
from bayesify.training.likelihood import Classification
from bayesify.training.optimiser import make_optimizers
from bayesify.training.settings import FitSettings

FRACTIONS = (0.0, 0.01, 0.05, 0.2, 1.0)
NUM_SAMPLES, BATCH, NUM_ROUNDS, NUM_FIRST = 5, 50, 60, 5
OPTIMIZERS: tuple[Literal["sgd", "adam"], ...] = ("sgd", "adam")
SMALL = "lenet_300_100"
PLAIN, ENSEMBLE, DENSE = "plain", "5-ensemble", "full VI"


def networks() -> dict[str, tuple[nn.Module, tuple[int, ...]]]:
    torch.manual_seed(0)
    small = bf.build_model("lenet_300_100", batch_norm=True)
    return {SMALL: (small, (784,)), "resnet_18": (bf.build_model("resnet_18"), (3, 32, 32))}


def methods() -> dict[str, Any]:
    # What is chosen does not change what it costs, so no data are asked.
    partial = {
        f"partial {100 * fraction:g} %": bf.PartialBayes(fraction, score="magnitude")
        for fraction in FRACTIONS
    }
    plain = {PLAIN: bf.Deterministic(), ENSEMBLE: bf.DeepEnsemble(5)}
    return {**plain, DENSE: bf.MeanField(), **partial}


def cost_rows(name: str, net: nn.Module, shape: tuple[int, ...]) -> list[dict[str, Any]]:
    inputs, rows = torch.randn(2, *shape), []
    for optimizer in OPTIMIZERS:
        options: dict[str, Any] = {"num_samples": NUM_SAMPLES, "optimizer": optimizer}
        every = {
            what: count_costs(bf.convert(net, method), inputs, **options)
            for what, method in methods().items()
        }
        for what, costs in every.items():
            about = {"network": name, "optimizer": optimizer, "what": what}
            rows.append({**about, **ratios(costs, every[PLAIN])})
    return rows


def ratios(costs: Costs, plain: Costs) -> dict[str, float]:
    stored = costs.measured.num_parameters + costs.measured.num_buffers
    stored_plain = plain.measured.num_parameters + plain.measured.num_buffers
    found = {
        "parameters_modelled": costs.modelled.num_parameters / plain.modelled.num_parameters,
        "parameters_measured": costs.measured.num_parameters / plain.measured.num_parameters,
        "stored_numbers_measured": stored / stored_plain,
        "bytes_modelled": costs.modelled.num_bytes / plain.modelled.num_bytes,
        "bytes_measured": costs.measured.num_bytes / plain.measured.num_bytes,
        "flops_modelled": costs.modelled.flops / plain.modelled.flops,
        "flops_counted": costs.measured.flops / plain.measured.flops,
    }
    return {key: round(value, 4) for key, value in found.items()}


def training_step(
    model: nn.Module, optimizer: str, inputs: Tensor, targets: Tensor
) -> Callable[[], None]:
    method, num_passes = require_record(model).method, NUM_SAMPLES if posteriors(model) else 1
    settings = FitSettings(epochs=1, optimizer=optimizer)
    optimizers = make_optimizers(model, Classification(), settings)

    def nll(output: Tensor, *, is_logged: bool = True) -> Tensor:
        del is_logged
        return F.cross_entropy(output, targets)

    def step() -> None:
        for number in range(num_passes):
            part = method.nll(model, lambda: model(inputs), nll) / num_passes
            if number == num_passes - 1:
                part = bf.elbo_loss(part, model, num_data=60_000).total
            part.backward()
        for each in optimizers:
            each.step()
            each.zero_grad(set_to_none=True)

    return step


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
    for optimizer in OPTIMIZERS:
        steps = {
            what: training_step(bf.convert(net, method).train(), optimizer, *data)
            for what, method in methods().items()
        }
        found = in_turns(steps)
        for what, milliseconds in found.items():
            about = {"network": SMALL, "optimizer": optimizer, "what": what, "batch": BATCH}
            ratio = round(milliseconds / found[PLAIN], 3)
            rows.append({**about, "step_ms": round(milliseconds, 3), "ratio_to_plain": ratio})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results/pbn/cost_cpu.json"))
    wanted = parser.parse_args()
    torch.set_num_threads(1)
    every = networks()
    report = {
        "provenance": provenance(__file__),
        "num_samples": NUM_SAMPLES,
        "cost": [
            row for name, (net, shape) in every.items() for row in cost_rows(name, net, shape)
        ],
        "time": time_rows(*every[SMALL]),
    }
    wanted.out.parent.mkdir(parents=True, exist_ok=True)
    wanted.out.write_text(json.dumps(report, indent=2) + "\n")
    for row in (*report["cost"], *report["time"]):
        print(", ".join(f"{key} {value}" for key, value in row.items()))


if __name__ == "__main__":
    main()
