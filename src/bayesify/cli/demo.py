"""`bayesify demo`: a plain and a Bayesian network side by side, in half a minute on one core."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
import typer
from rich.markup import escape
from rich.table import Table
from torch import Tensor, nn

from bayesify.cli.console import answers, errors
from bayesify.conversion import Method, convert
from bayesify.data import TensorData, load_dataset, loader
from bayesify.evaluation import Evaluation
from bayesify.evaluation.evaluate import summarise
from bayesify.methods import Deterministic, MeanField
from bayesify.models import MLP
from bayesify.prediction import Predictive, predict
from bayesify.report.figures import Example, Plane, demo_figure
from bayesify.training import fit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NUM_KNOWN = 8
_QUICK_EPOCHS = 3
PLAIN, BAYESIAN = "plain", "Bayesian"
Answers = tuple[Predictive, Predictive]
"""What a network says of the test digits, and of the digits it has never seen."""


@dataclass(frozen=True)
class Setting:
    """How one of the two networks is made and trained."""

    method: Method
    fit: dict[str, Any]

    def options(self, quick: bool) -> dict[str, Any]:
        """Return the options of `fit`."""
        return {**self.fit, "epochs": _QUICK_EPOCHS} if quick else self.fit

    def in_words(self, quick: bool) -> str:
        """Return every choice that is not a default."""
        chosen = ", ".join(
            f"{field.name}={getattr(self.method, field.name)!r}"
            for field in dataclasses.fields(self.method)
            if getattr(self.method, field.name) != field.default
        )
        options = ", ".join(f"{key}={value}" for key, value in self.options(quick).items())
        return f"{type(self.method).__name__}({chosen}), {options}"


# This network was kept over two dense setups after test results had been seen: the table is an
# illustration, not evidence. The grids below span ranges that came from that exploration.
# The lowest nll of eight settings each on 300 held-out training digits 0 to 7, a mean over three
# seeds at 30 epochs. Plain, 0.047: learning rate 3e-3, 5e-3 × weight decay 0, 1e-3, 3e-3, 1e-2.
# Bayesian, 0.040: prior std 0.3, 1 × beta 0.003, 0.01, 0.03, 0.1. Seeds differ by about 0.006.
DIGITS = {
    PLAIN: Setting(Deterministic(), {"epochs": 30, "learning_rate": 5e-3, "weight_decay": 3e-3}),
    BAYESIAN: Setting(
        MeanField(prior_std=1.0, how="local"),
        {"epochs": 30, "learning_rate": 5e-3, "scale_learning_rate": 2e-2, "beta": 0.003},
    ),
}
MOONS = {
    PLAIN: Setting(Deterministic(), {"epochs": 300, "learning_rate": 1e-2}),
    BAYESIAN: Setting(
        MeanField(prior_std=2.0, initial_std=0.1),
        {"epochs": 400, "learning_rate": 1e-2, "beta": 0.1},
    ),
}
_EXTENT = (-2.4, 3.4, -2.2, 2.7)


def demo(
    out: Annotated[Path, typer.Option(help="Where the picture goes.")] = Path("demo.png"),
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    quick: Annotated[
        bool, typer.Option("--quick", help="A few epochs only: to see that it works.")
    ] = False,
) -> None:
    """Train a plain and a Bayesian network on handwritten digits, and compare them.

    Both learn the digits 0 to 7 that come with scikit-learn; 8 and 9 are
    kept from them. The table says how good and how honest each is on test
    digits, and how well its uncertainty tells the digits it has never seen.
    The picture shows where the Bayesian one is unsure.

    [cyan]bayesify demo[/cyan]

    [cyan]bayesify demo --out pictures/demo.png --seed 1[/cyan]
    """
    began = time.perf_counter()
    with _one_thread():
        tables, num_unseen, figure = _compare(seed, quick)
    _print_table(tables, num_unseen, quick)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=110)
    seconds = time.perf_counter() - began
    answers.print(f"Picture: [bold]{escape(str(out))}[/bold]   ({seconds:.0f} s)")


@contextmanager
def _one_thread() -> Iterator[None]:
    """Compute on one thread: on networks this small, threads wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _compare(seed: int, quick: bool) -> tuple[dict[str, Evaluation], int, Figure]:
    known, test, unseen = _digits()
    num_samples = 10 if quick else 50
    answered: dict[str, Answers] = {}
    tables: dict[str, Evaluation] = {}
    for name, setting in DIGITS.items():
        errors.print(f"training the {name} network on {len(known):,} digits ...")
        model = _train(_network, known, setting, seed, quick)
        familiar, strange = (
            predict(model, _inputs(part), num_samples=num_samples, batch_size=512, seed=seed)
            for part in (test, unseen)
        )
        answered[name] = (familiar, strange)
        tables[name] = summarise([(familiar, test.targets)], {"unseen": [(strange, None)]})
    errors.print("training both on two moons, for the picture ...")
    moons, planes = _moons(seed, num_samples, quick)
    figure = demo_figure(
        planes,
        (moons.inputs, moons.targets),
        {name: (found.probs, test.targets) for name, (found, _) in answered.items()},
        _groups(test, unseen, answered),
        [str(digit) for digit in range(NUM_KNOWN)],
    )
    return tables, len(unseen), figure


