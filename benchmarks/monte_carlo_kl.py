"""Cost of a KL averaged over M draws: graph, memory and time of a training step as M grows.

    python benchmarks/monte_carlo_kl.py --part graph        # one small network, M = 1 to 10,000
    python benchmarks/monte_carlo_kl.py --part networks     # three large ones within 11 GiB (GPU)
    python benchmarks/monte_carlo_kl.py --part peers        # torch_blue, torchbayesian, and ours
    python benchmarks/monte_carlo_kl.py --part error        # distance from the exact KL against M

Repeats Figures 1, 2, 4 and 6 of Nazarovs et al. (2021), "Graph reparameterizations for enabling
1000+ Monte Carlo iterations in Bayesian deep neural networks". A step clears the gradients, takes
the cross-entropy of a batch of random images, adds KL / N, goes backward and takes a step of Adam;
eager, float32. Every part writes FOLDER/PART_cpu.json or PART_gpu.json after each measurement. In
`graph` all contestants take turns, and a ratio is the median over rounds of a time over that of the
same estimator with one draw. In `networks` and `peers` torch may take 11 GiB of the GPU, which the
paper's card has (less what CUDA itself takes there); peers are measured when importable.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from monte_carlo_kl_peers import MENDED, PEERS
from provenance import provenance
from step_cost import (
    Make,
    TrainingStep,
    cost,
    in_turns,
    largest_that_fits,
    limit_memory,
    mib,
    num_nodes,
    peak_or_none,
    ratio_in_turns,
    watched,
)
from torch import Tensor, nn

import bayesify as bf
from bayesify.conversion.posterior import posteriors
from bayesify.distributions import divergence, families, priors
from bayesify.distributions.scale import inverse_softplus

NUM_DATA, BATCH, QUICK_BATCH = 50_000, 32, 4
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
# Largest M of the direct average on the paper's 11 GB card (Figure 2, right).
PAPER_LARGEST = {"vgg_16": 5, "preact_resnet_50": 17, "densenet_121": 89}
TINY: dict[str, dict[str, Any]] = {"vgg_11": {"width": 4}}
# Steps slower than this, watched, are not timed as well.
LONGEST_SECONDS = 200.0


@dataclass(frozen=True)
class Contestant:
    """Whose step, with which KL of how many draws."""

    network: str
    library: str
    family: str | None = None
    estimator: str | None = None
    num_samples: int | None = None


class OutOfTimeError(Exception):
    """A part has had its time; what it found is written."""


@dataclass
class Report:
    """What a part found, written after each measurement: a run cut off leaves what it has."""

    part: str
    path: Path
    settings: dict[str, Any]
    seconds: float

    def __post_init__(self) -> None:
        self.began = time.perf_counter()
        self.results: list[dict[str, Any]] = []
        self.provenance = provenance(__file__)

    def add(self, row: dict[str, Any]) -> None:
        """Add a measurement."""
        self.results.append(row)
        self.write()
        print(", ".join(f"{k} {v}" for k, v in row.items() if v is not None), flush=True)
        if time.perf_counter() - self.began > self.seconds:
            raise OutOfTimeError

    def write(self) -> None:
        """Write all there is."""
        report = {
            "benchmark": f"mcr/{self.part}",
            "provenance": self.provenance,
            "settings": self.settings,
            "wall_seconds": round(time.perf_counter() - self.began, 1),
            "results": self.results,
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(report, indent=2) + "\n")


def build(network: str, *, quick: bool) -> tuple[nn.Module, Tensor, Tensor]:
    """Return a network and a batch for it."""
    torch.manual_seed(0)
    shape = (1, 28, 28) if network == "lenet_5" else (3, 32, 32)
    net = bf.build_model(network, **(TINY.get(network, {}) if quick else {}))
    size = QUICK_BATCH if quick else BATCH
    x, y = torch.randn(size, *shape), torch.randint(0, 10, (size,))
    return net.to(DEVICE), x.to(DEVICE), y.to(DEVICE)


def step_of(who: Contestant, *, quick: bool) -> TrainingStep:
    """Build a contestant's step."""
    net, x, y = build(who.network, quick=quick)
    if who.library in PEERS:
        assert who.num_samples is not None
        return PEERS[who.library](net, x, y, who.num_samples)
    if who.estimator is None or who.family is None:
        return TrainingStep(lambda: (F.cross_entropy(net(x), y), None), net)
    method = bf.MonteCarloKL(
        family=who.family,
        prior="normal",
        estimator=who.estimator,
        num_samples=who.num_samples or 1,
    )
    model = bf.convert(net, method)

    def loss() -> tuple[Tensor, Tensor]:
        parts = bf.elbo_loss(F.cross_entropy(model(x), y), model, num_data=NUM_DATA)
        return parts.total, parts.kl

    return TrainingStep(loss, model)


