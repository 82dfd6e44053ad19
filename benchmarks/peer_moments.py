"""Moments by FastBNNs beside those of `MomentPropagation`: what runs, time, accuracy.

    python benchmarks/peer_moments.py --quick                 # smoke test, seconds
    python benchmarks/peer_moments.py                         # minutes; on a GPU too
    python benchmarks/peer_moments.py --networks resnet_18 --skip-accuracy --precisions bfloat16 \
        --compile inference step --contestants fastbnns exact "exact, per unit"   # long to compile

FastBNNs does not come with the library: `pip install --no-deps fastbnns`. MNIST has to lie where
`bf.load_dataset` looks for it. A network gets a posterior with a variance per weight and one with a
variance per unit, trained for a short time by draws of weights (ResNet-18 on digits of three
channels and 32x32 pixels). Both libraries have their means and standard deviations, random biases
and plain norms, and are held against the same sampled networks; "one_layer" and "kl_difference" say
whether they mean the same distribution. Accuracy is compared where FastBNNs has a pass.

FastBNNs takes ReLUs, and functions that it has no rule for, through three points of every input;
"by its rules" has its formula for a ReLU there, which it offers but does not choose, and its rule
for `nn.AvgPool2d` at the end of ResNet-18. What runs is tried of what it converts a network to, and
of a deep copy of that, whose standard deviations have memory of their own; such a copy is timed.

A training step is forward, expected cross-entropy over 16 draws of the logits, KL, backward and SGD
(on a CPU with subnormal numbers as zero, as in `fit`). Contestants take turns; times are medians.
Peak memory is of a step. On a CPU, ResNet-18 has a quarter of its width for accuracy.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from gpu_turns import milliseconds
from moment_accuracy import accuracy, by_draws, compared
from provenance import provenance
from torch import Tensor, nn

import bayesify as bf
from bayesify.data import loader
from bayesify.data.dataset import TensorData
from bayesify.training.compiling import compile_options

try:
    from moment_contestants import DEVICE, ON_GPU, SCALES, Fast, by_moments, contestant, fast
except ImportError as error:
    sys.exit(f"{error}. This benchmark needs FastBNNs: pip install --no-deps fastbnns")

# All contestants of a library are one class with other modules in it.
torch._dynamo.config.recompile_limit = 64


class Setting(NamedTuple):
    """A network, and how it is measured on this kind of machine."""

    shape: tuple[int, int, int]
    batch: int
    options: dict[str, Any]
    narrow: dict[str, Any]  # options for accuracy alone
    train_images: int
    samples: int = 2000
    epochs: int = 1
    beta: float = 0.1


DIGIT, PICTURE = (1, 28, 28), (3, 32, 32)
BIG, SMALL = ({}, 30_000, 2000), ({"width": 16}, 6_400, 300)
NETWORKS = {
    "mlp": Setting(DIGIT, (128, 512)[ON_GPU], {"hidden": (300, 100)}, {}, 60_000, epochs=3),
    "lenet_5": Setting(DIGIT, (64, 512)[ON_GPU], {}, {}, (20_000, 60_000)[ON_GPU]),
    "resnet_18": Setting(PICTURE, (4, 512)[ON_GPU], {}, *(SMALL, BIG)[ON_GPU], beta=1e-3),
    "vit_mini": Setting(PICTURE, (8, 512)[ON_GPU], {}, {}, 0),
}


def digits(setting: Setting, part: TensorData, number: int) -> TensorData:
    """Return the first MNIST digits in the shape that a network reads."""
    room, channels = (setting.shape[-1] - part.inputs.shape[-1]) // 2, setting.shape[0]
    images, normal = F.pad(part.inputs[:number], (room,) * 4), cast(Any, part.transform)
    return TensorData(
        images, part.targets[:number], lambda some: normal(some).expand(-1, channels, -1, -1)
    )


def trained(name: str, scale: Any, data: Any, wanted: argparse.Namespace) -> nn.Module:
    setting = NETWORKS[name]
    torch.manual_seed(0)
    plain = bf.build_model(name, **setting.options, **setting.narrow)
    model = bf.convert(plain, bf.MeanField(prior_std=0.1, biases=True, scale=scale))
    train = loader(digits(setting, data.train, setting.train_images), 128, shuffle=True)
    options: Any = {"learning_rate": 1e-3, "beta": setting.beta, "seed": 0, "progress": False}
    options["epochs"] = wanted.train_epochs or setting.epochs
    bf.fit(model, train, accelerator=DEVICE, **options)
    bf.refresh_norms(model, train, num_batches=20)
    return model.to(DEVICE).eval()


def said(call: Callable[[], object]) -> str:
    """Return "ok", or the error in one line."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())}"[:400]
    return "ok"


