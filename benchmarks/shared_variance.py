"""What positions share: propagated standard deviations of averages over those of sampling.

    python benchmarks/shared_variance.py        # half a minute

Untrained networks of convolutions that end in an average over positions, on smooth random images:
median, 5 % and 95 % of the ratio and rank correlation of an image's uncertainty, by the exact rules
and by those that carry what the positions of a channel share (`bayesify.moments.shared_rules`).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from moment_accuracy import compared, sampled_std
from provenance import provenance
from torch import nn

import bayesify as bf
from bayesify.conversion.scope import forward_by
from bayesify.moments import moment_rules

# Channels of each convolution; a stride of 2 where there is a minus.
NETWORKS = {
    "convolution": (8,),
    "convolution, ReLU": (8, 0),
    "convolution, ReLU, convolution": (16, 0, 8),
    "four convolutions, ReLU between": (16, 0, -32, 0, 32, 0, 8),
}
INITIAL_STD, NUM_IMAGES, SIZE = 0.03, 64, 12


def made(widths: tuple[int, ...]) -> nn.Module:
    layers: list[nn.Module] = []
    channels = 3
    for width in widths:
        if not width:
            layers.append(nn.ReLU())
            continue
        stride = 2 if width < 0 else 1
        layers.append(nn.Conv2d(channels, abs(width), 3, stride, padding=1))
        channels = abs(width)
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return bf.convert(nn.Sequential(*layers), bf.MeanField(initial_std=INITIAL_STD)).eval()


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--out", type=Path, default=Path("results/vdp/shared_variance.json"))
    wanted = parser.parse_args()
    rows = []
    for name, widths in NETWORKS.items():
        torch.manual_seed(0)
        model = made(widths)
        images = torch.randn(NUM_IMAGES, 3, SIZE, SIZE).cumsum(-1) / 3
        truth, _ = sampled_std(model, images, wanted.samples)
        for rules in ("exact", "shared"):
            with forward_by(model, "moments"), moment_rules(rules):
                found = model(images).variance.double().sqrt()
            rows.append({"network": name, "rules": rules, **compared(found, truth)})
            print(rows[-1])
    report = {"provenance": provenance(__file__), "samples": wanted.samples, "rows": rows}
    wanted.out.parent.mkdir(parents=True, exist_ok=True)
    wanted.out.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