def maker(who: Contestant, *, quick: bool) -> Make:
    return lambda: step_of(who, quick=quick)


def graph_part(wanted: argparse.Namespace, report: Report) -> None:
    """Measure graph and memory of every contestant alone, then time them in turns."""
    contestants = _graph_contestants(wanted)
    steps: dict[Contestant, TrainingStep] = {}
    rows: dict[Contestant, dict[str, Any]] = {}
    for who in contestants:
        step = step_of(who, quick=wanted.quick)
        _start_optimizer(step)
        nodes: list[int] = []
        began = time.perf_counter()
        with watched(step) as peak:
            step(lambda kl, nodes=nodes: nodes.append(num_nodes(kl)))
        if time.perf_counter() - began < LONGEST_SECONDS:
            steps[who] = step
        rows[who] = {**asdict(who), "num_nodes": nodes[0] if nodes else None}
        rows[who]["peak_mib"] = mib(peak.peak_bytes)
        report.add(rows[who])
    for times in in_turns(steps, wanted.seconds or (3.0 if DEVICE.type == "cuda" else 10.0)):
        for who, own in times.items():
            one = replace(who, num_samples=1)
            rows[who] |= {
                "milliseconds": round(statistics.median(own), 3),
                "num_repeats": len(own),
                "ratio_to_one_draw": _ratio(own, times.get(one)),
                "ratio_to_deterministic": _ratio(own, times[contestants[0]]),
            }
        report.write()


def _graph_contestants(wanted: argparse.Namespace) -> list[Contestant]:
    network = wanted.networks or ("vgg_11" if wanted.quick else "lenet_5")
    most = 10 if wanted.quick else 10_000
    # A CPU's memory is found from a list of all that was allocated, which would not fit.
    most_streamed = most if DEVICE.type == "cuda" else min(most, 1000)
    contestants = [Contestant(network, "torch")]
    contestants += [Contestant(network, "bayesify", f, "closed") for f in ("normal", "radial")]
    for family, estimator, largest in (
        ("normal", "exact_mc", most),
        ("normal", "repar", most),
        ("radial", "repar", most),
        ("radial", "streamed", most_streamed),
        ("normal", "direct", min(most, 100)),
        ("radial", "direct", min(most, 100)),
    ):
        counts = [count for count in (1, 10, 100, 1000, 10_000) if count <= largest]
        contestants += [Contestant(network, "bayesify", family, estimator, m) for m in counts]
    return contestants


def _start_optimizer(step: TrainingStep) -> None:
    """Take a step with one draw: the optimiser's averages are there from then on."""
    sites = posteriors(step.model)
    counts = [site.num_samples for site in sites]
    for site in sites:
        site.num_samples = 1
    step()
    for site, count in zip(sites, counts, strict=True):
        site.num_samples = count


def _ratio(own: list[float], other: list[float] | None) -> float | None:
    return None if other is None else round(ratio_in_turns(own, other), 3)