def what_runs(net: nn.Module, images: Tensor) -> dict[str, dict[str, str]]:
    """Return what each library says at each stage: "ok", or the error."""
    makers: dict[str, Callable[[], nn.Module]] = {
        "fastbnns": lambda: Fast(net),
        "fastbnns, copied": lambda: copy.deepcopy(Fast(net)),
        "bayesify": lambda: by_moments(bf.convert(net, bf.MomentPropagation())),
    }
    return {what: stages_of(make, images) for what, make in makers.items()}


def stages_of(make: Callable[[], nn.Module], images: Tensor) -> dict[str, str]:
    """Return which stages work: moments have to be finite, and the same twice."""
    stages = {"conversion": said(make)}
    if stages["conversion"] != "ok":
        return stages
    network = make()
    optimizer = torch.optim.SGD(network.parameters(), 1e-4, momentum=0.9)

    def forward() -> None:
        (mean, variance), (again, _) = network(images), network(images)
        if not (mean.isfinite().all() and (variance >= 0).all()):
            raise ValueError("moments are not finite")
        if not torch.allclose(mean, again, rtol=1e-3, atol=1e-4):
            raise ValueError("two passes differ: something is drawn")

    def step() -> None:
        mean, variance = network(images)
        (mean.square().mean() + variance.mean()).backward()
        optimizer.step()
        if not all(each.isfinite().all() for each in network.parameters()):
            raise ValueError("weights are not finite after one step")

    for stage, is_training in (("forward", False), ("forward, training mode", True)):
        network.train(is_training)
        stages[stage] = said(forward)
    stages["step"] = said(step)
    stages["reload"] = said(lambda: make().load_state_dict(network.state_dict()))
    return stages


@torch.no_grad()
def one_layer() -> dict[str, float]:
    """Return medians of one layer's standard deviations over ours."""
    posterior = bf.convert(nn.Sequential(nn.Linear(64, 100)), bf.MeanField(biases=True)).to(DEVICE)
    network, images = fast(posterior).to(DEVICE), torch.randn(16, 64, device=DEVICE)
    ours = contestant("exact", posterior).network(images)[1].sqrt()
    found = {
        "fastbnns": network(images)[1].sqrt(),
        "fastbnns, drawn": torch.stack([network.bnn(images) for _ in range(2000)]).std(0),
        "bayesify, drawn": torch.stack([posterior(images) for _ in range(2000)]).std(0),
    }
    return {what: round(float((each / ours).median()), 5) for what, each in found.items()}


def timed(network: nn.Module, call: Callable[[], object], is_training: bool) -> float:
    network.train(is_training)
    if ON_GPU:
        return milliseconds(call, inner=3)
    began = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - began)


def costs(name: str, precision: str, wanted: argparse.Namespace) -> list[dict[str, Any]]:
    """Return time and memory of all contestants, and their ratios to the plain network's."""
    setting = NETWORKS[name]
    images = torch.randn(setting.batch, *setting.shape, device=DEVICE)
    batch = (images, torch.randint(0, 10, (len(images),), device=DEVICE))
    plain = bf.build_model(name, **setting.options)
    options = compile_options(True, torch.device(DEVICE))
    rows: dict[str, dict[str, Any]] = {}
    calls: dict[tuple[str, str], Callable[[], float]] = {}
    for what in wanted.contestants:
        scale = SCALES[what]
        row = rows[what] = {"network": name, "what": what, "precision": precision}
        others = torch.cuda.memory_allocated() if ON_GPU else 0
        one = contestant(what, bf.convert(plain, bf.MeanField(scale=scale, biases=True)))
        optimizer = torch.optim.SGD(one.network.parameters(), 1e-4, momentum=0.9)
        code = torch.compile(one.network, options=options)
        for kind in ("inference", "step", *(f"{kind}_compiled" for kind in wanted.compile)):
            network, is_step = code if "compiled" in kind else one.network, "step" in kind
            step = partial(one.step, network, batch, precision, optimizer)
            infer = partial(one.infer, network, images, precision)
            call = partial(timed, one.network, step if is_step else infer, is_step)
            row[f"{kind}_runs"] = said(call)
            if row[f"{kind}_runs"] == "ok":
                calls[what, kind] = call
        if ON_GPU and (what, "step") in calls:
            torch.cuda.reset_peak_memory_stats()
            calls[what, "step"]()
            row["peak_bytes"] = torch.cuda.max_memory_allocated() - others
    found: dict[tuple[str, str], list[float]] = {which: [] for which in calls}
    for _ in range(wanted.rounds):
        for which, call in calls.items():
            found[which].append(call())
    for (what, kind), each in found.items():
        rows[what][f"{kind}_ms"] = round(statistics.median(each), 3)
    for row in rows.values():
        for key in [key for key in row if key.endswith(("_ms", "_bytes"))]:
            row[f"{key.rsplit('_', 1)[0]}_ratio"] = round(row[key] / rows["plain"][key], 2)
    return list(rows.values())


