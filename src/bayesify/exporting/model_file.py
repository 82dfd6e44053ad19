"""Save a model to one file and load it back: tensors, method, plan and likelihood.

A file names every tensor as a person would: `fc1.weight.mean`, `fc1.weight.rho`, `fc1.bias`.
A compressed model's file holds only the weights that are left, and `fc1.weight.index`, where
they are.
It holds no code; loading needs the architecture, as a module or as a registered model's name.
"""

from __future__ import annotations

import copy
import json
import math
import os
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from bayesify.archive import ArchiveError, read_archive, write_archive
from bayesify.conversion.convert import attach_record, require_record
from bayesify.conversion.layer_class import SUFFIX
from bayesify.conversion.method import method_from_dict
from bayesify.conversion.narrow import with_state
from bayesify.conversion.plan import Plan, Site, Skip
from bayesify.conversion.posterior import Posterior
from bayesify.conversion.resize import resize_
from bayesify.conversion.select import candidates
from bayesify.conversion.sites import posterior_paths, replace_posteriors_
from bayesify.exporting.architectures import architectures
from bayesify.training.likelihood import Likelihood, likelihood_from_dict
from bayesify.version import __version__

KIND = "model"
_LIKELIHOOD = "likelihood:"
_POSITIONS = ("index", "random_index")
_BITS = "_bits"


def save(
    model: nn.Module,
    path: str | os.PathLike[str],
    *,
    architecture: str | None = None,
    options: Mapping[str, Any] | None = None,
    note: Mapping[str, Any] | None = None,
) -> None:
    """Write a converted model to a file, whole or not at all.

    Args:
        model: A model from `convert`.
        path: The file; by custom it ends in .safetensors.
        architecture: Name of the registered model it was made from; then `load(path)` needs
            nothing else.
        options: Arguments the registered model was built with.
        note: Anything JSON can hold that should travel along.
    """
    record = require_record(model)
    if architecture is not None:
        _ = architectures[architecture]
    tensors = {}
    totals = {
        path: site.shape.numel() for site, paths in posterior_paths(model).items() for path in paths
    }
    written: dict[int, Tensor] = {}  # the positions of tied tensors are stored once
    for key, value in model.state_dict().items():
        public = public_key(model, key)
        if (total := totals.get(public.rpartition(".")[0])) is not None and public != key:
            public, value = _for_file(public, value, total, written)
        tensors[public] = value
    likelihood = None
    if isinstance(record.likelihood, Likelihood) and record.likelihood.task != "custom":
        likelihood = record.likelihood.to_dict()
        own = record.likelihood.state_dict()
        tensors |= {f"{_LIKELIHOOD}{key}": value for key, value in own.items()}
    for name, value in (("options", options), ("note", note)):
        _check_json(name, value)
    description = {
        "library": __version__,
        "method": record.method.to_dict(),
        "sites": [site.to_dict() for site in record.plan.sites],
        "skipped": [vars(skip) for skip in record.plan.skipped],
        "resized": {path: dict(sizes) for path, sizes in record.plan.resized.items()},
        "likelihood": likelihood,
        "moment_factors": record.moment_factors,
        "frozen": [
            public_key(model, key)
            for key, parameter in model.named_parameters()
            if not parameter.requires_grad
        ],
        "architecture": architecture,
        "options": dict(options or {}),
        "note": dict(note or {}),
    }
    write_archive(path, KIND, tensors, description)


def load(path: str | os.PathLike[str], architecture: nn.Module | None = None) -> nn.Module:
    """Return the model a file holds.

    Args:
        path: A file that `save` wrote.
        architecture: A plain module of the architecture the model was made from; it is not
            changed. None builds the registered model the file names.

    Raises:
        ArchiveError: The file is damaged, foreign, newer, or of another architecture.
    """
    tensors, description = read_archive(path, KIND)
    net = _architecture(path, description) if architecture is None else copy.deepcopy(architecture)
    try:
        method = method_from_dict(description["method"])
        sites = tuple(Site.from_dict(fields) for fields in description["sites"])
        skipped = tuple(
            Skip(entry["path"], tuple(entry["shape"]), entry["reason"])
            for entry in description["skipped"]
        )
        resized = description.get("resized", {})
        likelihood = _likelihood(description["likelihood"], tensors)
        frozen = set(description["frozen"])
        factors = description.get("moment_factors")
    except (LookupError, TypeError, ValueError, RuntimeError) as error:
        raise ArchiveError(
            f"{path} describes a model this bayesify cannot make: {error}"
        ) from error
    plan = Plan(sites, skipped, resized)
    _check_sites(path, net, plan)
    try:
        resize_(net, resized)
    except ValueError as error:
        raise ArchiveError(f"{path} was made from another architecture: {error}") from error
    model = attach_record(method.prepare_(net, plan), method, plan)
    _take_sparse_state_(path, model, tensors)
    _load_tensors(path, model, tensors)
    for key, parameter in model.named_parameters():
        parameter.requires_grad_(public_key(model, key) not in frozen)
    record = require_record(model)
    record.likelihood, record.moment_factors = likelihood, factors
    return model.eval()