def networks_part(wanted: argparse.Namespace, report: Report) -> None:
    """Find the largest M of the direct average, and what ours cost at 1000."""
    limit, seconds = limit_memory(wanted.limit_gib), wanted.seconds or 2.0
    most = 10 if wanted.quick else 1000
    networks = _networks(wanted)

    def measure(who: Contestant, **more: Any) -> None:
        found = cost(maker(who, quick=wanted.quick), seconds)
        report.add({**asdict(who), **found, **more})

    for estimator, family, count in (
        (None, None, None),
        ("closed", "radial", None),
        ("exact_mc", "normal", 1),
        ("exact_mc", "normal", most),
        ("repar", "radial", 1),
    ):
        for network in networks:
            library = "bayesify" if estimator else "torch"
            measure(Contestant(network, library, family, estimator, count))
    for network in networks:
        who = Contestant(network, "bayesify", "radial", "direct")
        largest, tried = _largest(who, wanted, limit)
        more = {"is_largest": True, "paper_largest": PAPER_LARGEST.get(network), "tried": tried}
        measure(replace(who, num_samples=largest), **more)
        # Figure 6: both at the largest M of the direct average.
        measure(replace(who, estimator="repar", num_samples=largest))
    for estimator in ("repar", "streamed"):
        for network in networks:
            measure(Contestant(network, "bayesify", "radial", estimator, most))


def _networks(wanted: argparse.Namespace) -> list[str]:
    names = wanted.networks or ",".join(TINY if wanted.quick else PAPER_LARGEST)
    return names.split(",")


def _largest(
    who: Contestant, wanted: argparse.Namespace, limit: int
) -> tuple[int, dict[int, float | None]]:
    def peak_at(number: int) -> int | None:
        return peak_or_none(maker(replace(who, num_samples=number), quick=wanted.quick), limit)

    largest, tried = largest_that_fits(peak_at, limit)
    return largest, {number: mib(peak) for number, peak in tried.items()}


def peers_part(wanted: argparse.Namespace, report: Report) -> None:
    """Measure the peers and ours with few draws, then the peers with as many as fit."""
    limit = limit_memory(wanted.limit_gib)
    networks = _networks(wanted)
    libraries = [name for name in PEERS if find_spec(name.split(",")[0])]
    able: list[Contestant] = []
    for network in networks:
        runs = False
        for library in libraries:
            # A peer is mended only where it does not run as it is.
            if not (runs and library in MENDED):
                runs = _few_draws(Contestant(network, library), wanted, report)
                able += [Contestant(network, library)] * runs
        for estimator in ("exact_mc", "repar"):
            _few_draws(Contestant(network, "bayesify", "normal", estimator), wanted, report)
    for who in able if wanted.quick or DEVICE.type == "cuda" else []:
        largest, tried = _largest(who, wanted, limit)
        row = asdict(replace(who, num_samples=largest))
        report.add({**row, "peak_mib": tried.get(largest), "is_largest": True, "tried": tried})


def _few_draws(who: Contestant, wanted: argparse.Namespace, report: Report) -> bool:
    """Measure 1, 10 and 100 draws as far as they go; tell whether one draw does."""
    runs = False
    for count in (1, 4) if wanted.quick else (1, 10, 100):
        who = replace(who, num_samples=count)
        found = cost(maker(who, quick=wanted.quick), wanted.seconds or 1.0)
        report.add({**asdict(who), **found})
        if "error" in found:
            break
        runs = True
    return runs


