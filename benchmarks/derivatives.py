"""What `predict` by "covariance", "linearised" and "moments" costs, in passes with sampled weights.

    python benchmarks/derivatives.py
    python benchmarks/derivatives.py --networks resnet_18 --images 32

Networks are untrained, which no cost depends on. A sampled pass is the mean over ten draws of
`predict(by="sample")`, which draws as many at a time as its limit of memory allows; each is the
shortest of three runs. A number behind a way is how many logits have a derivative.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from provenance import provenance
from torch import Tensor, nn

import bayesify as bf

SHAPES = {"lenet_300_100": (1, 28, 28), "lenet_5": (1, 28, 28)}
METHODS = {
    "a variance per weight": bf.MeanField(initial_std=0.01),
    "a variance per unit": bf.MeanField(initial_std=0.01, scale="out"),
}
WAYS: dict[str, dict[str, Any]] = {"moments": {"by": "moments"}} | {
    f"{by}{f' {number}' if number else ''}": {"by": by, "num_outputs": number}
    for by in ("covariance", "linearised")
    for number in (None, 3, 1)
}
NUM_DRAWS, NUM_RUNS = 10, 3


def milliseconds(model: nn.Module, images: Tensor, **options: Any) -> float:
    """Return the time of the shortest of some predictions."""
    times = []
    for _ in range(NUM_RUNS):
        start = time.perf_counter()
        found = bf.predict(model, images, likelihood="classification", **options)
        found.probs.sum().item()  # waits for the device
        times.append(1e3 * (time.perf_counter() - start))
    return min(times)


def main() -> None:
    """Time each network and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", default="lenet_300_100,lenet_5,resnet_20,resnet_18,vit_mini")
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--out", type=Path, default=Path("results/vdp/derivatives.json"))
    wanted = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rows: list[dict[str, Any]] = []
    for name in wanted.networks.split(","):
        for words, method in METHODS.items():
            torch.manual_seed(0)
            shape = SHAPES.get(name, (3, 32, 32))
            model = bf.convert(bf.build_model(name), method).to(device)
            images = torch.randn(wanted.images, *shape, device=device)
            drawn = milliseconds(model, images, by="sample", num_samples=NUM_DRAWS)
            row: dict[str, Any] = {"network": name, "scales": words, "images": wanted.images}
            row["sampled_ms"] = round(drawn / NUM_DRAWS, 2)
            for way, options in WAYS.items():
                taken = milliseconds(model, images, **options)
                row[way] = round(NUM_DRAWS * taken / drawn, 1)
            rows.append(row)
            print(", ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    report = {"provenance": provenance(__file__), "rows": rows}
    wanted.out.parent.mkdir(parents=True, exist_ok=True)
    wanted.out.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
