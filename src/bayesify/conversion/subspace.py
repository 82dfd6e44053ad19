"""A subspace of a tensor's entries: how many each tensor gets, which, and how they move.

What is outside the subspace has no parameter, no gradient and no optimiser state. Entries move by
rewriting the stored lists: the parameters stay the same objects, with new numbers in them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bayesify.conversion.plan import Plan
from bayesify.conversion.positions import as_stored
from bayesify.conversion.posterior import Posterior
from bayesify.conversion.sites import named_posteriors


def densities(
    shapes: Mapping[str, tuple[int, ...]], density: float, allocation: str | Mapping[str, float]
) -> dict[str, float]:
    """Return the share of entries each tensor gets.

    Args:
        shapes: Shape of every tensor, by path.
        density: Share of all entries together; of each tensor under "uniform".
        allocation: "uniform"; "erk", which gives small tensors more (Erdős–Rényi kernel: a density
            proportional to the sum over the product of a shape, at most 1); or a table of paths and
            densities, the others getting `density`.
    """
    if isinstance(allocation, Mapping):
        return {path: float(allocation.get(path, density)) for path in shapes}
    if allocation == "uniform":
        return dict.fromkeys(shapes, density)
    return _erdos_renyi(shapes, density)


def _erdos_renyi(shapes: Mapping[str, tuple[int, ...]], density: float) -> dict[str, float]:
    sizes = {path: math.prod(shape) for path, shape in shapes.items()}
    raw = {path: sum(shape) / max(sizes[path], 1) for path, shape in shapes.items()}
    wanted = density * sum(sizes.values())
    full: set[str] = set()
    while True:
        rest = [path for path in shapes if path not in full]
        left = wanted - sum(sizes[path] for path in full)
        total = sum(raw[path] * sizes[path] for path in rest)
        factor = left / total if total else 0.0
        over = {path for path in rest if factor * raw[path] > 1.0}
        if not over:
            return {path: 1.0 if path in full else factor * raw[path] for path in shapes}
        full |= over


def num_kept(shape: tuple[int, ...], density: float) -> int:
    """Return how many entries a tensor of this shape keeps: at least one."""
    return max(1, round(density * math.prod(shape)))


def live_std(posterior: Posterior) -> Tensor:
    """Return the standard deviation of every live entry, as it is stored; 0 without scales."""
    if posterior.num_random == 0:
        return torch.zeros(posterior.num_live, device=next(posterior.parameters()).device)
    return posterior.family.variance(posterior.random_parameters()).sqrt()


@torch.no_grad()
def move_(
    posterior: Posterior,
    index: Tensor,
    fresh: Mapping[str, float],
    optimizers: Sequence[Optimizer],
) -> None:
    """Make `index` the entries that exist: those that stay keep their numbers and their state.

    Args:
        posterior: A posterior with an index.
        index: Flat positions of the entries from now on, in any order.
        fresh: What a new entry's parameters are, by the names of those that are stored.
        optimizers: Optimisers whose state of a new entry becomes 0.
    """
    assert posterior.index is not None
    old, index = posterior.index.long(), index.sort().values
    place = torch.searchsorted(old, index).clamp_max(max(old.numel() - 1, 0))
    stays = old[place] == index if old.numel() else torch.zeros_like(index, dtype=torch.bool)
    for name in fresh:
        parameter = getattr(posterior, name)
        for optimizer in optimizers:
            _move_state(optimizer.state.get(parameter, {}), parameter, place, stays)
        values = parameter.detach()[place]
        values = torch.where(stays, values, torch.full_like(values, fresh[name]))
        if values.shape == parameter.shape:
            parameter.copy_(values)  # where others hold on to its memory, as DDP does
        else:
            parameter.data = values
        parameter.grad = None
    stored = as_stored(index, posterior.shape.numel())
    if stored.shape == posterior.index.shape and stored.dtype == posterior.index.dtype:
        posterior.index.copy_(stored)  # captured CUDA graphs read it where it lies
    else:
        posterior.index = stored


def _move_state(state: Any, parameter: nn.Parameter, place: Tensor, stays: Tensor) -> None:
    for key, value in state.items():
        if isinstance(value, Tensor) and value.shape == parameter.shape:
            kept = value[place]
            state[key] = torch.where(stays, kept, torch.zeros_like(kept))


def moved(
    is_live: Tensor, worth: Tensor, want: Tensor, share: float, *, readmit: bool, fewer: int = 0
) -> Tensor:
    """Return what lives after a move: as many as before, or `fewer`.

    Args:
        is_live: Whether each lives now.
        worth: How much each that lives is worth keeping; the least leave.
        want: How much each would be worth having; the largest enter, −inf never.
        share: Share of those that live which leaves.
        readmit: Whether what leaves may enter again at once.
        fewer: How many more leave than enter.
    """
    num_live = int(is_live.sum())
    num_free = int((~is_live & torch.isfinite(want)).sum())
    count = min(int(share * num_live), num_live if readmit else num_free)
    if count + fewer == 0:
        return is_live
    # An infinite worth (no spread) must still come before what does not live at all.
    bounded = worth.clamp_max(torch.finfo(worth.dtype).max).masked_fill(~is_live, math.inf)
    after = is_live.clone()
    after[bounded.topk(min(count + fewer, num_live), largest=False).indices] = False
    closed = after if readmit else is_live
    after[want.masked_fill(closed, -math.inf).topk(count).indices] = True
    return after


def two_of_four(worth: Tensor) -> Tensor:
    """Return a mask of the two entries of largest worth in every four neighbours."""
    rows = worth.view(-1, 4)
    kept = torch.zeros_like(rows, dtype=torch.bool)
    return kept.scatter(1, rows.topk(2).indices, True).flatten()


def moved_two_of_four(is_live: Tensor, worth: Tensor, want: Tensor, share: float) -> Tensor:
    """Return what lives after some fours have swapped their worse entry for a better one.

    The fours that swap are those whose best dead entry pulls most.
    """
    lives = is_live.view(-1, 4)
    count = min(int(share * 2 * len(lives)), len(lives))
    bounded = worth.clamp_max(torch.finfo(worth.dtype).max).view(-1, 4)
    leaving = bounded.masked_fill(~lives, math.inf).argmin(1)
    pull, entering = want.view(-1, 4).masked_fill(lives, -math.inf).max(1)
    rows = pull.topk(count).indices
    rows = rows[torch.isfinite(pull[rows])]
    after = lives.clone()
    after[rows, leaving[rows]] = False
    after[rows, entering[rows]] = True
    return after.flatten()


def live_mask(site: Posterior) -> Tensor:
    """Return whether each entry of a tensor exists, flat."""
    assert site.index is not None
    mask = torch.zeros(site.shape.numel(), dtype=torch.bool, device=site.index.device)
    mask[site.index] = True
    return mask


def in_dense_order(posterior: Posterior, values: Tensor, fill: float) -> Tensor:
    """Return one number per live entry as a flat dense tensor, `fill` where nothing lives."""
    assert posterior.index is not None
    dense = values.new_full((posterior.shape.numel(),), fill)
    return dense.index_copy(0, posterior.index.long(), values)


def sparse_sites(model: nn.Module) -> dict[str, Posterior]:
    """Return the posteriors of a model that exist in part only, by path."""
    return {path: site for path, site in named_posteriors(model).items() if site.index is not None}


def barred_entries(plan: Plan, path: str, site: Posterior) -> Tensor | None:
    """Return the positions that never become random: the padding row of an embedding."""
    row = next((entry.fixed_row for entry in plan.sites if entry.path == path), None)
    if row is None:
        return None
    width = site.shape[1:].numel()
    device = next(site.parameters()).device
    return torch.arange(row * width, (row + 1) * width, device=device)


def counts_in(model: nn.Module, state: Mapping[str, Tensor]) -> dict[str, int]:
    """Return the sparse posteriors, by path, that hold another number of entries in a state."""
    found = {}
    for path, site in model.named_modules():
        if not isinstance(site, Posterior) or site.index is None:
            continue
        keys = [f"{path}.{name}" for name in ("index", *site.family.parameter_names)]
        stored = [state[key].numel() for key in keys if key in state]
        # Without scales only positions and means are there.
        sizes = set(stored if site.num_random else stored[:2])
        if len(sizes) == 1 and sizes != {site.index.numel()}:
            found[path] = sizes.pop()
    return found


@torch.no_grad()
def make_room_(model: nn.Module, counts: Mapping[str, int]) -> None:
    """Give sparse posteriors as many entries as a state has for them, to be filled from it."""
    for path, count in counts.items():
        site = model.get_submodule(path)
        assert isinstance(site, Posterior)
        assert site.index is not None
        site.index = site.index.new_zeros(count)
        names = site.family.parameter_names
        for name in names if site.num_random else names[:1]:
            parameter = getattr(site, name)
            parameter.data = parameter.data.new_zeros(count)
            parameter.grad = None
