"""The one training loop: it knows the contract of a method, and no method by name."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from bayesify.conversion.convert import require_record
from bayesify.training.checkpoints import Checkpoints
from bayesify.training.interrupt import Interrupt
from bayesify.training.likelihood import Likelihood, as_likelihood
from bayesify.training.objective import elbo_loss
from bayesify.training.optimiser import make_optimizers, set_learning_rate
from bayesify.training.progress import Reporter
from bayesify.training.run_state import Position, RandomState, loader_generators
from bayesify.training.schedule import as_schedule
from bayesify.training.settings import FitOptions, FitSettings, fit_settings, num_examples
from bayesify.types import Loss, batch_size, call_model, split_batch, to_device

# How often the host looks whether the loss is still finite: every look waits for the device.
_STEPS_BETWEEN_LOOKS = 20


@dataclass(frozen=True)
class History:
    """What happened in a run: one row of numbers per epoch."""

    rows: list[dict[str, float]] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def last(self) -> dict[str, float]:
        """The last epoch's row."""
        return self.rows[-1]

    def column(self, name: str) -> list[float]:
        """Return one quantity over the epochs that have it."""
        return [row[name] for row in self.rows if name in row]


def fit(
    model: nn.Module,
    train_loader: Any,
    val_loader: Any = None,
    *,
    epochs: int,
    **options: Unpack[FitOptions],
) -> History:
    """Train a converted model in place and return the history of the run.

    Minimises mean nll + beta · KL / N. With `run_dir` a checkpoint is written after every epoch,
    and `resume=True` goes on from it to bit-identical final weights. Ctrl-C finishes the step,
    writes a checkpoint and stops.

    Args:
        model: A model from `convert`.
        train_loader: Yields (inputs, targets) pairs or mappings with "labels".
        val_loader: The same for validation after each epoch, or None.
        epochs: Passes over the training data.
        **options: The other fields of `FitSettings`.

    Raises:
        FloatingPointError: The loss became NaN or infinite; the message names the step.
    """
    settings = fit_settings(epochs, options)
    require_record(model)
    if settings.patience is not None and val_loader is None:
        raise ValueError("patience needs val_loader: it watches the validation nll")
    if settings.keep_best and val_loader is None:
        raise ValueError("keep_best needs val_loader: it keeps the best validation epoch")
    return _Run(model, train_loader, val_loader, settings).go()


