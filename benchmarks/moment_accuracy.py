"""Propagated standard deviations over those of sampling, raw and corrected, for trained networks.

    python benchmarks/moment_accuracy.py                    # dense network and LeNet-5, MNIST
    python benchmarks/moment_accuracy.py --networks resnet_18 --data cifar10 --beta 1e-3 --epochs 6
    python benchmarks/moment_accuracy.py --networks vit_small --data tiny_imagenet --beta 1e-3 \
        --learning-rate 2e-4 --epochs 20                    # both for a GPU
    python benchmarks/moment_accuracy.py --networks resnet_18 --data cifar10 --beta 1e-3 \
        --epochs 2 --width 16 --samples 1000 --images 128   # half an hour of one core
    python benchmarks/moment_accuracy.py --networks cifar_resnet --data digits --epochs 15
        (with --out results/vdp/moment_accuracy_digits.json)
    python benchmarks/moment_accuracy.py --networks mlp --by pooled --rules exact,pooled
    python benchmarks/moment_accuracy.py --networks vit_small --data tiny_imagenet --model \
        runs/full/vdp/vit_tiny_imagenet_pooled/pooled-seed0/model.safetensors

A posterior is trained, mean-field by draws of weights or by moments with a variance for each unit
(`--by`), then the standard deviation of every output (logit) of test images is found by one pass
of moments, by the exact rules, the first-order ones, those that carry what positions share and the
pooled ones, by derivatives of the pass of exact moments ("covariance"), by linearising the network,
and over sampled weights. Factors are fitted to training
images, ratios taken on test images. "rank" is the rank correlation of the
uncertainty of an image: the mean standard deviation of its outputs, the standard deviation of the
probability of its predicted class, the entropy of its class probabilities, and its mutual
information with the weights. At the end the last three as a few draws have them, and derivatives
of the largest logits only; "passes" is what each took, in sampled passes. "drawn" is the accuracy
of single draws of the weights.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from provenance import provenance
from torch import Tensor, nn

import bayesify as bf
from bayesify.conversion.convert import require_record
from bayesify.conversion.posterior import How
from bayesify.conversion.scope import forward_by
from bayesify.data import loader
from bayesify.moments import moment_rules
from bayesify.moments.rule_table import RULES

OPTIONS: dict[str, dict[str, Any]] = {
    "mlp": {"hidden": (300, 100)},
    "cifar_resnet": {"depth": 8, "width": 8},
    "vit_small": {"patch_size": 8},
    # For digits of 8x8.
    "vit_mini": {"patch_size": 2, "width": 64},
}
FEW_DRAWS, FEW_LOGITS = (4, 10, 30), (1, 3)
METHODS: dict[str, bf.Method] = {
    "mean_field": bf.MeanField(prior_std=0.1),
    "exact": bf.MomentPropagation(prior_std=0.1, scale="out"),
    "pooled": bf.MomentPropagation(prior_std=0.1, scale="out", rules="pooled"),
    "covariance": bf.FullCovariance(prior_std=0.1, scale="out"),
    "covariance_at_mean": bf.FullCovariance(prior_std=0.1, scale="out", through="mean"),
}
# Ways to predict that derive, beside each set of rules for moments.
DERIVED = ("covariance", "linearised")


def built(name: str, data: Any, width: int | None = None) -> nn.Module:
    """Return a plain network for some data."""
    options = {**OPTIONS.get(name, {})}
    if name != "mlp":
        options |= {"num_classes": data.num_classes, "in_channels": data.input_shape[0]}
    if width is not None:
        options["width"] = width
    if name.startswith("vit"):
        options["image_size"] = data.input_shape[-1]
    return bf.build_model(name, **options)


def trained(net: nn.Module, data: Any, device: str, by: str, **fit_options: Any) -> nn.Module:
    """Return a Bayesian network, trained by how many epochs and so on `fit_options` tell."""
    model = bf.convert(net, METHODS[by])
    train = loader(data.train, 128, shuffle=True)
    bf.fit(model, train, seed=0, progress=False, accelerator=device, **fit_options)
    bf.refresh_norms(model, train)
    return model.eval()


@torch.no_grad()
def accuracy(model: nn.Module, data: Any, device: str, how: How = "mean") -> float:
    """Return the share of right answers on 2,000 test images; drawn, of one draw for each 250."""
    images, targets = data.test.__getitems__(list(range(min(2000, len(data.test)))))
    with forward_by(model, how):
        outputs = torch.cat([model(part.to(device)) for part in images.split(250)])
    return round(float((outputs.argmax(1).cpu() == targets.cpu()).double().mean()), 4)


@torch.no_grad()
def by_draws(
    model: nn.Module, images: Tensor, num_samples: int
) -> tuple[Tensor, dict[str, Tensor], float]:
    """Return standard deviations of outputs, what probabilities say, and seconds a pass."""
    draws = []
    torch.manual_seed(0)
    began = time.perf_counter()
    with forward_by(model, "sample"):
        for index in range(num_samples):
            draws.append(model(images).float().cpu())
            if (index + 1) % 100 == 0:
                print(f"{index + 1} draws", flush=True)
    seconds = (time.perf_counter() - began) / num_samples
    outputs = torch.stack(draws).double()
    probs = outputs.softmax(-1)
    mean = probs.mean(0)
    predicted = probs.std(0).gather(1, mean.argmax(1, keepdim=True))[:, 0]
    entropy, aleatoric = _entropy(mean), _entropy(probs).mean(0)
    said = {"class_std": predicted, "entropy": entropy, "mutual_information": entropy - aleatoric}
    said = {key: value.to(images.device) for key, value in said.items()}
    return outputs.std(0).to(images.device), said, seconds


def _entropy(probs: Tensor) -> Tensor:
    return -torch.special.xlogy(probs, probs).sum(-1)


def found_std(model: nn.Module, images: Tensor, by: str) -> tuple[Tensor, float]:
    began = time.perf_counter()
    likelihood = bf.GaussianRegression(1.0)
    found = bf.predict(model, images, by=by, likelihood=likelihood, batch_size=len(images))
    found.epistemic.sum().item()  # waits for the device
    return found.epistemic.double().sqrt(), time.perf_counter() - began


def read_off(model: nn.Module, images: Tensor, **options: Any) -> dict[str, Tensor]:
    """Return what class probabilities say of every image."""
    found = bf.predict(
        model, images, likelihood="classification", batch_size=len(images), **options
    )
    predicted = found.variance.gather(1, found.classes[:, None])[:, 0].sqrt()
    said = {"class_std": predicted, "entropy": found.entropy}
    return said | {"mutual_information": found.mutual_information}


def ranks(said: dict[str, Tensor], sampled: dict[str, Tensor]) -> dict[str, float]:
    return {f"rank_{key}": round(rank(said[key], sampled[key]), 4) for key in said}


def by_few(
    model: nn.Module, images: Tensor, sampled: dict[str, Tensor], seconds: float
) -> list[dict[str, Any]]:
    """Return rows of a few draws, and of the largest logits linearised."""
    choices = [{"by": "sample", "num_samples": number, "seed": 1} for number in FEW_DRAWS]
    few = itertools.product(DERIVED, FEW_LOGITS)
    choices += [{"by": by, "num_outputs": number} for by, number in few]
    rows = []
    for options in choices:
        read_off(model, images[:32], **options)
        began = time.perf_counter()
        said = read_off(model, images, **options)
        said["entropy"].sum().item()  # waits for the device
        passes = (time.perf_counter() - began) / seconds
        words = " ".join(str(value) for key, value in options.items() if key != "seed")
        rows.append({"rules": words, "passes": round(passes, 2), **ranks(said, sampled)})
    return rows


def rank(found: Tensor, truth: Tensor) -> float:
    places = [each.argsort().argsort().double() for each in (found, truth)]
    return float(torch.corrcoef(torch.stack(places))[0, 1])


def compared(found: Tensor, truth: Tensor) -> dict[str, float]:
    ratio = (found / truth).flatten()
    levels = torch.tensor([0.05, 0.5, 0.95], dtype=torch.float64, device=ratio.device)
    low, median, high = ratio.quantile(levels).tolist()
    numbers = {
        "median": median,
        "low": low,
        "high": high,
        "rank": rank(found.mean(1), truth.mean(1)),
    }
    return {name: round(value, 4) for name, value in numbers.items()}


def shown(row: dict[str, Any]) -> None:
    print(", ".join(f"{key} {value}" for key, value in row.items()), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--networks", default="mlp,lenet_5")
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--beta", type=float, default=0.1, help="weight of the KL")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--width", type=int, help="of the network, where it takes one")
    parser.add_argument("--by", default="mean_field", choices=METHODS, help="how it is trained")
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--raw", action="store_true", help="leave out factors per module")
    parser.add_argument("--model", type=Path, help="file of a trained network, in place of one")
    parser.add_argument("--precision", default="32-true", help="of training; bf16-mixed on a CPU")
    parser.add_argument("--save", type=Path, help="where to save the network that was trained")
    parser.add_argument("--rules", default=",".join(RULES), help="of moments, beside what derives")
    parser.add_argument("--out", type=Path, default=Path("results/vdp/moment_accuracy.json"))
    wanted = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    data = bf.load_dataset(wanted.data)
    test, _ = data.test.__getitems__(list(range(wanted.images)))
    fitting, _ = data.train.with_augmentation(None).__getitems__(list(range(128)))
    rows: list[dict[str, Any]] = []
    accuracies: dict[str, float] = {}
    for name in wanted.networks.split(","):
        options = {"learning_rate": wanted.learning_rate, "beta": wanted.beta}
        options |= {"epochs": wanted.epochs, "precision": wanted.precision}
        torch.manual_seed(0)
        net = built(name, data, wanted.width)
        if wanted.model is None:
            model = trained(net, data, device, wanted.by, **options)
            if wanted.save is not None:
                bf.save(model, wanted.save)
        else:
            model = bf.load(wanted.model, net).to(device).eval()
        accuracies[name] = accuracy(model, data, device)
        accuracies[f"{name}, drawn"] = accuracy(model, data, device, how="sample")
        images = test.to(device)
        truth, sampled, seconds = by_draws(model, images, wanted.samples)
        each_way = itertools.product(wanted.rules.split(","), (False, True)[: 2 - wanted.raw])
        ways = [("moments", rules, is_corrected) for rules, is_corrected in each_way]
        for by, rules, is_corrected in [*ways, *((by, "exact", False) for by in DERIVED)]:
            record = require_record(model)
            if isinstance(record.method, bf.MomentPropagation):
                # It would take its own.
                record.method = replace(record.method, rules=rules)
            if not is_corrected:
                record.moment_factors = None
            with moment_rules(rules):
                if is_corrected:
                    bf.correct_moments(model, fitting.to(device), num_samples=400)
                said = read_off(model, images, by=by)
                found, taken = found_std(model, images, by)
            words = rules if by == "moments" else by
            row = {"network": name, "rules": words, "passes": round(taken / seconds, 2)}
            row |= {"corrected": is_corrected, **compared(found, truth)}
            rows.append(row | ranks(said, sampled))
            shown(rows[-1])
        for row in by_few(model, images, sampled, seconds):
            rows.append({"network": name, **row})
            shown(rows[-1])
    report = {
        "provenance": provenance(__file__),
        "samples": wanted.samples,
        "trained_by": wanted.by,
        "accuracy": accuracies,
        "rows": rows,
    }
    wanted.out.parent.mkdir(parents=True, exist_ok=True)
    wanted.out.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
