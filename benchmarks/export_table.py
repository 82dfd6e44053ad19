"""Which models, with which methods, go to ONNX, and how close the file comes to torch.

    python benchmarks/export_table.py               # one core for an hour; it can be interrupted
    python benchmarks/export_table.py --only resnet_18,unet --again

Every registered model, with every method that has a posterior, in the three kinds of file; deep or
wide twins of another network with one method each, in turn, unless --all. Networks are narrow,
for the graph does not depend on the width, and untrained: weights are seeded, norms have the
statistics of random inputs, scales are a tenth of the weights.

A row is written as soon as it is measured, and rows that are in the file are not measured again.
"seconds" is the process's own time in `export`, its comparison with torch included. "difference" is
the largest difference of any output from what `predict` says, over the largest entry of that output
(over 1 at least for probabilities and entropies), for each size of the batch, on inputs that
`export` did not see. Files of samples draw: the average of their probabilities over 64 draws is
compared with 64 draws of torch, and "standard_errors" is the root mean square of the difference in
standard errors, 1 where both draw the same law.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from provenance import provenance
from torch import Tensor, nn

import bayesify as bf
from bayesify.models import models
from bayesify_runtime import Runtime

BATCH_SIZES = (1, 3, 5)
NUM_SAMPLES, NUM_DRAWS = 2, 64
MOST_DIFFERENCE = 1e-4
# The root mean square over some ten probabilities at one batch: their errors hang together.
MOST_STANDARD_ERRORS = 4.0
SMALL = (3, 8, 8)
KINDS: tuple[Any, ...] = ("mean", "moments", "samples")
VERDICTS = ("agree", "differ", "refused")
OF_CLASSES = ("probs", "entropy", "expected_entropy", "mutual_information")

# Options and the shape of an input; what is not here is as registered.
NARROW: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "alexnet": ({"width": 2, "image_size": 16}, (3, 16, 16)),
    "cifar_resnet": ({"width": 4, "depth": 8}, SMALL),
    **{f"densenet_{depth}": ({"growth_rate": 2}, SMALL) for depth in (121, 161, 169, 201)},
    "lenet_300_100": ({"in_features": 20}, (20,)),
    "lenet_5": ({"image_size": 16}, (1, 16, 16)),
    "mlp": ({"in_features": 20, "hidden": (16, 16)}, (20,)),
    **{f"preact_resnet_{depth}": ({"width": 2}, SMALL) for depth in (18, 34, 50, 101, 152)},
    **{f"resnet_{depth}": ({"width": 2}, SMALL) for depth in (18, 20, 56)},
    "text_transformer": ({"vocabulary_size": 50, "width": 8, "length": 12}, (12,)),
    "unet": ({"width": 2, "depth": 2}, SMALL),
    **{f"vgg_{depth}": ({"width": 2}, (3, 32, 32)) for depth in (11, 13, 16, 19)},
    "vit_mini": ({"width": 16, "depth": 2, "image_size": 8}, SMALL),
    **{
        f"vit_{size}": ({"depth": 1, "image_size": 32, "num_classes": 10}, (3, 32, 32))
        for size in ("tiny", "small", "base")
    },
    "volume_encoder": ({"width": 2, "pools": (3, 2)}, (1, 6, 6, 6)),
}
# More or wider blocks of the same kind: what is left to show is that their number does no harm. The
# last ones take minutes.
TWINS = (
    "vgg_13",
    "vgg_16",
    "vgg_19",
    "vit_tiny",
    "vit_small",
    "vit_base",
    "resnet_20",
    "preact_resnet_34",
    "preact_resnet_50",
    "resnet_56",
    "densenet_121",
    "preact_resnet_101",
    "densenet_161",
    "densenet_169",
    "preact_resnet_152",
    "densenet_201",
)
METHODS: dict[str, Callable[[], Any]] = {
    "MeanField": bf.MeanField,
    "VariationalDropout": bf.VariationalDropout,
    "PartialBayes": lambda: bf.PartialBayes(0.3, score="magnitude"),
    "SparseSubspace": lambda: bf.SparseSubspace(density=0.5),
    "MomentPropagation": bf.MomentPropagation,
    "MonteCarloKL": lambda: bf.MonteCarloKL(family="radial"),
}


def inputs_of(name: str, size: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    options, shape = NARROW[name]
    if "vocabulary_size" in options:
        return torch.randint(0, options["vocabulary_size"], (size, *shape), generator=generator)
    return torch.randn(size, *shape, generator=generator)


def network(name: str) -> nn.Module:
    torch.manual_seed(0)
    net = bf.build_model(name, **NARROW[name][0]).train()
    with torch.no_grad():
        for seed in range(10):
            net(inputs_of(name, 16, seed))
    return net.eval()


def cells(wanted: list[str], is_all: bool) -> Iterator[tuple[str, str, str]]:
    """Yield every cell: all models with the first method first, twins at the end."""
    usual = [name for name in wanted if name not in TWINS]
    for method in METHODS:
        yield from ((name, method, what) for name in usual for what in KINDS)
    for what in ("mean", "samples", "moments"):
        for name in (name for name in TWINS if name in wanted):
            chosen = METHODS if is_all else [_method_of(name)]
            yield from ((name, method, what) for method in chosen)


def _method_of(name: str) -> str:
    return list(METHODS)[TWINS.index(name) % len(METHODS)]


def measured(net: nn.Module, name: str, method: str, what: Any) -> dict[str, Any]:
    """Return what one cell of the table says."""
    torch.manual_seed(1)
    model = bf.convert(net, METHODS[method]())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        began = time.process_time()
        try:
            bf.export(
                model,
                path,
                what=what,
                num_samples=NUM_SAMPLES,
                example_inputs=inputs_of(name, 2, seed=100),
                likelihood="classification",
            )
        except Exception as error:  # whatever it is, the table says it
            seconds = round(time.process_time() - began, 2)
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            return {"refused": f"{type(error).__name__}: {reason}", "seconds": seconds}
        seconds = round(time.process_time() - began, 2)
        about = {"seconds": seconds, "bytes": path.stat().st_size}
        return {**about, **compared(Runtime(path), model, name, what)}


def compared(runtime: Runtime, model: nn.Module, name: str, what: str) -> dict[str, Any]:
    batches = {size: inputs_of(name, size, seed=200 + size) for size in BATCH_SIZES}
    if what == "samples":
        found = {size: standard_errors(runtime, model, batch) for size, batch in batches.items()}
        is_close = max(found.values()) <= MOST_STANDARD_ERRORS
        return {"standard_errors": found, "agrees": is_close}
    found = {size: difference(runtime, model, batch, what) for size, batch in batches.items()}
    return {"difference": found, "agrees": max(found.values()) <= MOST_DIFFERENCE}


def difference(runtime: Runtime, model: nn.Module, batch: Tensor, what: str) -> float:
    answer = runtime(batch.numpy())
    shares = []
    for name, reference in references(model, batch, what).items():
        expected = reference.numpy()
        scale = float(np.abs(expected).max())
        scale = max(scale, 1.0) if name in OF_CLASSES else scale
        shares.append(float(np.abs(answer[name] - expected).max()) / (scale or 1.0))
    # Not max: NaN is not larger than anything.
    return float(f"{np.max(shares):.2g}")


def references(model: nn.Module, batch: Tensor, what: str) -> dict[str, Tensor]:
    if what == "mean":
        with torch.no_grad(), bf.mean_weights(model):
            return {"mean": model.eval()(batch)}
    plain = bf.predict(model, batch, by="moments", likelihood=bf.GaussianRegression(1.0))
    classes = bf.predict(model, batch, by="moments", likelihood="classification")
    found = {"mean": plain.mean, "variance": plain.epistemic}
    return {**found, **{name: getattr(classes, name) for name in OF_CLASSES}}


def standard_errors(runtime: Runtime, model: nn.Module, batch: Tensor) -> float:
    calls = [runtime(batch.numpy()) for _ in range(NUM_DRAWS // NUM_SAMPLES)]
    probs = np.mean([call["probs"] for call in calls], 0)
    spread = np.mean([call["probs_variance"] for call in calls], 0)
    expected = bf.predict(
        model, batch, by="sample", num_samples=NUM_DRAWS, likelihood="classification", seed=0
    )
    error = (spread + expected.variance.numpy()) / NUM_DRAWS
    squares = np.mean((probs - expected.probs.numpy()) ** 2)
    return round(math.sqrt(squares / np.mean(error)), 2)


def summary(rows: list[dict[str, Any]]) -> str:
    """Return, by method and kind of file, how many agree, differ and were refused."""
    counts = Counter((row["method"], row["what"], _verdict(row)) for row in rows)
    lines = []
    for method in METHODS:
        for what in KINDS:
            parts = [f"{counts[method, what, verdict]} {verdict}" for verdict in VERDICTS]
            lines.append(f"{method:20}{what:9}{', '.join(parts)}{_worst(rows, method, what)}")
    for row in rows:
        if _verdict(row) != VERDICTS[0]:
            reason = row.get("refused", "differs from torch")
            lines.append(f"{row['model']}, {row['method']}, {row['what']}: {reason}")
    return "\n".join(lines)


def _verdict(row: dict[str, Any]) -> str:
    agree, differ, refused = VERDICTS
    return refused if "refused" in row else agree if row["agrees"] else differ


def _worst(rows: list[dict[str, Any]], method: str, what: str) -> str:
    found = [
        max(row[key].values())
        for row in rows
        for key in ("difference", "standard_errors")
        if (row["method"], row["what"]) == (method, what) and key in row
    ]
    if not found:
        return ""
    unit = "standard errors" if what == "samples" else "of the scale"
    return f"; at most {max(found):.2g} {unit} apart"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default=",".join(models), help="models, with commas between")
    parser.add_argument("--all", action="store_true", help="twins with every method")
    parser.add_argument("--again", action="store_true", help="measure rows that are there already")
    parser.add_argument("--out", type=Path, default=Path("results/export/table.json"))
    wanted = parser.parse_args()
    torch.set_num_threads(1)
    report: dict[str, Any] = {
        "provenance": provenance(__file__),
        "num_samples": NUM_SAMPLES,
        "options": {name: {**NARROW[name][0], "input": NARROW[name][1]} for name in models},
        "rows": [],
    }
    if wanted.out.is_file():
        report["rows"] = json.loads(wanted.out.read_text())["rows"]
    chosen = list(cells(wanted.only.split(","), wanted.all))
    rows = {(row["model"], row["method"], row["what"]): row for row in report["rows"]}
    if wanted.again:
        rows = {key: row for key, row in rows.items() if key not in chosen}
    nets: dict[str, nn.Module] = {}
    for cell in chosen:
        if cell in rows:
            continue
        name, method, what = cell
        net = nets.setdefault(name, network(name))
        row = measured(net, name, method, what)
        rows[cell] = {"model": name, "method": method, "what": what, **row}
        print(json.dumps(rows[cell]), flush=True)
        report["rows"] = list(rows.values())
        wanted.out.parent.mkdir(parents=True, exist_ok=True)
        wanted.out.write_text(json.dumps(report, indent=2) + "\n")
    print(summary(report["rows"]))


if __name__ == "__main__":
    main()
