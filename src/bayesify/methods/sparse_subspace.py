"""Variational inference in a sparse subspace that moves: sparse from the first step to the last.

A fixed number of weights exists. Every so many steps the least important of them leave and those
with the largest gradient enter; a weight that does not exist has no mean, scale, gradient or state.

Reference: Li, Miao, Qiu, Zhang (2024), "Training Bayesian neural networks with sparse subspace
variational inference".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor, nn

from bayesify.conversion.convert import require_record
from bayesify.conversion.method import Update, methods
from bayesify.conversion.narrow import narrowed, without_scales
from bayesify.conversion.pattern import FREE, TWO_OF_FOUR, Pattern, of_groups
from bayesify.conversion.plan import Choices, Plan, Scale
from bayesify.conversion.posterior import Posterior
from bayesify.conversion.scope import forward_by
from bayesify.conversion.select import Where
from bayesify.conversion.sites import named_posteriors, replace_posteriors_
from bayesify.conversion.subspace import (
    barred_entries,
    densities,
    in_dense_order,
    live_mask,
    live_std,
    move_,
    moved,
    moved_two_of_four,
    num_kept,
    sparse_sites,
    two_of_four,
)
from bayesify.distributions import Normal, NormalPrior
from bayesify.distributions.importance import importance, importances
from bayesify.distributions.scale import inverse_softplus
from bayesify.methods.checks import check_choice, check_share
from bayesify.methods.variational import Variational
from bayesify.registry import unknown
from bayesify.training.settings import check_count
from bayesify.types import ConversionError


@methods.register("sparse_subspace")
@dataclass(frozen=True)
class SparseSubspace(Variational):
    """Normal posterior on a fixed number of weights, which are chosen anew while it trains.

    Args:
        density: Share of the weights that exist.
        first_density: Share that exists at first, where that is more: it falls along a half cosine,
            move by move, and a compiled model is compiled anew each time. None never changes.
        removal: Which weights leave: "snr" (|mean| / std), "magnitude", "expected_magnitude",
            "magnitude_snr", "expected_exponential" or "exponential_snr", lowest first.
        addition: Which enter: those with the largest "gradient" of this step's sampled loss,
            "mean_gradient" of the mean network's loss, or "mean_abs_gradient" averaged over the
            last `num_gradients` steps.
        interval: Steps between moves.
        replacement: Share of the weights replaced at the first move; it falls along a cosine.
        end: Share of the training after which nothing moves any more.
        allocation: How weights are shared out: "uniform", "erk" (small tensors get more), or a
            table of paths and densities.
        pattern: What comes and goes together: "free" (single weights), a block of rows and columns
            such as "4x1" or "8x8", a whole "filter", or "2:4", two of every four neighbours (half
            of a tensor, whatever the density; tensors that cannot have it stay dense).
        scope: Whether a move compares the weights of a "layer", or all of them ("global").
        first_dense: Whether the first tensor stays dense.
        new_std: Standard deviation of a weight that enters; None takes its tensor's mean.
        readmit: Whether a weight that has just left may enter again, with its old numbers.
        num_gradients: Steps that "mean_abs_gradient" averages over. A run that is resumed among
            them averages over those since, so it does not end with the same bits.
        start: Which weights exist at first: "random" ones, or those of largest "magnitude".
        seed: Seed of the random start.
        prior_std: Prior standard deviation.
        initial_std: Standard deviation the posterior starts from; None takes a tenth of each
            tensor's root mean square.
        how: "local" draws layer outputs, "sample" draws weights.
        where: Which tensors become random (see `bayesify.conversion.select`).
    """

    name: ClassVar[str] = "sparse_subspace"
    can_be_sharded: ClassVar[bool] = False
    is_random: ClassVar[bool] = True
    """Whether the weights have a scale; without one they are plain sparse weights."""
    scale: ClassVar[Scale] = "weight"  # pyright: ignore[reportIncompatibleVariableOverride]
    biases: ClassVar[bool] = False  # pyright: ignore[reportIncompatibleVariableOverride]

    density: float = 0.1
    first_density: float | None = None
    removal: str = "snr"
    addition: Literal["gradient", "mean_gradient", "mean_abs_gradient"] = "gradient"
    interval: int = 100
    replacement: float = 0.3
    end: float = 0.75
    allocation: str | Mapping[str, float] = "uniform"
    pattern: str = "free"
    scope: Literal["layer", "global"] = "layer"
    first_dense: bool = True
    new_std: float | None = None
    readmit: bool = True
    num_gradients: int = 10
    start: Literal["random", "magnitude"] = "random"
    seed: int = 0
    prior_std: float = 0.1
    initial_std: float | None = None
    how: Literal["sample", "local"] = "local"
    where: Where = "everything"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("density", "replacement", "end"):
            check_share(name, getattr(self, name))
        check_count("interval", self.interval)
        check_count("num_gradients", self.num_gradients)
        if self.first_density is not None:
            check_share("first_density", self.first_density)
            if self.first_density < self.density or self.pattern != FREE:
                raise ValueError(
                    "first_density must be at least density, and pattern 'free', got "
                    f"{self.first_density} with density={self.density}, pattern={self.pattern!r}"
                )
        if self.removal not in importances:
            raise ValueError(unknown("removal criterion", self.removal, importances))
        check_choice("addition", self.addition, ("gradient", "mean_gradient", "mean_abs_gradient"))
        check_choice("scope", self.scope, ("layer", "global"))
        check_choice("start", self.start, ("random", "magnitude"))
        if isinstance(self.allocation, Mapping):
            for path, value in self.allocation.items():
                check_share(f"allocation[{path!r}]", value)
        else:
            check_choice("allocation", self.allocation, ("uniform", "erk"))
        Pattern(self.pattern)
        if self.pattern != FREE and self.scope == "global":
            raise ValueError(
                "scope='global' moves single weights between tensors, got "
                f"pattern={self.pattern!r}: take scope='layer'"
            )
        if self.new_std is not None and not (math.isfinite(self.new_std) and self.new_std > 0):
            raise ValueError(f"new_std must be positive and finite, got {self.new_std}")

    def choices(self) -> Choices:
        """Return the Normal family and the Normal prior."""
        prior = NormalPrior(std=self.prior_std)
        return Choices(Normal(), lambda *_: prior, self.initial_std, self.how, self.scale)

    def plan(self, model: nn.Module) -> Plan:
        """Select the tensors and check that a table of densities names some of them."""
        plan = super().plan(model)
        filled = [
            (site.path, "its padding row is not 0, and a sparse table holds no such row")
            for site in plan.sites
            if site.fixed_row is not None
            and bool(model.get_parameter(site.path)[site.fixed_row].any())
        ]
        if filled:
            raise ConversionError(filled)
        if isinstance(self.allocation, Mapping):
            paths = [site.path for site in plan.sites]
            wrong = [path for path in self.allocation if path not in paths]
            if wrong:
                reason = [(path, unknown("tensor in allocation", path, paths)) for path in wrong]
                raise ConversionError(reason)
        return plan

    def prepare_(self, model: nn.Module, plan: Plan) -> nn.Module:
        """Replace the planned tensors by posteriors of a part of their entries."""
        model = super().prepare_(model, plan)
        sites = named_posteriors(model)
        shares = self._densities(plan)
        generator = torch.Generator().manual_seed(self.seed)
        new = {}
        for path, site in sites.items():
            part = site
            if self._is_sparse(site, shares[path]):
                barred = barred_entries(plan, path, site)
                share = min(1.0, shares[path] * self.excess(0.0))
                part = narrowed(site, self._first_entries(site, share, barred, generator))
            new[site] = part if self.is_random else without_scales(part)
        replace_posteriors_(model, new)
        return model

    def _densities(self, plan: Plan) -> dict[str, float]:
        shapes = {site.path: site.shape for site in plan.sites}
        first = next(iter(shapes), None)
        is_dense = self.first_dense and len(shapes) > 1 and first is not None
        if is_dense and not (isinstance(self.allocation, Mapping) and first in self.allocation):
            del shapes[cast(str, first)]
            return {cast(str, first): 1.0, **densities(shapes, self.density, self.allocation)}
        return densities(shapes, self.density, self.allocation)

    def _is_sparse(self, site: Posterior, share: float) -> bool:
        if self.pattern == TWO_OF_FOUR:
            return share < 1.0 and Pattern(self.pattern).fits(tuple(site.shape))
        return share < 1.0

    def _first_entries(
        self, site: Posterior, share: float, barred: Tensor | None, generator: torch.Generator
    ) -> Tensor:
        shape, device = tuple(site.shape), next(site.parameters()).device
        if self.start == "random":
            # Drawn on the CPU: the same entries for a seed on every device.
            worth = torch.rand(site.shape.numel(), generator=generator)
        else:
            worth = site.dense_mean().detach().flatten().abs().float().cpu()
        if barred is not None:
            worth[barred.cpu()] = -math.inf
        if self.pattern == TWO_OF_FOUR:
            return two_of_four(worth).to(device)
        groups = Pattern(self.pattern).group_of_entry(shape)
        sums = of_groups(worth, groups)
        size = math.prod(Pattern(self.pattern).block_of(shape))
        count = max(1, round(num_kept(shape, share) / size))
        kept = torch.zeros(len(sums), dtype=torch.bool)
        kept[sums.topk(min(count, int(torch.isfinite(sums).sum()))).indices] = True
        return kept[groups].to(device)

    def moves_at(self, step: int, num_steps: int | None) -> bool:
        """Whether weights leave and enter after this step, counted from 1."""
        if num_steps is None:
            raise ValueError("SparseSubspace needs a train_loader with a length: it ends in time")
        return step % self.interval == 0 and step < self.end * num_steps

    def share_replaced(self, step: int, num_steps: int) -> float:
        """Return the share of the weights that a move after this step replaces."""
        return 0.5 * self.replacement * (1 + math.cos(math.pi * step / (self.end * num_steps)))

    def excess(self, progress: float) -> float:
        """Return how many weights exist, over how many will, at this share of the moves."""
        more = (self.first_density or self.density) / self.density - 1.0
        return 1.0 + more * 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))

    def _num_after(self, shares: Mapping[Posterior, float], update: Update) -> int:
        """Return how many entries of some tensors exist after a move."""
        if self.first_density is None:
            return sum(site.num_live for site in shares)
        last = math.ceil(self.end * cast(int, update.num_steps)) - 1
        factor = self.excess(update.step / max(last - last % self.interval, 1))
        wanted = (num_kept(tuple(s.shape), min(1.0, factor * shares[s])) for s in shares)
        return min(sum(wanted), sum(site.num_live for site in shares))

    @contextmanager
    def around_step(self, model: nn.Module, update: Update) -> Iterator[None]:
        """Keep the gradients of whole tensors where a move is about to need them."""
        if self.addition == "mean_gradient" or not self._is_watched(update):
            with self._moving(model, update):
                yield
            return
        # A compiled backward pass has no place to look in; these few steps are not compiled.
        with torch.compiler.set_stance("force_eager"), _keeping_gradients(model):
            yield

    def _moving(self, model: nn.Module, update: Update) -> Any:
        is_due = self.addition == "mean_gradient" and self.moves_at(update.step, update.num_steps)
        return _marked(model) if is_due else nullcontext()

    def _is_watched(self, update: Update) -> bool:
        ahead = self.num_gradients if self.addition == "mean_abs_gradient" else 1
        return any(
            self.moves_at(step, update.num_steps)
            for step in range(update.step, update.step + ahead)
        )

    def nll(
        self, model: nn.Module, forward: Callable[[], Any], nll: Callable[..., Tensor]
    ) -> Tensor:
        """Return the nll of a draw; before a move by the mean network, find its gradient too."""
        if model.__dict__.get(_MARK):
            means = [cast(Tensor, site.mean) for site in sparse_sites(model).values()]
            with (
                torch.compiler.set_stance("force_eager"),
                forward_by(model, "mean"),
                _keeping_gradients(model),
            ):
                torch.autograd.grad(nll(forward(), is_logged=False), means, allow_unused=True)
        return nll(forward())

    def after_step(self, model: nn.Module, update: Update) -> None:
        """Move the subspace where it is time, and add up gradients where they are averaged."""
        sites = sparse_sites(model)
        is_move = self.moves_at(update.step, update.num_steps)
        if self.addition == "mean_abs_gradient":
            for site in sites.values():
                if site.gradient is not None:
                    total = update.average(site.gradient).abs()
                    before = site.__dict__.get(_SUM)
                    site.__dict__[_SUM] = total if before is None else before + total
                    site.gradient = None
        if not is_move:
            return
        gradients = {path: self._taken(site, update) for path, site in sites.items()}
        share = self.share_replaced(update.step, cast(int, update.num_steps))
        plan = require_record(model).plan
        barred = {path: barred_entries(plan, path, site) for path, site in sites.items()}
        kept = self._densities(plan)
        for names in [[path] for path in sites] if self.scope == "layer" else [list(sites)]:
            part = [(sites[path], gradients[path], barred[path]) for path in names]
            num_after = self._num_after({sites[path]: kept[path] for path in names}, update)
            self._move(part, share, update, num_after)

    def _taken(self, site: Posterior, update: Update) -> Tensor:
        if self.addition == "mean_abs_gradient":
            return site.__dict__.pop(_SUM).flatten()
        gradient, site.gradient = site.gradient, None
        if gradient is None:
            raise RuntimeError(
                "SparseSubspace found no gradient of a tensor that should move: the network did "
                "not use it in this step"
            )
        return update.average(gradient).abs().flatten()

    @torch.no_grad()
    def _move(
        self,
        part: Sequence[tuple[Posterior, Tensor, Tensor | None]],
        share: float,
        update: Update,
        num_after: int,
    ) -> None:
        """Let the least important entries of some tensors leave, and others enter."""
        units = [self._units(*entry) for entry in part]
        is_live, worth, want = (torch.cat(column) for column in zip(*units, strict=True))
        if self.pattern == TWO_OF_FOUR:
            after = moved_two_of_four(is_live, worth, want, share)
        else:
            fewer = sum(site.num_live for site, *_ in part) - num_after
            after = moved(is_live, worth, want, share, readmit=self.readmit, fewer=fewer)
        sizes = [len(each) for each, *_ in units]
        for (site, *_), kept in zip(part, after.split(sizes), strict=True):
            groups = self._groups(site)
            entries = kept if groups is None else kept[groups]
            if int(entries.sum()) != num_after and self.scope == "layer":
                raise AssertionError("a move must leave as many weights as it should")
            move_(site, entries.nonzero()[:, 0], self._fresh(site), update.optimizers)

    def _units(
        self, site: Posterior, gradient: Tensor, barred: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return, for all that comes and goes together: whether it lives, its worth, its pull."""
        score = importance(self.removal, cast(Tensor, site.mean), live_std(site))
        is_live, worth = live_mask(site), in_dense_order(site, score, 0.0)
        want = gradient.double()
        if barred is not None:
            want = want.index_fill(0, barred, -math.inf)
        groups = self._groups(site)
        if groups is None:
            return is_live, worth, want
        lives = of_groups(is_live.double(), groups) > 0
        return lives, of_groups(worth, groups), of_groups(want, groups)

    def _groups(self, site: Posterior) -> Tensor | None:
        """Return the group of each entry, None where every entry is on its own."""
        if self.pattern in (FREE, TWO_OF_FOUR):
            return None
        groups = Pattern(self.pattern).group_of_entry(tuple(site.shape))
        return groups.to(next(site.parameters()).device)

    def _fresh(self, site: Posterior) -> dict[str, float]:
        if site.num_random == 0:
            return {"mean": 0.0}
        std = live_std(site).mean() if self.new_std is None else torch.tensor(self.new_std)
        return {"mean": 0.0, "rho": float(inverse_softplus(std.double()))}


_MARK = "_bayesify_moves_by_the_mean"
_SUM = "_bayesify_gradient_sum"


@contextmanager
def _keeping_gradients(model: nn.Module) -> Iterator[None]:
    sites = list(sparse_sites(model).values())
    try:
        for site in sites:
            site.keeps_gradient = True
        yield
    finally:
        for site in sites:
            site.keeps_gradient = False


@contextmanager
def _marked(model: nn.Module) -> Iterator[None]:
    model.__dict__[_MARK] = True
    try:
        yield
    finally:
        model.__dict__.pop(_MARK, None)