class _Run:
    """One call of `fit`: the parts it needs, and the loop over them."""

    def __init__(
        self, model: nn.Module, train_loader: Any, val_loader: Any, settings: FitSettings
    ) -> None:
        from bayesify.training.engine import make_fabric, setup_loader

        self.settings = settings
        self.model = model
        self.record = require_record(model)
        self.method = self.record.method
        self.num_data = num_examples(train_loader, settings)
        self.beta = as_schedule("beta", settings.beta)
        self.schedule = as_schedule("schedule", settings.schedule)
        self.generators = loader_generators(train_loader)
        self.fabric = make_fabric(settings)
        if settings.seed is not None:
            _seed_everything(settings.seed + self.fabric.global_rank)
        self.likelihood = self._make_likelihood(train_loader)
        target: Any = torch.compile(model) if settings.compile else model
        self.forward: Any = self.fabric.setup_module(target)
        self.likelihood.to(self.fabric.device)
        self.record.likelihood = self.likelihood
        made = make_optimizers(model, self.likelihood, settings)
        prepared = self.fabric.setup_optimizers(*made)
        self.optimizers = list(prepared) if isinstance(prepared, (tuple, list)) else [prepared]
        self.train_loader = setup_loader(self.fabric, train_loader)
        self.val_loader = None if val_loader is None else setup_loader(self.fabric, val_loader)
        self.position = Position()
        self.num_batches = _length(train_loader if self.fabric.world_size == 1 else self.train_loader)
        self.checkpoints = Checkpoints(
            self.fabric, settings, model, self.likelihood, self.optimizers, self.generators
        )

    def go(self) -> History:
        """Run every epoch that is left."""
        began = time.perf_counter()
        resumed = self.checkpoints.load() if self.settings.resume else None
        now: RandomState | None = None
        if resumed is not None:
            self.position, now = resumed
        reporter = Reporter(
            self.settings.epochs,
            self.settings.run_path,
            show_bar=self.settings.progress,
            use_tensorboard=self.settings.tensorboard,
            is_writer=self.fabric.is_global_zero,
        )
        with reporter, Interrupt() as interrupt:
            if resumed is None:
                self.checkpoints.begin_epoch()
                self.checkpoints.save(self.position)
            reporter.start(self.num_batches, self.position.epoch, self.position.batch)
            while self.position.epoch < self.settings.epochs and not self._is_patience_spent():
                self._epoch(reporter, interrupt, now)
                now = None
        if self.settings.keep_best or self.settings.patience is not None:
            self.checkpoints.restore_best()
        self.model.eval()
        return History(self.position.history, time.perf_counter() - began)

    def _epoch(self, reporter: Reporter, interrupt: Interrupt, now: RandomState | None) -> None:
        from bayesify.training.engine import start_epoch

        began = time.perf_counter()
        position = self.position
        self.forward.train()
        if now is None:
            self.checkpoints.begin_epoch()
        start_epoch(self.train_loader, position.epoch)
        sums = _Sums(self.fabric.device, position.totals)
        loss = None
        for index, batch in enumerate(self.train_loader):
            if index < position.batch:
                continue  # a resumed epoch reads again what it had used, in the same order
            if now is not None:
                now.restore(self.generators)
                now = None
            is_update = (index + 1) % self.settings.accumulate == 0
            is_update = is_update or index + 1 == self.num_batches
            loss = self._batch(batch, sums, is_update=is_update) or loss
            position.batch = index + 1
            self._look(sums)
            reporter.step(position.epoch, self._shown(sums, loss, index))
            if interrupt.was_asked or self._is_checkpoint_due(is_update):
                position.totals = sums.to_dict()
                self.checkpoints.save(position, is_mid_epoch=True)
            interrupt.stop_if_asked()
        self._look(sums, is_last=True)
        row = self._row(sums, loss)
        row["seconds"] = time.perf_counter() - began
        position.history.append(row)
        position.epoch, position.batch, position.totals = position.epoch + 1, 0, {}
        self.checkpoints.begin_epoch()
        self.checkpoints.save(position)
        reporter.epoch(row, position.history)

    def _batch(self, batch: Any, sums: _Sums, *, is_update: bool) -> Loss | None:
        """Run every pass of one batch; on an update step return the loss that was stepped on."""
        inputs, targets = split_batch(to_device(batch, self.fabric.device))
        if targets is None:
            raise TypeError("the training loader must yield targets beside the inputs")
        num_samples, step = self.settings.num_samples, self.position.step
        factor = self.schedule(self._progress())
        beta = self.beta(self._progress())
        loss = None
        nll_of_batch = torch.zeros((), device=self.fabric.device)
        outputs: list[Any] = []
        for number in range(num_samples):
            closes = is_update and number == num_samples - 1
            with self.fabric.no_backward_sync(self.forward, enabled=not closes):
                nll = self._nll(inputs, targets, outputs) / num_samples
                nll_of_batch = nll_of_batch + nll.detach()
                part = nll / self.settings.accumulate
                if closes:
                    parts = elbo_loss(part, self.model, num_data=self.num_data, beta=beta)
                    loss = Loss(parts.total.detach(), nll_of_batch, parts.kl.detach())
                    part = parts.total
                self.fabric.backward(part)
        sums.add(nll_of_batch, self.likelihood.score(outputs, targets), batch_size(inputs))
        if loss is not None:
            self._update(factor)
            self.method.after_step(self.model, step)
            sums.see(loss.total, self.position.step)
            self.position.step += 1
        return loss

    def _nll(self, inputs: Any, targets: Tensor, outputs: list[Any]) -> Tensor:
        def nll(output: Any) -> Tensor:
            outputs.append(_detached(output))
            return self.likelihood.nll(output, targets)

        return self.method.nll(lambda: call_model(self.forward, inputs), nll)

    def _update(self, factor: float) -> None:
        if self.fabric.world_size > 1:
            for entry in self.likelihood.parameters():
                if entry.grad is not None:
                    entry.grad = self.fabric.all_reduce(entry.grad, reduce_op="mean")
        if self.settings.clip_norm is not None:
            self.fabric.clip_gradients(
                self.forward,
                self.optimizers[0],
                max_norm=self.settings.clip_norm,
                error_if_nonfinite=False,
            )
        for optimizer in self.optimizers:
            set_learning_rate(optimizer, factor)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def _progress(self) -> float:
        """Return how much of the run is done, from 0 to 1, before the coming step."""
        within = self.position.batch / self.num_batches if self.num_batches else 0.0
        return min((self.position.epoch + within) / self.settings.epochs, 1.0)

    def _look(self, sums: _Sums, *, is_last: bool = False) -> None:
        often = self.fabric.device.type == "cpu"
        if often or is_last or self.position.step % _STEPS_BETWEEN_LOOKS == 0:
            bad = sums.first_bad_step()
            if bad is not None:
                self.checkpoints.refuse(f"the loss became {sums.bad_value()} at step {bad}")

    def _is_checkpoint_due(self, is_update: bool) -> bool:
        every = self.settings.checkpoint_every
        return every is not None and is_update and self.position.step % every == 0

    def _shown(self, sums: _Sums, loss: Loss | None, index: int) -> dict[str, float] | None:
        if self.fabric.device.type != "cpu" and index % _STEPS_BETWEEN_LOOKS:
            return None
        values = sums.means(self.likelihood.score_name)
        return values if loss is None else {**values, "kl": float(loss.kl)}

    def _row(self, sums: _Sums, loss: Loss | None) -> dict[str, float]:
        means = sums.reduce(self.fabric).means(self.likelihood.score_name)
        row = {"epoch": float(self.position.epoch + 1), **means}
        row["kl"] = float("nan") if loss is None else float(loss.kl)
        row["beta"] = self.beta(self._progress())
        if self.val_loader is not None:
            validation = self._validate().means(self.likelihood.score_name)
            row |= {f"val_{name}": value for name, value in validation.items()}
            self._judge(row["val_nll"])
        return row

    @torch.no_grad()
    def _validate(self) -> _Sums:
        assert self.val_loader is not None
        sums = _Sums(self.fabric.device, {})
        draws = self.method.num_draws(self.model, self.settings.val_samples)
        self.forward.eval()
        try:
            with self.method.sampling(self.model, self.method.default_way()):
                for batch in self.val_loader:
                    inputs, targets = split_batch(to_device(batch, self.fabric.device))
                    if targets is None:
                        raise TypeError("the validation loader must yield targets")
                    outputs = [call_model(self.forward, inputs) for _ in range(draws)]
                    nll = self.likelihood.predictive_nll(outputs, targets)
                    sums.add(nll, self.likelihood.score(outputs, targets), batch_size(inputs))
        finally:
            self.forward.train()
        return sums.reduce(self.fabric)

    def _judge(self, val_nll: float) -> None:
        """Remember whether this epoch is the best so far."""
        position = self.position
        if position.best is None or val_nll < position.best:
            position.best, position.bad_epochs = val_nll, 0
            if self.settings.keep_best or self.settings.patience is not None:
                self.checkpoints.keep_best()
        else:
            position.bad_epochs += 1

    def _is_patience_spent(self) -> bool:
        patience = self.settings.patience
        return patience is not None and self.position.bad_epochs >= patience

    def _make_likelihood(self, loader: Any) -> Likelihood:
        """Return the likelihood, started from a first look at the targets where it wants one."""
        chosen, known = self.settings.likelihood, self.record.likelihood
        if chosen is None and isinstance(known, Likelihood):
            return known
        likelihood = None if chosen is None else as_likelihood(chosen, None)
        if likelihood is None or likelihood.starts_from_targets:
            # Looking at a batch must not change the order of the batches to come.
            before = RandomState.capture(self.generators)
            _, targets = split_batch(next(iter(loader)))
            before.restore(self.generators)
            likelihood = likelihood or as_likelihood(None, targets)
            if targets is not None:
                likelihood.start(targets)
        for parameter in likelihood.parameters():
            parameter.data = self.fabric.broadcast(parameter.data)
        return likelihood