def _digits() -> tuple[TensorData, TensorData, TensorData]:
    """Return training and test digits below `NUM_KNOWN`, and every digit that is not."""
    data = load_dataset("digits")
    inputs = torch.cat([data.train.inputs, data.test.inputs])
    every = TensorData(
        inputs, torch.cat([data.train.targets, data.test.targets]), data.test.transform
    )
    known, test = (
        part.select((part.targets < NUM_KNOWN).nonzero().flatten())
        for part in (data.train, data.test)
    )
    return known, test, every.select((every.targets >= NUM_KNOWN).nonzero().flatten())


def _inputs(part: TensorData) -> Tensor:
    return part.__getitems__(range(len(part)))[0]


def _network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(512, 64),
        nn.ReLU(),
        nn.Linear(64, NUM_KNOWN),
    )


def _train(
    network: Callable[[], nn.Module], data: TensorData, setting: Setting, seed: int, quick: bool
) -> nn.Module:
    torch.manual_seed(seed)
    model = convert(network(), setting.method)
    batch_size = 64 if len(data) > 100 else len(data)
    fit(model, loader(data, batch_size, shuffle=True), seed=seed, **setting.options(quick))
    return model


def _moons(seed: int, num_samples: int, quick: bool) -> tuple[TensorData, list[Plane]]:
    data = load_dataset("two_moons", num_train=100, noise_std=0.15).train
    left, right, bottom, top = _EXTENT
    columns, rows = torch.linspace(left, right, 100), torch.linspace(bottom, top, 90)
    grid = torch.stack(torch.meshgrid(columns, rows, indexing="xy"), -1).reshape(-1, 2)
    titles = {
        PLAIN: "Plain: sure almost everywhere (white is 50 : 50)",
        BAYESIAN: "Bayesian: less sure away from the data",
    }
    planes = []
    for name, setting in MOONS.items():
        model = _train(lambda: MLP(2, (32, 32), 2), data, setting, seed, quick)
        # One batch: every point of the plane is then judged by the same networks.
        prediction = predict(
            model, grid, num_samples=2 * num_samples, batch_size=len(grid), seed=seed
        )
        probs = prediction.probs[:, 1].view(len(rows), len(columns))
        planes.append(Plane(titles[name], probs, _EXTENT))
    return data, planes


def _print_table(tables: dict[str, Evaluation], num_unseen: int, quick: bool) -> None:
    columns = {
        "accuracy": (True, lambda found: found["accuracy"]),
        "NLL": (False, lambda found: found["nll"]),
        "Brier": (False, lambda found: found["brier"]),
        "ECE": (False, lambda found: found["ece"]),
        "AUROC 8, 9": (True, lambda found: found.ood["unseen"]["auroc"]),
    }
    num_test = next(iter(tables.values())).num_examples
    table = Table(
        title=f"{num_test} test digits 0-7; AUROC: telling {num_unseen} never-seen 8s and 9s apart",
        caption="better in bold; ↑ higher, ↓ lower is better",
    )
    table.add_column("network")
    for name, (is_higher_better, _) in columns.items():
        table.add_column(f"{name} {'↑' if is_higher_better else '↓'}", justify="right")
    for name, found in tables.items():
        cells = []
        for is_higher_better, read in columns.values():
            values = [read(other) for other in tables.values()]
            best = max(values) if is_higher_better else min(values)
            text = f"{read(found):.4f}"
            cells.append(f"[bold]{text}[/bold]" if read(found) == best else text)
        table.add_row(name, *cells)
    answers.print(table)
    for name, setting in DIGITS.items():
        answers.print(f"  {name}: {setting.in_words(quick)}", highlight=False, markup=False)


def _groups(
    test: TensorData, unseen: TensorData, answered: dict[str, Answers]
) -> dict[str, list[Example]]:
    familiar, strange = answered[BAYESIAN]
    plain, plain_strange = answered[PLAIN]
    order = familiar.entropy.argsort(stable=True)
    # Spread over the unseen digits, not picked by what the networks say of them.
    some = torch.linspace(0, len(unseen) - 1, 4).long()
    return {
        "surest test digits": _examples(test, _one_per_class(order, test), familiar, plain),
        "least sure test digits": _examples(test, order.flip(0)[:5], familiar, plain),
        "never seen in training": _examples(unseen, some, strange, plain_strange),
    }


def _one_per_class(order: Tensor, part: TensorData, num_classes: int = 3) -> Tensor:
    """Return the first of each class in this order: the surest are else all of one."""
    firsts: dict[int, int] = {}
    for index in order.tolist():
        firsts.setdefault(int(part.targets[index]), index)
    return torch.tensor(list(firsts.values())[:num_classes])


def _examples(part: TensorData, indices: Tensor, bayesian: Any, plain: Predictive) -> list[Example]:
    return [
        Example(part.inputs[i, 0], f"a {int(part.targets[i])}", bayesian[i], plain[i].probs[0])
        for i in indices.tolist()
    ]