def spread(name: str, data: Any, wanted: argparse.Namespace) -> list[dict[str, Any]]:
    """Return standard deviations of logits over those of sampling, for both posteriors."""
    setting = NETWORKS[name]
    test = digits(setting, data.test, 1000)
    images = test.__getitems__(list(range((64, 128)[ON_GPU])))[0].to(DEVICE)
    rows: list[dict[str, Any]] = []
    for scale, ours in (("weight", "exact"), ("out", "exact, per unit")):
        posterior = trained(name, scale, data, wanted)
        right = accuracy(posterior, SimpleNamespace(test=test), DEVICE)
        truth, _, _ = by_draws(posterior, images, setting.samples)
        kl = float(contestant(ours, posterior).kl())
        for what in list(SCALES)[1:]:
            if SCALES[what] != scale and not what.startswith("fastbnns"):
                continue
            one = contestant(what, posterior)
            for precision in wanted.precisions:
                row = {"network": name, "what": what, "scale": scale, "precision": precision}
                row |= {"samples": setting.samples, "test_accuracy": right}
                row["kl_difference"] = abs(float(one.kl()) / kl - 1)
                rows.append(
                    row
                    | compared(one.infer(one.network, images, precision)[1].double().sqrt(), truth)
                )
    return rows


def shown(report: dict[str, Any]) -> None:
    for network, by_library in report["runs"].items():
        for what, stages in by_library.items():
            bad = [f"\n    {stage}: {words}" for stage, words in stages.items() if words != "ok"]
            print(f"{network}, {what}: {''.join(bad) or 'all runs'}")
    print(f"one layer, over our standard deviations: {report['one_layer']}\n")
    form = "{:9} | {:33} | {:4} | {:>9} | {:>8} | {:>6} | {:>8} | {:>6} | {}".format
    words = ("runs", "inference", "compiled", "step", "compiled", "memory", "std ratio, rank")
    print(form("network", "library or rules", *words))
    for row in report["costs"]:
        kinds = ("inference", "inference_compiled", "step", "step_compiled", "peak")
        cells = [row.get(f"{kind}_ratio", "-") for kind in kinds]
        runs = "yes" if row["inference_runs"] == row["step_runs"] == "ok" else "no"
        ratios = [
            f"{one['median']} ({one['low']} .. {one['high']}), {one['rank']} [{one['scale']}]"
            for one in report["accuracy"]
            if all(one[key] == row[key] for key in ("network", "what", "precision"))
        ]
        who = (row["network"], f"{row['what']}, {row['precision']}")
        print(form(*who, runs, *cells, "; ".join(ratios) or "-"))


def main() -> None:
    default = Path(f"results/vdp/peer_moments_{'gpu' if ON_GPU else 'cpu'}.json")
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--train-epochs", type=int, help="in the place of one, or three of the mlp")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--compile", nargs="+", default=[], choices=("inference", "step"))
    parser.add_argument("--contestants", nargs="+", default=list(SCALES), choices=SCALES)
    precisions = ["float32", "bfloat16"][: 1 + ON_GPU]
    parser.add_argument("--precisions", nargs="+", default=precisions)
    parser.add_argument("--skip-accuracy", action="store_true", help="do not train or sample")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that all runs")
    parser.add_argument("--out", type=Path, default=default)
    wanted = parser.parse_args()
    wanted.contestants = list(dict.fromkeys(["plain", *wanted.contestants]))
    for name, each in NETWORKS.items() if wanted.quick else ():
        NETWORKS[name] = each._replace(batch=4, train_images=640, samples=20)
    began = time.perf_counter()
    report: dict[str, Any] = {
        "provenance": {**provenance(__file__), "fastbnns": version("fastbnns")}
    }
    encoder = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    report["runs"] = {"TransformerEncoderLayer": what_runs(encoder, torch.randn(4, 16, 64))}
    report |= {"one_layer": one_layer(), "costs": [], "accuracy": []}
    data = None if wanted.skip_accuracy else bf.load_dataset("mnist")
    for name in wanted.networks.split(","):
        net = bf.build_model(name, **NETWORKS[name].options, **NETWORKS[name].narrow)
        report["runs"][name] = what_runs(net, torch.randn(4, *NETWORKS[name].shape))
        for precision in wanted.precisions:
            report["costs"] += costs(name, precision, wanted)
        if data is not None and report["runs"][name]["fastbnns"]["forward"] == "ok":
            report["accuracy"] += spread(name, data, wanted)
        print(f"{name}: done after {time.perf_counter() - began:.0f} s", flush=True)
    report["provenance"]["wall_seconds"] = round(time.perf_counter() - began, 1)
    wanted.out.parent.mkdir(parents=True, exist_ok=True)
    wanted.out.write_text(json.dumps(report, indent=2) + "\n")
    shown(report)


if __name__ == "__main__":
    main()
