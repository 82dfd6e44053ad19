"""Which weights the removal criteria agree on, at the start, the middle and the end of training.

    python benchmarks/removal_criteria.py                      # a dense network on Fashion-MNIST
    python benchmarks/removal_criteria.py --network resnet_18  # CIFAR-10, for a GPU

A sparse subspace is trained by |mean| / std. At its first move, at half of them and at the last
each criterion names the three tenths of every tensor it would remove, and the overlap of two sets
is their intersection over their union, summed over the tensors. Scores are in float64;
"magnitude_snr, float32" is the textbook formula as float32 has it, ties broken by position.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
from provenance import provenance
from torch import Tensor, nn

import bayesify as bf
from bayesify.conversion.method import Update
from bayesify.conversion.subspace import live_std
from bayesify.data import loader
from bayesify.distributions.importance import importance
from bayesify.methods.sparse_subspace import sparse_sites

NAMES = ("magnitude", "snr", "expected_magnitude", "magnitude_snr", "expected_exponential")
FLOAT32 = "magnitude_snr, float32"
SHARE = 0.3


def textbook(mean: Tensor, std: Tensor) -> Tensor:
    """E|w| / sqrt(E w^2 - (E|w|)^2) as one would write it down, in float32."""
    mean, std = mean.float(), std.float()
    ratio = mean.abs() / std
    first = mean.abs() * torch.erf(ratio / math.sqrt(2))
    first = first + std * math.sqrt(2 / math.pi) * torch.exp(-0.5 * ratio.square())
    return first / (mean.square() + std.square() - first.square()).sqrt()


def removed(mean: Tensor, std: Tensor) -> dict[str, Tensor]:
    count = int(SHARE * mean.numel())
    scores = {name: importance(name, mean, std) for name in NAMES}
    scores[FLOAT32] = textbook(mean, std)
    sets = {}
    for name, score in scores.items():
        # A score of inf over inf counts as the largest, as a sort has it.
        order = score.nan_to_num(math.inf).argsort(stable=True)
        sets[name] = torch.zeros(mean.numel(), dtype=torch.bool, device=mean.device)
        sets[name][order[:count]] = True
    return sets


@torch.no_grad()
def overlaps(model: nn.Module) -> dict[str, float]:
    found = {}
    parts = [
        removed(cast(Tensor, site.mean).detach(), live_std(site))
        for site in sparse_sites(model).values()
    ]
    for first, second in itertools.combinations((*NAMES, FLOAT32), 2):
        both = sum(int((part[first] & part[second]).sum()) for part in parts)
        either = sum(int((part[first] | part[second]).sum()) for part in parts)
        found[f"{first} / {second}"] = round(both / either, 4)
    ratios = torch.cat(
        [cast(Tensor, s.mean).abs() / live_std(s) for s in sparse_sites(model).values()]
    )
    return {**found, "median |mean| / std": float(ratios.median())}


@dataclass(frozen=True)
class Watched(bf.SparseSubspace):
    """A sparse subspace that notes what the criteria say at three of its moves."""

    seen: ClassVar[dict[str, Any]] = {}

    def after_step(self, model: nn.Module, update: Update) -> None:
        """Note the overlaps at three of the moves, then go on."""
        last = math.ceil(self.end * cast(int, update.num_steps)) - 1
        last -= last % self.interval
        middle = last // 2 - (last // 2) % self.interval
        for when, step in (("start", self.interval), ("middle", middle), ("end", last)):
            if update.step == step:
                self.seen[when] = {"step": step, **overlaps(model)}
        super().after_step(model, update)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--network", choices=("mlp", "resnet_18"), default="mlp")
    parser.add_argument("--epochs", type=int, default=None)
    parser.add_argument("--out", type=Path, default=None)
    wanted = parser.parse_args()
    options: dict[str, Any] = {"learning_rate": 1e-3, "beta": {"name": "warm_up", "value": 0.01}}
    if wanted.network == "mlp":
        data, epochs = bf.load_dataset("fashion_mnist"), wanted.epochs or 20
        net = bf.build_model("mlp", in_features=784, hidden=(300, 100))
        method = Watched(0.05, first_dense=False, prior_std=0.1, initial_std=0.005)
        options["accelerator"] = "cpu"
    else:
        data, epochs = bf.load_dataset("cifar10", augment=True).to("cuda"), wanted.epochs or 30
        net = bf.build_model("resnet_18")
        method = Watched(0.1, how="sample", prior_std=0.1, initial_std=0.005)
        options |= {"optimizer": "sgd", "learning_rate": 0.1, "weight_decay": 5e-4}
        options |= {"beta": {"name": "warm_up", "value": 0.001}, "precision": "bf16-mixed"}
        options |= {"compile": True, "channels_last": True}
    model = bf.convert(net, method)
    train = loader(data.train, 250, shuffle=True)
    bf.fit(model, train, epochs=epochs, seed=0, progress=False, **options)
    report = {
        "provenance": provenance(__file__),
        "network": wanted.network,
        "epochs": epochs,
        "overlaps": Watched.seen,
    }
    out = wanted.out or Path(f"results/ssvi/criteria_{wanted.network}.json")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(Watched.seen, indent=1))


if __name__ == "__main__":
    main()
