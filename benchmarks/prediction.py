"""Time of a posterior prediction with 30 samples over a Python loop of 30 passes.

    python benchmarks/prediction.py --out results/core/prediction.json

Three ways to the same 30 samples: a loop over the network, draws vectorised in one pass, and
local reparameterisation vectorised (exact for the marginals of dense layers, an approximation
behind convolutions); and what `predict` takes by default. Batches of 1, 32 and 256.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from provenance import provenance, store
from torch import nn

import bayesify as bf
from bayesify.conversion.scope import forward_by

NUM_SAMPLES = 30
MODELS = {"lenet_300_100": (1, 28, 28), "lenet_5": (1, 28, 28), "resnet_20": (3, 32, 32)}


def timed(call: Callable[[], object], rounds: int) -> float:
    """Return the median milliseconds of a call."""
    values = []
    for index in range(rounds + 1):
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        began = time.perf_counter()
        call()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        if index:
            values.append(1e3 * (time.perf_counter() - began))
    return statistics.median(values)


@torch.no_grad()
def ways(model: nn.Module, x: torch.Tensor, rounds: int) -> dict[str, float]:
    """Time every way to predict one batch."""

    def loop() -> None:
        for _ in range(NUM_SAMPLES):
            model(x)

    def vectorised() -> None:
        torch.vmap(lambda _: model(x), randomness="different")(torch.empty(NUM_SAMPLES))

    times = {}
    for how in ("sample", "local"):
        with forward_by(model, how):
            times[f"loop, {how}"] = timed(loop, rounds)
            times[f"vectorised, {how}"] = timed(vectorised, rounds)
        times[f"predict, {how}"] = timed(
            lambda how=how: bf.predict(
                model, x, num_samples=NUM_SAMPLES, by=how, likelihood="classification"
            ),
            rounds,
        )
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    is_gpu = torch.cuda.is_available()
    device = torch.device("cuda" if is_gpu else "cpu")
    if not is_gpu:
        torch.set_num_threads(1)
    models = MODELS | ({"resnet_18": (3, 32, 32)} if is_gpu else {})
    results: dict[str, Any] = {}
    for name, shape in models.items():
        model = bf.convert(bf.build_model(name), bf.MeanField()).to(device).eval()
        for size in (1, 32, 256):
            if not is_gpu and name == "resnet_20" and size > 32:
                continue
            x = torch.randn(size, *shape, device=device)
            times = ways(model, x, arguments.rounds)
            results[f"{name}, batch {size}"] = times
            shown = "  ".join(f"{way} {value:.1f}" for way, value in times.items())
            print(f"{name:14s} {size:4d}  {shown}", flush=True)
    report = {
        **provenance(__file__),
        "unit": "milliseconds for 30 samples of one batch",
        "results": results,
    }
    store(arguments.out, report)


if __name__ == "__main__":
    main()
