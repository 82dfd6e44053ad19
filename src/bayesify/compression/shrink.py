"""Remove units that do nothing: the network gets smaller and its predictions stay as they are.

A unit goes when nothing reads it any more, or when it is 0 for every input. Its row, its bias, its
entries in a normalisation and the columns that read it go with it, which may leave other units
with nothing to do.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from bayesify.compression.structure import IS_OUTPUT, Link, find_structure
from bayesify.conversion.convert import require_record
from bayesify.conversion.layer_class import posterior_of
from bayesify.conversion.plan import Plan, Site
from bayesify.conversion.posterior import Posterior, posteriors
from bayesify.conversion.resize import sizes_of, smaller_tensors, take_tensors_

Resized = dict[str, dict[str, Tensor]]
"""For each layer that shrinks, by size attribute, the positions that stay."""


def shrink_(model: nn.Module) -> str | None:
    """Remove every dead unit of a pruned model in place.

    Outputs keep their distribution, and inputs and outputs their sizes. A layer keeps one unit at
    least. On an error the model is unchanged.

    Args:
        model: A converted model; entries that pruning removed are those not in an `index`.

    Returns:
        Why layers kept units that may do nothing; None where none had to.
    """
    record = require_record(model)
    if all(site.index is None for site in posteriors(model)):
        return None
    structure = find_structure(model)
    if structure.problem is not None:
        return structure.problem
    resized = _resized(model, structure.links, _kept_units(model, structure.links))
    layers = {path: model.get_submodule(path) for path in resized}
    tensors = {path: smaller_tensors(layers[path], units) for path, units in resized.items()}
    plan = _smaller_plan(record.plan, resized, tensors)
    for path, layer in layers.items():
        take_tensors_(layer, tensors[path], plan.resized[path])
    record.plan = plan
    kept = {path: reason for path, reason in structure.blocked.items() if reason != IS_OUTPUT}
    return "; ".join(f"{path}: {reason}" for path, reason in kept.items()) or None


def _kept_units(model: nn.Module, links: Sequence[Link]) -> dict[str, Tensor]:
    """Return for each producer which of its units do something."""
    paths = {link.producer for link in links}
    paths |= {reader.path for link in links for reader in link.readers}
    # Weights that exist, as rows of outputs and columns of inputs.
    exists = {path: _existing_weights(model.get_submodule(path)) for path in paths}
    vanish = {
        link.producer: link.vanish(_constants(model.get_submodule(link.producer))) for link in links
    }
    kept = {path: torch.ones_like(units) for path, units in vanish.items()}
    has_changed = True
    while has_changed:
        has_changed = False
        # Backwards: a unit that nothing reads takes with it what only it has read.
        for link in reversed(links):
            dead = _dead_units(link, exists, vanish[link.producer]) & kept[link.producer]
            dead &= ~_last_one(kept[link.producer], dead, exists[link.producer])
            if bool(dead.any()):
                has_changed = True
                kept[link.producer] &= ~dead
                exists[link.producer][dead] = False
                for reader in link.readers:
                    columns = dead.repeat_interleave(reader.block)
                    exists[reader.path][:, columns.to(exists[reader.path].device)] = False
    return kept


def _dead_units(link: Link, exists: dict[str, Tensor], vanishes: Tensor) -> Tensor:
    is_read = torch.zeros_like(vanishes)
    for reader in link.readers:
        columns = exists[reader.path].any(0).to(is_read.device)
        is_read |= columns.view(-1, reader.block).any(1)
    is_fed = exists[link.producer].any(1)
    return ~is_read | (~is_fed & vanishes)


def _last_one(kept: Tensor, dead: Tensor, exists: Tensor) -> Tensor:
    """Return the one unit that stays where all are dead: the one with the fewest weights."""
    stays = torch.zeros_like(kept)
    if bool((kept & ~dead).any()):
        return stays
    num_weights = exists.sum(1).masked_fill(~kept, exists.shape[1] + 1)
    stays[num_weights.argmin()] = True
    return stays


def _existing_weights(layer: nn.Module) -> Tensor:
    """Return which inputs of a layer some existing weight gives to which of its outputs."""
    sizes = sizes_of(layer)
    assert sizes is not None
    posterior = posterior_of(layer, "weight")
    if posterior is None:
        exists = torch.ones_like(layer.get_parameter("weight"), dtype=torch.bool)
    else:
        exists = _existing(posterior)
    rows = exists.movedim(sizes.axes[sizes.outputs]["weight"], 0)
    return rows[..., None].flatten(2).any(2)


def _existing(posterior: Posterior) -> Tensor:
    device = next(posterior.parameters()).device
    if posterior.index is None:
        return torch.ones(posterior.shape, dtype=torch.bool, device=device)
    exists = torch.zeros(posterior.shape, dtype=torch.bool, device=device)
    exists.view(-1)[posterior.index] = True
    return exists


def _constants(layer: nn.Module) -> Tensor:
    """Return what a layer's units are where no weight feeds them; NaN where that is random."""
    bias = posterior_of(layer, "bias")
    if bias is not None:
        mean = bias.dense_mean().detach()
        return mean.masked_fill(_existing(bias), torch.nan)
    plain = getattr(layer, "bias", None)
    if isinstance(plain, Tensor):
        return plain.detach()
    sizes = sizes_of(layer)
    assert sizes is not None
    return next(layer.parameters()).new_zeros(getattr(layer, sizes.outputs))


def _resized(model: nn.Module, links: Sequence[Link], kept: dict[str, Tensor]) -> Resized:
    resized: Resized = {}
    for link in links:
        units = kept[link.producer]
        if bool(units.all()):
            continue
        sizes = sizes_of(model.get_submodule(link.producer))
        assert sizes is not None
        resized.setdefault(link.producer, {})[sizes.outputs] = units.nonzero().flatten()
        for reader in (*link.norms, *link.readers):
            sizes = sizes_of(model.get_submodule(reader.path))
            assert sizes is not None
            attribute = sizes.inputs or sizes.outputs
            columns = units.repeat_interleave(reader.block).nonzero().flatten()
            resized.setdefault(reader.path, {})[attribute] = columns
    return resized


def _smaller_plan(
    plan: Plan, resized: Resized, tensors: Mapping[str, Mapping[str, Tensor | Posterior]]
) -> Plan:
    by_path = {f"{path}.{name}": new for path, own in tensors.items() for name, new in own.items()}
    sizes = {
        path: {**plan.resized.get(path, {}), **{name: kept.numel() for name, kept in units.items()}}
        for path, units in resized.items()
    }
    return dataclasses.replace(
        plan,
        sites=tuple(_smaller_site(site, by_path.get(site.path)) for site in plan.sites),
        skipped=tuple(
            dataclasses.replace(skip, shape=tuple(by_path[skip.path].shape))
            if skip.path in by_path
            else skip
            for skip in plan.skipped
        ),
        resized={**plan.resized, **sizes},
    )


def _smaller_site(site: Site, posterior: Tensor | Posterior | None) -> Site:
    if not isinstance(posterior, Posterior):
        return site
    shape = tuple(posterior.shape)
    scale_shape = shape
    if posterior.is_tied_scale:
        scale_shape = tuple(next(posterior.scale_parameters()).shape)
    original = site.original_shape or site.shape
    return dataclasses.replace(site, shape=shape, scale_shape=scale_shape, original_shape=original)
