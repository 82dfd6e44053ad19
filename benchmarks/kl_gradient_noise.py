"""Noise that M draws of the KL add to a gradient, over the noise a batch of data has anyway.

    python benchmarks/kl_gradient_noise.py       # LeNet-5 on MNIST, about a minute on one core

A Radial LeNet-5 is trained for one epoch with the exact KL. Then the gradient of the nll is found
for 20 batches, that of beta · KL / N for 20 estimates by M draws, and the norms of their standard
deviations are compared, for the means and for the scales.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from provenance import provenance
from torch import Tensor, nn

import bayesify as bf
from bayesify.conversion.posterior import Posterior, posteriors
from bayesify.data import loader

NUM_REPEATS, BATCH = 20, 250


def gradients(model: nn.Module, loss: Callable[[], Tensor]) -> dict[str, Tensor]:
    model.zero_grad()
    loss().backward()
    return {name: _flat(posteriors(model), name) for name in ("mean", "rho")}


def _flat(sites: list[Posterior], name: str) -> Tensor:
    return torch.cat([getattr(site, name).grad.flatten() for site in sites])


def noise(found: list[dict[str, Tensor]], name: str) -> float:
    return float(torch.stack([entry[name] for entry in found]).std(0).norm())


def measure(beta: float) -> list[dict[str, float | str]]:
    data = bf.load_dataset("mnist").train
    torch.manual_seed(0)
    method = bf.MonteCarloKL(prior={"name": "normal", "std": 0.1}, initial_std=0.01)
    model = bf.convert(bf.build_model("lenet_5"), method)
    bf.fit(model, loader(data, BATCH, shuffle=True), epochs=1, beta=beta, seed=0, progress=False)
    batches = iter(loader(data, BATCH, shuffle=True))

    def of_batch() -> Tensor:
        inputs, targets = next(batches)
        return F.cross_entropy(model(inputs), targets)

    of_data = [gradients(model, of_batch) for _ in range(NUM_REPEATS)]
    rows: list[dict[str, float | str]] = []
    for num_samples in (1, 17, 100):
        for site in posteriors(model):
            site.estimator, site.num_samples = "repar", num_samples
        of_kl = [
            gradients(model, lambda: bf.kl(model) * (beta / len(data))) for _ in range(NUM_REPEATS)
        ]
        for name in ("mean", "rho"):
            ratio = noise(of_kl, name) / noise(of_data, name)
            rows.append({"beta": beta, "of": name, "num_samples": num_samples, "ratio": ratio})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results/mcr/kl_gradient_noise.json"))
    wanted = parser.parse_args()
    torch.set_num_threads(1)
    rows = [row for beta in (0.001, 1.0) for row in measure(beta)]
    wanted.out.parent.mkdir(parents=True, exist_ok=True)
    wanted.out.write_text(
        json.dumps({"provenance": provenance(__file__), "results": rows}, indent=2) + "\n"
    )
    for row in rows:
        print("beta {beta:<6} {of:<5} M = {num_samples:<4} {ratio:.2g}".format(**row))


if __name__ == "__main__":
    main()
