"""When and where a run's state is written, on one process or many."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from bayesify.archive import read_archive, whole, write_archive
from bayesify.conversion.posterior import posteriors
from bayesify.conversion.subspace import counts_in, make_room_
from bayesify.training.likelihood import Likelihood
from bayesify.training.run_state import (
    Position,
    RandomState,
    copy_whole_,
    load_run,
    save_run,
)
from bayesify.training.settings import FitSettings

_BEST = "best weights"


class Checkpoints:
    """The checkpoint of a run and its best weights.

    Without a run folder nothing is written and the best weights are kept in memory.
    """

    def __init__(
        self,
        fabric: Any,
        settings: FitSettings,
        model: nn.Module,
        likelihood: Likelihood,
        optimizers: Sequence[Any],
        generators: Sequence[torch.Generator],
    ) -> None:
        self.fabric = fabric
        self.settings = settings
        self.likelihood = likelihood
        self.modules = {"model": model, "likelihood": likelihood}
        self.optimizers = optimizers
        self.generators = generators
        self._epoch_start: RandomState | None = None
        self._best: dict[str, Tensor] = {}
        folder = settings.run_path
        self.path = None if folder is None else folder / "checkpoint.safetensors"
        self._best_path = None if folder is None else folder / "best.safetensors"
        if folder is not None and fabric.is_global_zero:
            folder.mkdir(parents=True, exist_ok=True)
            for left_over in folder.glob(".*.safetensors.*"):
                left_over.unlink()  # a run that was killed while it wrote

    def forget_best(self) -> None:
        """Drop the best weights of an older run in the same folder."""
        if self._best_path is not None and self.fabric.is_global_zero:
            self._best_path.unlink(missing_ok=True)
        self.fabric.barrier()

    def begin_epoch(self) -> None:
        """Remember the random state an epoch begins with: its order of batches depends on it."""
        self._epoch_start = RandomState.capture(self.generators)

    def save(self, position: Position, *, is_mid_epoch: bool = False) -> None:
        """Write the checkpoint, where there is a folder, unless a weight is not finite."""
        if not self._is_finite():
            self.refuse(f"a weight became NaN or infinite by step {position.step}")
        if self.path is None:
            return
        position.class_axis = self.likelihood.class_axis
        position.gradient_scaler = self.fabric.strategy.precision.state_dict()
        now = RandomState.capture(self.generators)
        start = self._epoch_start if is_mid_epoch and self._epoch_start is not None else now
        states = {}
        for rank, (own_start, own_now) in enumerate(self._from_all_ranks((start, now))):
            states |= {f"epoch.{rank}": own_start, f"now.{rank}": own_now}
        save_run(
            self.path,
            self.modules,
            [_inner(optimizer) for optimizer in self.optimizers],
            position,
            states,
            is_writer=self.fabric.is_global_zero,
        )
        self.fabric.barrier()

    def load(self) -> tuple[Position, RandomState] | None:
        """Read the checkpoint, put the epoch's random state back, and return where the run was."""
        if self.path is None or not self.path.is_file():
            return None
        inner = [_inner(optimizer) for optimizer in self.optimizers]
        position, states = load_run(self.path, self.modules, inner)
        rank = self.fabric.global_rank
        if f"now.{rank}" not in states:
            raise ValueError(
                f"{self.path} was written by {len(states) // 2} processes, this run has "
                f"{self.fabric.world_size}: resume with as many"
            )
        if position.class_axis is not None:
            self.likelihood.class_axis = position.class_axis
        if position.gradient_scaler:
            self.fabric.strategy.precision.load_state_dict(position.gradient_scaler)
        if self._best_path is not None and not self._best_path.is_file():
            position.best = None  # the run did not keep its best weights: begin now
        self._epoch_start = states[f"epoch.{rank}"]
        self._epoch_start.restore(self.generators)
        return position, states[f"now.{rank}"]

    def keep_best(self) -> None:
        """Keep the present weights as the best so far."""
        state = self._state()
        if self._best_path is None:
            self._best = {name: tensor.clone() for name, tensor in state.items()}
        elif self.fabric.is_global_zero:
            write_archive(self._best_path, _BEST, state, {})
        self.fabric.barrier()

    def restore_best(self) -> None:
        """Put the best weights back, if any were kept."""
        best = self._best
        if self._best_path is not None and self._best_path.is_file():
            best, _ = read_archive(self._best_path, _BEST)
        for prefix, module in self.modules.items():
            own = {key.removeprefix(f"{prefix}."): value for key, value in best.items()}
            make_room_(module, counts_in(module, own))
            for key, target in module.state_dict(keep_vars=True).items():
                if f"{prefix}.{key}" in best:
                    copy_whole_(target, best[f"{prefix}.{key}"])

    def refuse(self, reason: str) -> NoReturn:
        """Stop the run, saying why and what is left of it."""
        kept = "no checkpoint was kept (pass run_dir to keep one)"
        if self.path is not None and self.path.is_file():
            kept = f"the last good checkpoint is {self.path}"
        raise FloatingPointError(
            f"{reason}; {kept}. Lower learning_rate or scale_learning_rate, set clip_norm, or "
            "warm the KL up with beta='warm_up'"
        )

    def _is_finite(self) -> bool:
        scales = {id(p) for s in posteriors(self.modules["model"]) for p in s.scale_parameters()}
        checks = [
            # A raw scale of -inf is a standard deviation of exactly 0, which is allowed.
            (parameter < torch.inf if id(parameter) in scales else torch.isfinite(parameter)).all()
            for module in self.modules.values()
            for parameter in module.parameters()
        ]
        flags = [bool(whole(check)) for check in checks]
        return all(flags)

    def _state(self) -> dict[str, Tensor]:
        return {
            f"{prefix}.{key}": whole(value)
            for prefix, module in self.modules.items()
            for key, value in module.state_dict().items()
        }

    def _from_all_ranks(self, value: Any) -> list[Any]:
        if self.fabric.world_size == 1:
            return [value]
        gathered: list[Any] = [None] * self.fabric.world_size
        torch.distributed.all_gather_object(gathered, value)
        return gathered


def _inner(optimizer: Any) -> Any:
    return getattr(optimizer, "optimizer", optimizer)
