"""Everything a run needs to go on as if it had never stopped, to and from one file.

A checkpoint holds the weights, both optimisers, every random number generator now and at the
start of the epoch, the position in the epoch and the history. A run that is killed at any moment
and resumed therefore ends with bit-identical weights.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bayesify.archive import ArchiveError, read_archive, whole, write_archive
from bayesify.conversion.posterior import Posterior
from bayesify.conversion.subspace import counts_in, make_room_
from bayesify.types import device_of

KIND = "training run"
_CHOSEN = ("lr", "base_lr", "weight_decay")


@dataclass
class Position:
    """Where a run is: what a checkpoint must remember besides tensors."""

    epoch: int = 0
    batch: int = 0
    step: int = 0
    history: list[dict[str, float]] = field(default_factory=list)
    totals: dict[str, float] = field(default_factory=dict)
    best: float | None = None
    bad_epochs: int = 0
    class_axis: int | None = None
    gradient_scaler: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class RandomState:
    """The state of every random number generator a run draws from."""

    tensors: dict[str, Tensor]
    python: list[Any]

    @classmethod
    def capture(cls, generators: Sequence[torch.Generator] = ()) -> RandomState:
        """Read the present state, a loader's own generators included."""
        name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
        tensors = {
            "torch": torch.get_rng_state(),
            "numpy": torch.from_numpy(np.asarray(keys).astype(np.int64)),
        }
        tensors |= {f"loader.{i}": g.get_state() for i, g in enumerate(generators)}
        if torch.cuda.is_available():
            states = torch.cuda.get_rng_state_all()
            tensors |= {f"cuda.{index}": state for index, state in enumerate(states)}
        version, internal, gauss = random.getstate()
        python = [[name, position, has_gauss, cached], [version, list(internal), gauss]]
        return cls(tensors, python)

    def restore(self, generators: Sequence[torch.Generator] = ()) -> None:
        """Put every generator back into this state."""
        torch.set_rng_state(self.tensors["torch"])
        (name, position, has_gauss, cached), (version, internal, gauss) = self.python
        keys = self.tensors["numpy"].numpy().astype(np.uint32)
        np.random.set_state((name, keys, position, has_gauss, cached))
        random.setstate((version, tuple(internal), gauss))
        for index, generator in enumerate(generators):
            if f"loader.{index}" in self.tensors:
                generator.set_state(self.tensors[f"loader.{index}"])
        if torch.cuda.is_available():
            for index in range(torch.cuda.device_count()):
                if f"cuda.{index}" in self.tensors:
                    torch.cuda.set_rng_state(self.tensors[f"cuda.{index}"], index)


def loader_generators(loader: Any) -> list[torch.Generator]:
    """Return the generators a loader draws its order from, other than the global one."""
    found = [getattr(loader, "generator", None)]
    found.append(getattr(getattr(loader, "sampler", None), "generator", None))
    return list({id(entry): entry for entry in found if entry is not None}.values())


def save_run(
    path: Path,
    modules: dict[str, nn.Module],
    optimizers: Sequence[Optimizer],
    position: Position,
    random_states: dict[str, RandomState],
    *,
    is_writer: bool = True,
) -> None:
    """Write a checkpoint; every rank takes part in gathering, one writes."""
    tensors: dict[str, Tensor] = {}
    for prefix, module in modules.items():
        tensors |= {f"{prefix}.{key}": whole(value) for key, value in module.state_dict().items()}
    described = []
    for index, optimizer in enumerate(optimizers):
        state = optimizer.state_dict()
        plain: dict[str, dict[str, Any]] = {}
        for parameter, entries in state["state"].items():
            for key, value in entries.items():
                if isinstance(value, Tensor):
                    tensors[f"optimizer.{index}.{parameter}.{key}"] = whole(value)
                else:
                    plain.setdefault(str(parameter), {})[key] = value
        described.append({"groups": state["param_groups"], "plain": plain})
    for name, random_state in random_states.items():
        tensors |= {f"random.{name}.{key}": t for key, t in random_state.tensors.items()}
    if is_writer:
        description = {
            "position": vars(position),
            "optimizers": described,
            "random": {name: state.python for name, state in random_states.items()},
        }
        write_archive(path, KIND, tensors, description)