class _Sums:
    """Running sums of an epoch, kept on the device so that no step waits for the host."""

    def __init__(self, device: torch.device, start: dict[str, float]) -> None:
        kind = torch.float32 if device.type == "mps" else torch.float64
        begun = [start.get(name, 0.0) for name in ("nll", "score", "count")]
        self.values = torch.tensor(begun, dtype=kind, device=device)
        self.bad = torch.tensor([-1.0, 0.0], dtype=kind, device=device)

    def add(self, nll: Tensor, score: Tensor, count: int) -> None:
        row = torch.stack([nll.detach(), score.detach(), torch.ones_like(nll.detach())])
        self.values += row.to(self.values) * count

    def see(self, total: Tensor, step: int) -> None:
        """Remember the first step whose loss was not finite."""
        is_first = ~torch.isfinite(total) & (self.bad[0] < 0)
        here = torch.stack([torch.full_like(total, step), total]).to(self.bad)
        self.bad = torch.where(is_first, here, self.bad)

    def first_bad_step(self) -> int | None:
        step = int(self.bad[0])
        return None if step < 0 else step + 1

    def bad_value(self) -> float:
        return float(self.bad[1])

    def to_dict(self) -> dict[str, float]:
        return dict(zip(("nll", "score", "count"), self.values.tolist(), strict=True))

    def reduce(self, fabric: Any) -> _Sums:
        if fabric.world_size > 1:
            self.values = fabric.all_reduce(self.values, reduce_op="sum")
        return self

    def means(self, score_name: str) -> dict[str, float]:
        nll, score, count = self.values.tolist()
        return {"nll": nll / max(count, 1), score_name: score / max(count, 1)}


def _detached(output: Any) -> Any:
    if isinstance(output, Tensor):
        return output.detach()
    from bayesify.types import output_tensor

    return output_tensor(output).detach()


def _length(loader: Any) -> int | None:
    try:
        return len(loader)
    except TypeError:
        return None


def _seed_everything(seed: int) -> None:
    import random

    import numpy as np

    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