def error_part(wanted: argparse.Namespace, report: Report) -> None:
    """Measure |estimate − KL| of one weight for several variances (Figure 2, left)."""
    variances, location = (0.01, 0.1, 1.0, 4.0, 16.0, 64.0), 1.0
    num_repeats = 200 if wanted.quick else 2000
    counts = (1, 10, 100) if wanted.quick else (1, 3, 10, 30, 100, 300, 1000, 3000, 10_000)
    report.settings |= {"posterior_mean": location, "prior": "N(0, 1)", "num_repeats": num_repeats}
    torch.manual_seed(0)
    family, prior = families["normal"](), priors["normal"]()
    for variance in variances:
        rho = inverse_softplus(torch.tensor([math.sqrt(variance)], dtype=torch.float64))
        one = {"mean": torch.full_like(rho, location), "rho": rho}
        many = {name: value.expand(num_repeats, 1) for name, value in one.items()}
        exact = float(divergence(family, one, prior, estimator="closed"))
        # Variance of log q − log p of one draw: (μσ)² + (σ² − 1)² / 2.
        of_one = location**2 * variance + 0.5 * (variance - 1) ** 2
        for estimator in ("exact_mc", "repar"):
            for count in counts:
                estimate = _estimator_of(family, prior, estimator, count)
                error = (torch.vmap(estimate, randomness="different")(many) - exact).abs()
                row = {"estimator": estimator, "variance": variance, "num_samples": count}
                row |= {
                    "kl": round(exact, 6),
                    "mean_log10_error": round(float(error.log10().mean()), 4),
                    "root_mean_square_error": float(f"{error.square().mean().sqrt():.4g}"),
                    "expected_root_mean_square_error": float(f"{math.sqrt(of_one / count):.4g}"),
                }
                report.add(row)


def _estimator_of(
    family: Any, prior: Any, estimator: str, num_samples: int
) -> Callable[[dict[str, Tensor]], Tensor]:
    def estimate(parameters: dict[str, Tensor]) -> Tensor:
        return divergence(family, parameters, prior, estimator=estimator, num_samples=num_samples)

    return estimate


def print_table(report: Report) -> None:
    hidden = {"tried", "paper_largest" if report.part != "networks" else "num_repeats"}
    columns = dict.fromkeys(column for row in report.results for column in row)
    shown = [column for column in columns if column not in hidden]
    cells = [[_cell(row.get(column)) for column in shown] for row in report.results]
    widths = [max(map(len, column)) for column in zip(shown, *cells, strict=True)]
    print(f"\n{report.part}")
    for line in (shown, *cells):
        print("  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)))


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:.0f}"
    return "" if value is None else str(value)


PARTS: dict[str, Callable[[argparse.Namespace, Report], None]] = {
    "graph": graph_part,
    "networks": networks_part,
    "peers": peers_part,
    "error": error_part,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--part", default="graph,error", help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--out", type=Path, help="folder of the JSON files")
    parser.add_argument("--networks", help="comma-separated names of models")
    parser.add_argument("--seconds", type=float, help="for each contestant")
    parser.add_argument("--limit-gib", type=float, default=None, help="memory of the GPU to use")
    parser.add_argument("--minutes", type=float, default=math.inf, help="for each part")
    parser.add_argument("--quick", action="store_true", help="tiny networks and few draws")
    wanted = parser.parse_args()
    torch.set_num_threads(1)
    wanted.limit_gib = wanted.limit_gib or (0.05 if wanted.quick else 11.0)
    folder = wanted.out or Path("results/quick/mcr" if wanted.quick else "results/mcr")
    if wanted.quick and wanted.seconds is None:
        wanted.seconds = 0.1
    # What the first step on a GPU loads is no contestant's cost.
    cost(maker(Contestant("lenet_5", "torch"), quick=wanted.quick), 0.1)
    for part in wanted.part.split(","):
        settings = {"batch": QUICK_BATCH if wanted.quick else BATCH, "is_quick": wanted.quick}
        name = f"{part}_{'gpu' if DEVICE.type == 'cuda' else 'cpu'}.json"
        report = Report(part, folder / name, settings, 60 * wanted.minutes)
        try:
            PARTS[part](wanted, report)
        except OutOfTimeError:
            print(f"{part}: out of time")
        report.write()
        print_table(report)


if __name__ == "__main__":
    main()