def load_run(
    path: Path, modules: dict[str, nn.Module], optimizers: Sequence[Optimizer]
) -> tuple[Position, dict[str, RandomState]]:
    """Read a checkpoint into a model and its optimisers; check everything before any change."""
    tensors, description = read_archive(path, KIND)
    states, rooms = {}, {}
    for prefix, module in modules.items():
        state = {
            k.removeprefix(f"{prefix}."): v
            for k, v in tensors.items()
            if k.startswith(f"{prefix}.")
        }
        rooms[prefix] = counts_in(module, state)
        moved = tuple(f"{name}." for name in rooms[prefix])
        expected = {
            key: state[key] if moved and key.startswith(moved) and key in state else value
            for key, value in module.state_dict().items()
        }
        _check_same(path, expected, state)
        states[prefix] = state
    if len(description["optimizers"]) != len(optimizers):
        raise ArchiveError(
            f"{path} holds {len(description['optimizers'])} optimisers, this run has "
            f"{len(optimizers)}: resume with the settings the run began with"
        )
    for optimizer, described in zip(optimizers, description["optimizers"], strict=True):
        _check_same_optimizer(path, optimizer, described)
    for prefix, module in modules.items():
        make_room_(module, rooms[prefix])
        for key, target in module.state_dict(keep_vars=True).items():
            copy_whole_(target, states[prefix][key])
        _place_random_(module, states[prefix])
    for index, optimizer in enumerate(optimizers):
        _load_optimizer(optimizer, f"optimizer.{index}.", description["optimizers"][index], tensors)
    random_states = {}
    for name, python in description["random"].items():
        prefix = f"random.{name}."
        own = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
        random_states[name] = RandomState(own, python)
    return Position(**description["position"]), random_states


def _place_random_(module: nn.Module, state: dict[str, Tensor]) -> None:
    """Take over which entries are random: posteriors keep that in a form of their own."""
    for path, site in module.named_modules():
        found = state.get(f"{path}.random_index")
        if isinstance(site, Posterior) and found is not None:
            site.place_(site.index, found.to(device_of(site)))


@torch.no_grad()
def copy_whole_(target: Tensor, value: Tensor) -> None:
    """Copy a tensor in one piece into a plain or sharded one."""
    if type(target).__name__ == "DTensor":
        from torch.distributed.tensor import DTensor, distribute_tensor

        assert isinstance(target, DTensor)
        value = value.to(target.device)
        target.copy_(distribute_tensor(value, target.device_mesh, target.placements))
    else:
        target.copy_(value)


def _load_optimizer(
    optimizer: Optimizer, prefix: str, described: dict[str, Any], tensors: dict[str, Tensor]
) -> None:
    state: dict[int, dict[str, Any]] = {}
    for parameter, entries in described["plain"].items():
        state.setdefault(int(parameter), {}).update(entries)
    for key, tensor in tensors.items():
        if key.startswith(prefix):
            parameter, name = key.removeprefix(prefix).split(".", 1)
            state.setdefault(int(parameter), {})[name] = tensor
    parameters = [entry for group in optimizer.param_groups for entry in group["params"]]
    for index, entries in state.items():
        owner = parameters[index]
        for name, value in entries.items():
            if not isinstance(value, Tensor) or not value.ndim:
                continue
            if type(owner).__name__ == "DTensor":
                sharded = torch.zeros_like(owner)
                copy_whole_(sharded, value)
                entries[name] = sharded
            elif value.shape == owner.shape and value.stride() != owner.stride():
                # Adam in one call walks memory: its state must lie as the parameter does.
                entries[name] = torch.empty_like(owner, dtype=value.dtype).copy_(value)
    # Where a run goes on with another rate (it had diverged, say), the new one counts.
    chosen = [
        {key: group[key] for key in _CHOSEN if key in group} for group in optimizer.param_groups
    ]
    optimizer.load_state_dict({"state": state, "param_groups": described["groups"]})
    for group, choices in zip(optimizer.param_groups, chosen, strict=True):
        group.update(choices)


def _check_same_optimizer(path: Path, optimizer: Optimizer, described: dict[str, Any]) -> None:
    own = optimizer.state_dict()["param_groups"]
    if len(own) != len(described["groups"]) or any(
        mine.keys() != stored.keys() or len(mine["params"]) != len(stored["params"])
        for mine, stored in zip(own, described["groups"], strict=True)
    ):
        raise ArchiveError(
            f"{path} was written with another optimizer than this {type(optimizer).__name__}, or "
            "with other parameters to train: resume with the settings the run began with"
        )


def _check_same(path: Path, expected: dict[str, Tensor], found: dict[str, Tensor]) -> None:
    missing = sorted(expected.keys() - found.keys())
    extra = sorted(found.keys() - expected.keys())
    wrong = [k for k in expected.keys() & found.keys() if expected[k].shape != found[k].shape]
    if missing or extra or wrong:
        raise ArchiveError(
            f"{path} belongs to another model: missing {missing[:3]}, unexpected {extra[:3]}, of "
            f"another shape {sorted(wrong)[:3]}"
        )


def seed_everything(seed: int) -> None:
    """Seed the random numbers of Python, numpy and torch."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
