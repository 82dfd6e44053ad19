"""How much of the outputs' variance lies in the weights that each score would make random.

    python benchmarks/selection_quality.py                      # LeNet-300-100 on MNIST, a minute
    python benchmarks/selection_quality.py --network resnet_20 --weights resnet20.th \
        --statistics imagenet                                   # CIFAR-10
    python benchmarks/selection_quality.py --network resnet_18 --device cuda \
        --weights runs/full/pbn/cifar10/plain-seed0/model.safetensors

To first order the variance of an output is the sum over weights of (df/dw)^2 std^2. The squared
derivatives are found on test examples, by their own random signs; weights are scored on training
examples. For each score and share: how much of the sum the chosen weights hold, with the same std
for every weight, and with a tenth of each tensor's root mean square, which is how `PartialBayes`
starts. "oracle" chooses by the squared derivatives themselves.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import torch
from provenance import provenance
from torch import Tensor, nn

import bayesify as bf
from bayesify.data import loader
from bayesify.methods.partial_bayes import best
from bayesify.recipes.warm_start import with_weights

SCORES = ("jacobian", "fisher", "mean_abs_grad", "grad", "magnitude", "random")
SHARES = (0.01, 0.05, 0.2)
NUM_EXAMPLES, TRUTH_BATCH = 5000, 10


def trained(name: str, weights: Path | None, statistics: str, epochs: int) -> tuple[nn.Module, Any]:
    """Return a trained network and its data."""
    if name == "lenet_300_100":
        data = bf.load_dataset("mnist")
        net = bf.build_model(name, batch_norm=True)
    else:
        data = bf.load_dataset("cifar10", statistics=statistics)
        net = bf.build_model(name)
    if weights is not None:
        return with_weights(net, weights).eval(), data
    torch.manual_seed(0)
    model = bf.convert(net, bf.Deterministic())
    train = loader(data.train, 100, shuffle=True)
    bf.fit(model, train, epochs=epochs, seed=0, progress=False)
    return bf.revert(model).eval(), data


def flat(found: dict[str, Tensor]) -> Tensor:
    return torch.cat([value.flatten() for value in found.values()]).double()


def rows(net: nn.Module, data: Any) -> list[dict[str, Any]]:
    some = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(0))
    train = data.train.select(some[:NUM_EXAMPLES]).with_augmentation(None)
    test = data.test.select(torch.arange(min(NUM_EXAMPLES, len(data.test))))
    truth = bf.sensitivity(net, loader(test, TRUTH_BATCH), "jacobian", seed=1)
    sizes = {name: net.get_parameter(name).detach().square().mean() for name in truth}
    # The truth is an estimate too: a second one says how well an oracle could do at most.
    again = flat(bf.sensitivity(net, loader(test, TRUTH_BATCH), "jacobian", seed=2))
    by_std = {
        "equal": flat(truth),
        "by tensor": flat({name: truth[name] * sizes[name] for name in truth}),
    }
    scores = {"oracle": (again, 0.0)}
    for name in SCORES:
        began = time.perf_counter()
        found = bf.sensitivity(net, loader(train, 100), name)
        scores[name] = (flat(found), time.perf_counter() - began)
    result = []
    for name, (score, seconds) in scores.items():
        row: dict[str, Any] = {"score": name, "seconds": round(seconds, 2)}
        for share in SHARES:
            chosen = best(score, share)
            for std, variance in by_std.items():
                held = float(variance[chosen].sum() / variance.sum())
                row[f"{100 * share:g} %, {std}"] = round(held, 4)
        row["rank correlation"] = round(_spearman(score, by_std["equal"]), 4)
        result.append(row)
    return result


def _spearman(first: Tensor, second: Tensor) -> float:
    ranks = [value.argsort().argsort().double() for value in (first, second)]
    ranks = [rank - rank.mean() for rank in ranks]
    return float(
        (ranks[0] * ranks[1]).sum() / math.sqrt(ranks[0].square().sum() * ranks[1].square().sum())
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--network", default="lenet_300_100")
    parser.add_argument("--weights", type=Path, help="state dict of a trained network")
    parser.add_argument("--statistics", default="cifar", help="how images are normalised")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    wanted = parser.parse_args()
    net, data = trained(wanted.network, wanted.weights, wanted.statistics, wanted.epochs)
    net, data = net.to(wanted.device), data.to(torch.device(wanted.device))
    report = {
        "provenance": provenance(__file__),
        "network": wanted.network,
        "weights": None if wanted.weights is None else wanted.weights.name,
        "rows": rows(net, data),
    }
    out = wanted.out or Path(f"results/pbn/selection_{wanted.network}.json")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(report, indent=2) + "\n")
    for row in report["rows"]:
        print(", ".join(f"{key} {value}" for key, value in row.items()))


if __name__ == "__main__":
    main()
