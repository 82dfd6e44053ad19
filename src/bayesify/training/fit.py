"""The one training loop: it knows the contract of a method, and no method by name."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator
from functools import partial
from typing import Any, Unpack, cast

import torch
from torch import Tensor, nn

from bayesify.batches import batch_size, call_model, map_tensors, settled, split_batch, to_device
from bayesify.conversion.convert import require_record
from bayesify.conversion.kl import kl
from bayesify.conversion.method import Update
from bayesify.moments.written_down import scales_written_down
from bayesify.training.channels_last import channels_last, hold_channels_last_
from bayesify.training.checkpoints import Checkpoints
from bayesify.training.checks import check_fit
from bayesify.training.compiling import begin_pass, compiled, with_kl
from bayesify.training.epoch_sums import EpochSums
from bayesify.training.history import History
from bayesify.training.interrupt import Interrupt
from bayesify.training.likelihood import Likelihood, as_likelihood
from bayesify.training.loaders import check_loader, num_batches
from bayesify.training.objective import elbo_loss
from bayesify.training.optimiser import make_optimizers, set_learning_rate
from bayesify.training.progress import Reporter
from bayesify.training.rounding import warn_of_rounded_noise
from bayesify.training.run_state import (
    Position,
    RandomState,
    loader_generators,
    seed_everything,
)
from bayesify.training.schedule import as_schedule
from bayesify.training.settings import FitOptions, FitSettings, fit_settings, num_examples
from bayesify.training.subnormals import subnormals_as_zero

# How often the host looks whether the loss is still finite: every look waits for the device.
_STEPS_BETWEEN_LOOKS = 20
_NO_TARGETS = "the training loader must yield targets beside the inputs"


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
    check_fit(require_record(model).method, settings, val_loader)
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
        check_loader(train_loader, settings)
        self.beta = as_schedule("beta", settings.beta)
        self.schedule = as_schedule("schedule", settings.schedule)
        self.generators = [*loader_generators(train_loader), *loader_generators(val_loader)]
        self.fabric = make_fabric(settings)
        if settings.seed is not None:
            seed_everything(settings.seed + self.fabric.global_rank)
        self.likelihood = self._make_likelihood(train_loader)
        if settings.channels_last:
            hold_channels_last_(model)
        self.passes = with_kl(model, settings.compile, self.fabric.device, settings.strategy)
        target = compiled(
            model if self.passes is None else self.passes,
            settings.compile,
            self.fabric.device,
            self.method.gpu_compile_options(model),
        )
        self.forward: Any = self.fabric.setup_module(target)
        self.likelihood.to(self.fabric.device)
        made = make_optimizers(model, self.likelihood, settings)
        prepared = self.fabric.setup_optimizers(*made)
        self.optimizers = list(prepared) if isinstance(prepared, (tuple, list)) else [prepared]
        self.train_loader = setup_loader(self.fabric, train_loader)
        self.val_loader = None if val_loader is None else setup_loader(self.fabric, val_loader)
        self.position = Position()
        self._is_warned = False
        self.num_batches = num_batches(
            train_loader if self.fabric.world_size == 1 else self.train_loader
        )
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
        self.record.likelihood = self.likelihood
        self._watch_rounding()
        reporter = Reporter(
            self.settings.epochs,
            self.settings.run_path,
            show_bar=self.settings.progress,
            use_tensorboard=self.settings.tensorboard,
            is_writer=self.fabric.is_global_zero,
        )
        with reporter, subnormals_as_zero(self.fabric.device), Interrupt() as interrupt:
            if resumed is None:
                self.checkpoints.forget_best()
                self.checkpoints.begin_epoch()
                self.checkpoints.save(self.position)
            where, compiles = self.position, bool(self.settings.compile)
            reporter.start(self.num_batches, where.epoch, where.batch, compiles=compiles)
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
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)  # gradients of the user's own, from before
        sums = EpochSums(self.likelihood, self.fabric.device, position.totals)
        divergence = None
        for index, batch in enumerate(self._batches(now), position.batch):
            group = self._group_size(index)
            if index % self.settings.accumulate == 0:
                begin_pass(self.settings.compile, self.fabric.device)
            is_update = index % self.settings.accumulate == group - 1
            found = self._batch(batch, sums, group, is_update=is_update)
            divergence = divergence if found is None else found
            position.batch = index + 1
            self._look(sums)
            reporter.step(position.epoch, self._shown(sums, divergence, index))
            if is_update and (interrupt.was_asked or self._is_checkpoint_due()):
                position.totals = sums.to_dict()
                self.checkpoints.save(position, is_mid_epoch=True)
            if is_update:  # a stop between updates would lose the gradients so far
                interrupt.stop_if_asked()
        if not position.batch:
            raise ValueError(f"train_loader yielded no batch in epoch {position.epoch + 1}")
        self._look(sums, is_last=True)
        row = self._row(sums)
        row["seconds"] = time.perf_counter() - began
        position.history.append(row)
        position.epoch, position.batch, position.totals = position.epoch + 1, 0, {}
        self.checkpoints.begin_epoch()
        self.checkpoints.save(position)
        reporter.epoch(row, position.history)
        self._watch_rounding()
        interrupt.stop_if_asked()

    def _batches(self, now: RandomState | None) -> Iterator[Any]:
        """Return the batches of this epoch that are left, in the order it began with."""
        batches = iter(self.train_loader)
        for _ in itertools.islice(batches, self.position.batch):
            pass  # a resumed epoch reads again what it had used
        if now is not None and self.position.batch:
            now.restore(self.generators)
        return batches

    def _group_size(self, index: int) -> int:
        """Return how many batches share this one's update: an epoch's last may have fewer."""
        accumulate = self.settings.accumulate
        if self.num_batches is None:
            return accumulate
        return min(accumulate, max(self.num_batches - index + index % accumulate, 1))

    def _batch(self, batch: Any, sums: EpochSums, group: int, *, is_update: bool) -> Tensor | None:
        """Run every pass of one of a group's batches; with an update return the KL before it."""
        inputs, targets = self._on_device(batch)
        if targets is None:
            raise TypeError(_NO_TARGETS)
        num_samples, step = self.settings.num_samples, self.position.step
        factor = self.schedule(self._progress())
        beta = self.beta(self._progress())
        divergence = None
        part = torch.zeros((), device=self.fabric.device)
        nlls: list[Tensor] = []
        outputs: list[Any] = []
        update = self._update_to_come()
        for number in range(num_samples):
            closes = is_update and number == num_samples - 1
            with (
                self.method.around_step(self.model, update),
                self.fabric.no_backward_sync(self.forward, enabled=not closes),
            ):
                # A weight of 0 is for elbo_loss: of an infinite KL it takes no gradient.
                nll = self._nll(inputs, targets, outputs, nlls, with_kl=closes and beta != 0)
                part = nll / (num_samples * group)
                if closes:
                    known = None if self.passes is None else self.passes.divergence
                    loss = elbo_loss(part, self.model, num_data=self.num_data, beta=beta, kl=known)
                    part, divergence = loss.total, loss.kl.detach().clone()
                self.fabric.backward(part)
        nll = torch.stack(nlls).mean()
        sums.add(nll, outputs, targets, batch_size(inputs))
        sums.see(nll + part.detach(), step)
        if divergence is not None:
            self._update(factor)
            self.method.after_step(self.model, update)
            self.position.step += 1
        return divergence

    def _on_device(self, batch: Any) -> tuple[Any, Tensor | None]:
        inputs, targets = split_batch(to_device(batch, self.fabric.device))
        return (channels_last(inputs) if self.settings.channels_last else inputs), targets

    def _update_to_come(self) -> Update:
        per_epoch = (
            None if self.num_batches is None else self.num_batches / self.settings.accumulate
        )
        return Update(
            step=self.position.step + 1,
            num_steps=None if per_epoch is None else math.ceil(per_epoch) * self.settings.epochs,
            optimizers=[cast(Any, getattr(entry, "optimizer", entry)) for entry in self.optimizers],
            average=lambda tensor: cast(Tensor, self.fabric.all_reduce(tensor, reduce_op="mean")),
        )

    def _nll(
        self, inputs: Any, targets: Tensor, outputs: list[Any], nlls: list[Tensor], *, with_kl: bool
    ) -> Tensor:
        def nll(output: Any, *, is_logged: bool = True) -> Tensor:
            value = self.likelihood.nll(output, targets)
            if is_logged:
                outputs.append(map_tensors(output, Tensor.detach))
                nlls.append(value.detach())
            return value

        if self.passes is not None:
            self.passes.divergence = None
        return self.method.nll(self.model, partial(self._pass, inputs, with_kl=with_kl), nll)

    def _pass(self, inputs: Any, *, with_kl: bool = False) -> Any:
        inputs = settled(inputs, self.model, is_carried=self.method.carries_moments())
        with scales_written_down():
            if self.passes is None:
                return call_model(self.forward, inputs)
            self.passes.wants_kl = with_kl
            return self.passes.output_of(call_model(self.forward, inputs))

    def _update(self, factor: float) -> None:
        from bayesify.training.engine import step_optimizers

        if self.fabric.world_size > 1:
            for entry in self.likelihood.parameters():
                if entry.grad is not None:
                    mean = self.fabric.all_reduce(entry.grad, reduce_op="mean")
                    entry.grad = cast(Tensor, mean)
        for optimizer in self.optimizers:
            set_learning_rate(optimizer, factor)
        step_optimizers(self.fabric, self.forward, self.optimizers, self.settings.clip_norm)

    def _progress(self) -> float:
        """Return how much of the run is done, from 0 to 1, before the coming step."""
        within = self.position.batch / self.num_batches if self.num_batches else 0.0
        return min((self.position.epoch + within) / self.settings.epochs, 1.0)

    def _look(self, sums: EpochSums, *, is_last: bool = False) -> None:
        often = self.fabric.device.type == "cpu"
        if often or is_last or self.position.step % _STEPS_BETWEEN_LOOKS == 0:
            bad = sums.first_bad_step()
            if bad is not None:
                self.checkpoints.refuse(f"the loss became {sums.bad_value()} at step {bad}")

    def _is_checkpoint_due(self) -> bool:
        every = self.settings.checkpoint_every
        return every is not None and self.position.step % every == 0

    def _shown(
        self, sums: EpochSums, divergence: Tensor | None, index: int
    ) -> dict[str, float] | None:
        if self.fabric.device.type != "cpu" and index % _STEPS_BETWEEN_LOOKS:
            return None
        values = sums.means()
        return values if divergence is None else {**values, "kl": float(divergence)}

    @torch.no_grad()
    def _row(self, sums: EpochSums) -> dict[str, float]:
        means = sums.reduce(self.fabric).means()
        row = {"epoch": float(self.position.epoch + 1), **means}
        row["kl"] = float(kl(self.model))
        row["beta"] = self.beta(self._progress())
        row["energy"] = self.num_data * row["nll"] + row["beta"] * row["kl"]
        row |= self.method.watch(self.model)
        if self.val_loader is not None:
            validation = self._validate().means()
            row |= {f"val_{name}": value for name, value in validation.items()}
            self._judge(row)
        return row

    def _validate(self) -> EpochSums:
        assert self.val_loader is not None
        sums = EpochSums(self.likelihood, self.fabric.device)
        draws = self.method.num_draws(self.model, self.settings.val_samples)
        self.forward.eval()
        try:
            with self.method.sampling(self.model, self.method.default_way()):
                for batch in self.val_loader:
                    begin_pass(self.settings.compile, self.fabric.device)
                    inputs, targets = self._on_device(batch)
                    if targets is None:
                        raise TypeError("the validation loader must yield targets")
                    forward = partial(self._pass, inputs)
                    outputs = self.method.outputs(self.model, forward, draws)
                    nll = self.likelihood.predictive_nll(outputs, targets)
                    sums.add(nll, outputs, targets, batch_size(inputs))
        finally:
            self.forward.train()
        if not sums.reduce(self.fabric).to_dict()["examples"]:
            raise ValueError("val_loader yielded no example: leave it out, or give it data")
        return sums

    def _judge(self, row: dict[str, float]) -> None:
        """Remember whether this epoch is the best so far; less is better."""
        position, cost = self.position, row["val_nll"]
        score = f"val_{self.likelihood.score_name}"
        if self.settings.best_by == "score" and score in row:
            cost = -row[score] if self.likelihood.higher_is_better else row[score]
        if position.best is None or cost < position.best:
            position.best, position.bad_epochs = cost, 0
            if self.settings.keep_best or self.settings.patience is not None:
                self.checkpoints.keep_best()
        else:
            position.bad_epochs += 1

    def _is_patience_spent(self) -> bool:
        patience = self.settings.patience
        return patience is not None and self.position.bad_epochs >= patience

    def _watch_rounding(self) -> None:
        """Warn, once in a run, when the precision rounds the noise of the weights away."""
        if "bf16" in self.settings.precision and not self._is_warned:
            self._is_warned = warn_of_rounded_noise(self.model)

    def _make_likelihood(self, loader: Any) -> Likelihood:
        """Return the likelihood, started from a first look at the targets where it wants one."""
        chosen, known = self.settings.likelihood, self.record.likelihood
        if isinstance(known, Likelihood) and (chosen is None or chosen is known):
            return known
        likelihood = None if chosen is None else as_likelihood(chosen, None)
        if likelihood is None or likelihood.starts_from_targets:
            # Looking at a batch must not change the order of the batches to come.
            before = RandomState.capture(self.generators)
            _, targets = split_batch(next(iter(loader)))
            before.restore(self.generators)
            if targets is None:
                raise TypeError(_NO_TARGETS)
            likelihood = likelihood or as_likelihood(None, targets)
            likelihood.start(targets)
        for parameter in likelihood.parameters():
            parameter.data = self.fabric.broadcast(parameter.data)
        return likelihood
