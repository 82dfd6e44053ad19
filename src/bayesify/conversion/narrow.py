"""Smaller posteriors: fewer entries in the same shape, or the same entries in a smaller shape.

Both return a new posterior and leave the old one as it was. What goes is gone: it is not stored,
trained, drawn or counted in the KL.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from bayesify.conversion.kl import whole
from bayesify.conversion.posterior import Posterior


def signal_to_noise(posterior: Posterior) -> Tensor:
    """Return |mean| / std of every existing entry, in the order they are stored.

    An entry that is not random has an infinite ratio, or 0 where its mean is 0 too.
    """
    with torch.no_grad():
        mean = existing(posterior, posterior.dense_mean()).to(torch.float32).abs()
        std = existing(posterior, posterior.dense_variance()).sqrt().to(torch.float32)
        return torch.where(mean == 0, torch.zeros_like(mean), mean / std)


def num_above(posterior: Posterior, ratio: float) -> int:
    """Return how many entries have a |mean| / std above this ratio, sharded tensors included."""
    with torch.no_grad():
        mean, variance = posterior.dense_moments()
        return int(whole((mean.abs() > ratio * variance.sqrt()).sum()))


def existing(posterior: Posterior, dense: Tensor) -> Tensor:
    """Return the values of a dense tensor at the entries that exist, flat."""
    flat = dense.reshape(-1)
    return flat if posterior.index is None else flat[posterior.index]


def narrowed(posterior: Posterior, kept: Tensor) -> Posterior:
    """Return the posterior without the entries that are not `kept`; they are exactly 0.

    Args:
        posterior: Any posterior; scales that entries share become one per entry.
        kept: Whether to keep each existing entry, in the order they are stored.
    """
    if kept.shape != (posterior.num_live,) or kept.dtype != torch.bool:
        raise ValueError(
            f"kept must be one boolean for each of the {posterior.num_live} existing entries, got "
            f"{kept.dtype} of shape {tuple(kept.shape)}"
        )
    if bool(kept.all()):
        return copy.deepcopy(posterior)
    first, *others = posterior.family.parameter_names
    values = {first: _parameter(posterior, first).flatten()[kept]}
    random_index = posterior.random_index
    if random_index is None:
        for name in others:
            scale = _parameter(posterior, name)
            shape = _parameter(posterior, first).shape
            values[name] = scale.expand(shape).flatten()[kept]
    else:
        stays = kept[random_index]
        values |= {name: _parameter(posterior, name)[stays] for name in others}
        random_index = (kept.cumsum(0) - 1)[random_index[stays]]
        if random_index.numel() == values[first].numel():
            random_index = None
    positions = posterior.index
    if positions is None:
        positions = torch.arange(posterior.num_live, device=kept.device)
    return with_state(posterior, posterior.shape, values, positions[kept], random_index)


def without_scales(posterior: Posterior) -> Posterior:
    """Return the posterior with every entry at its mean, and no scale stored."""
    first, *others = posterior.family.parameter_names
    mean = _parameter(posterior, first)
    values = {first: mean, **{name: mean.new_zeros(0) for name in others}}
    none = torch.zeros(0, dtype=torch.int64, device=mean.device)
    return with_state(posterior, posterior.shape, values, posterior.index, none)


def partly_random(posterior: Posterior, is_random: Tensor) -> Posterior:
    """Return the posterior with the same means, and scales at some of its entries only.

    Args:
        posterior: A posterior in which every existing entry is random, with a scale of its own.
        is_random: Whether each existing entry stays random, in the order they are stored.
    """
    if is_random.shape != (posterior.num_live,) or is_random.dtype != torch.bool:
        raise ValueError(
            f"is_random must be one boolean for each of the {posterior.num_live} existing entries, "
            f"got {is_random.dtype} of shape {tuple(is_random.shape)}"
        )
    if bool(is_random.all()):
        return copy.deepcopy(posterior)
    first, *others = posterior.family.parameter_names
    entries = is_random if posterior.random_index is None else is_random[posterior.random_index]
    values = {first: _parameter(posterior, first)}
    values |= {name: _parameter(posterior, name).flatten()[entries] for name in others}
    where = is_random.nonzero()[:, 0]
    return with_state(posterior, posterior.shape, values, posterior.index, where)


def without_units(posterior: Posterior, axis: int, units: Tensor) -> Posterior:
    """Return the posterior of the tensor that holds only these `units` of one axis.

    Args:
        posterior: Any posterior.
        axis: The axis of the tensor that shrinks.
        units: Positions along the axis that stay, ascending.
    """
    old = torch.arange(posterior.shape.numel(), device=units.device).view(posterior.shape)
    positions = old.index_select(axis, units)
    shape = positions.shape
    if posterior.index is None and posterior.random_index is None:
        values = {}
        for name in posterior.family.parameter_names:
            entry = _parameter(posterior, name)
            is_shared = entry.ndim != len(shape) or entry.shape[axis] != posterior.shape[axis]
            values[name] = entry if is_shared else entry.index_select(axis, units)
        return with_state(posterior, shape, values, None, None)
    place = torch.full((posterior.shape.numel(),), -1, device=units.device)
    place[positions.flatten()] = torch.arange(positions.numel(), device=units.device)
    target = existing(posterior, place)
    part = narrowed(posterior, target >= 0)
    if part.index is None and part.shape == shape:
        return part
    index = target[target >= 0]
    if posterior.index is None:
        # Every entry of the smaller tensor exists, in order: it needs no index.
        index = None
    values = {name: _parameter(part, name) for name in part.family.parameter_names}
    if index is None:
        first = part.family.parameter_names[0]
        values[first] = values[first].view(shape)
    return with_state(part, shape, values, index, part.random_index)


def _parameter(posterior: Posterior, name: str) -> Tensor:
    return getattr(posterior, name).detach()


def with_state(
    posterior: Posterior,
    shape: torch.Size,
    values: dict[str, Tensor],
    index: Tensor | None,
    random_index: Tensor | None,
) -> Posterior:
    """Return a posterior of the same kind that holds these numbers, in this shape."""
    twin = copy.copy(posterior)
    # A shallow copy shares the dictionaries of the module it was made from.
    twin._parameters = {}
    twin._buffers = {}
    for name, value in values.items():
        is_trained = getattr(posterior, name).requires_grad
        twin.register_parameter(name, nn.Parameter(value.clone(), requires_grad=is_trained))
    twin.shape = shape
    twin.place_(index, random_index)
    first = posterior.family.parameter_names[0]
    is_whole = index is None and random_index is None
    twin.is_tied_scale = is_whole and any(
        value.numel() != values[first].numel() for value in values.values()
    )
    return twin