def read_note(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return what `save` was told to send along, with the method and architecture."""
    _, description = read_archive(path, KIND)
    keys = ("library", "method", "architecture", "options", "likelihood", "note")
    return {key: description[key] for key in keys}


def public_key(model: nn.Module, key: str) -> str:
    """Return a state-dict key as files name it: fc.weight_posterior.mean is fc.weight.mean."""
    path, _, name = key.rpartition(".")
    parent, _, last = path.rpartition(".")
    owner = model.get_submodule(parent) if last else model
    if isinstance(owner._modules.get(last), Posterior):
        return f"{path.removesuffix(SUFFIX)}.{name}"
    return key


def _likelihood(fields: dict[str, Any] | None, tensors: Mapping[str, Tensor]) -> Likelihood | None:
    if fields is None:
        return None
    likelihood = likelihood_from_dict(fields)
    own = {
        key.removeprefix(_LIKELIHOOD): value
        for key, value in tensors.items()
        if key.startswith(_LIKELIHOOD)
    }
    likelihood.load_state_dict(own)
    return likelihood


def _check_json(name: str, value: object) -> None:
    try:
        json.dumps(value)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} must hold only what JSON can hold: {error}") from error


def _architecture(path: Any, description: Mapping[str, Any]) -> nn.Module:
    name = description["architecture"]
    if name is None:
        raise ValueError(
            f"architecture must be given: {path} does not name a registered model, so load needs "
            "a module of the architecture it was made from"
        )
    if name not in architectures:
        raise ArchiveError(f"{path} was made from the model {name!r}, which is not registered here")
    return architectures[name](**description["options"])


def _check_sites(path: Any, net: nn.Module, plan: Plan) -> None:
    found = {candidate.path: candidate for candidate in candidates(net)}
    problems = []
    for site in plan.sites:
        candidate = found.get(site.path)
        if candidate is None:
            problems.append(f"{site.path} is missing")
        elif candidate.shape != (expected := site.original_shape or site.shape):
            problems.append(f"{site.path} has shape {candidate.shape}, the file {expected}")
    if problems:
        raise ArchiveError(
            f"{path} was made from another architecture: {'; '.join(problems[:5])}"
            + (f" and {len(problems) - 5} more" if len(problems) > 5 else "")
        )


def _for_file(
    key: str, value: Tensor, total: int, written: dict[int, Tensor]
) -> tuple[str, Tensor]:
    """Return the name and the shortest form of one tensor of a posterior with `total` entries."""
    if key.rpartition(".")[2] not in _POSITIONS or total >= 2**31:
        return key, value
    is_ascending = bool((value.diff() > 0).all())
    if is_ascending and total < 32 * value.numel():
        # One bit for every entry is less than four bytes for each that is there.
        stays = np.zeros(total, dtype=bool)
        stays[value.cpu().numpy()] = True
        bits = torch.from_numpy(np.packbits(stays))
        return f"{key}{_BITS}", written.setdefault(value.data_ptr(), bits)
    return key, written.setdefault(value.data_ptr(), value.to(torch.int32))


def _as_positions(tensors: dict[str, Tensor], name: str, total: int) -> None:
    """Bring the positions a file has of one posterior to what torch indexes with."""
    for key in (f"{name}.{suffix}" for suffix in _POSITIONS):
        bits = tensors.pop(f"{key}{_BITS}", None)
        if bits is not None:
            stays = np.unpackbits(bits.numpy(), count=total)
            tensors[key] = torch.from_numpy(np.flatnonzero(stays))
        if key in tensors:
            tensors[key] = tensors[key].to(torch.int64)


def _take_sparse_state_(path: Any, model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Bring every posterior to the entries the file has of it."""
    smaller = {}
    for site, (name, *others) in posterior_paths(model).items():
        for path_of_it in (name, *others):
            _as_positions(tensors, path_of_it, site.shape.numel())
        device = next(site.parameters()).device
        index = tensors.get(f"{name}.index")
        random_index = tensors.get(f"{name}.random_index")
        is_whole = site.index is None and site.random_index is None
        if index is None and random_index is None and is_whole:
            continue
        values = {key: tensors.get(f"{name}.{key}") for key in site.family.parameter_names}
        problem = _part_problem(site, index, values, random_index)
        if problem:
            raise ArchiveError(f"{path} holds no posterior of {name}: {problem}")
        state = {key: cast(Tensor, value).to(device) for key, value in values.items()}
        where = (None if part is None else part.to(device) for part in (index, random_index))
        smaller[site] = with_state(site, site.shape, state, *where)
    replace_posteriors_(model, smaller)


def _part_problem(
    site: Posterior,
    index: Tensor | None,
    values: dict[str, Tensor | None],
    random_index: Tensor | None,
) -> str | None:
    total = site.shape.numel()
    num_live = total if index is None else index.numel()
    for positions, limit in ((index, total), (random_index, num_live)):
        if positions is None or not positions.numel():
            continue
        if int(positions.min()) < 0 or int(positions.max()) >= limit:
            return f"its positions reach beyond its {limit} entries"
    num_random = num_live if random_index is None else random_index.numel()
    whole = tuple(site.shape)
    shapes = [whole if index is None else (num_live,)]
    is_whole = index is None and random_index is None
    shapes += [whole if is_whole else (num_random,)] * (len(values) - 1)
    for (name, value), shape in zip(values.items(), shapes, strict=True):
        if value is None or value.shape != shape:
            return f"expected {math.prod(shape)} numbers of {name}"
    return None


def _load_tensors(path: Any, model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    state = {key: value for key, value in tensors.items() if not key.startswith(_LIKELIHOOD)}
    own = {key: public_key(model, key) for key in model.state_dict()}
    missing = sorted(set(own.values()) - state.keys())
    extra = sorted(state.keys() - set(own.values()))
    if missing or extra:
        raise ArchiveError(
            f"{path} was made from another architecture: missing {missing[:3]}, unexpected "
            f"{extra[:3]}"
        )
    for key, tensor in model.state_dict(keep_vars=True).items():
        # A model in float64 or bfloat16 stays one, whatever type the architecture was built in.
        if key in own and tensor.dtype != state[own[key]].dtype:
            tensor.data = tensor.data.to(state[own[key]].dtype)
    try:
        model.load_state_dict({key: state[public] for key, public in own.items()})
    except RuntimeError as error:
        raise ArchiveError(f"{path} was made from another architecture: {error}") from error
