"""The plan of a conversion: every site, every skip and its reason, checked before any change."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import nn
from torch.nn.modules.conv import _ConvTransposeNd
from torch.nn.parameter import is_lazy

from bayesify.conversion.local import functional_form
from bayesify.conversion.posterior import Posterior, posteriors
from bayesify.conversion.select import Candidate, Selection
from bayesify.distributions import Family, Prior, chosen_estimator, divergence_problem
from bayesify.distributions.divergence import AUTO
from bayesify.distributions.family import as_family, as_prior, describe
from bayesify.types import ConversionError

Scale = Literal["weight", "out"]
"""One scale per weight, or one shared by all weights of an output unit."""


@dataclass(frozen=True)
class Site:
    """One tensor that becomes random, and every choice about it.

    Attributes:
        path: Its first name.
        paths: Every name it has; tied tensors have several.
        shape: Its shape now.
        module: The type of the module that owns it.
        family: How its entries are distributed.
        prior: What they are measured against.
        initial_std: The standard deviation they start from.
        scale_shape: The shape of its scales; smaller than `shape` where entries share them.
        how: How its randomness travels unless another way is asked for.
        can_be_local: Whether its layer has a rule for local reparameterisation.
        fixed_row: The row of an embedding that stays as it is, its padding.
        original_shape: Its shape before dead units were removed; None where none was.
        estimator: How its KL is found.
        num_samples: Draws averaged for the KL, where it is found by drawing.
    """

    path: str
    paths: tuple[str, ...]
    shape: tuple[int, ...]
    module: str
    family: Family
    prior: Prior
    initial_std: float
    scale_shape: tuple[int, ...]
    how: Literal["sample", "local"] = "sample"
    can_be_local: bool = False
    fixed_row: int | None = None
    original_shape: tuple[int, ...] | None = None
    estimator: str = AUTO
    num_samples: int = 1000

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready fields."""
        return {
            **{key: getattr(self, key) for key in _PLAIN_FIELDS},
            "paths": list(self.paths),
            "shape": list(self.shape),
            "scale_shape": list(self.scale_shape),
            "original_shape": None if self.original_shape is None else list(self.original_shape),
            "family": describe(self.family),
            "prior": describe(self.prior),
            "estimator": self.estimator,
            "num_samples": self.num_samples,
        }

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Site:
        """Return the site that `to_dict` wrote."""
        return cls(
            **{key: fields[key] for key in _PLAIN_FIELDS},
            paths=tuple(fields["paths"]),
            shape=tuple(fields["shape"]),
            scale_shape=tuple(fields["scale_shape"]),
            original_shape=_tuple_or_none(fields.get("original_shape")),
            family=as_family(fields["family"]),
            prior=as_prior(fields["prior"]),
            estimator=fields.get("estimator", AUTO),
            num_samples=fields.get("num_samples", 1000),
        )


def _tuple_or_none(values: list[int] | None) -> tuple[int, ...] | None:
    return None if values is None else tuple(values)


_PLAIN_FIELDS = ("path", "module", "initial_std", "how", "can_be_local", "fixed_row")


@dataclass(frozen=True)
class Skip:
    """One tensor that stays deterministic, and why."""

    path: str
    shape: tuple[int, ...]
    reason: str


@dataclass(frozen=True)
class Plan:
    """What a conversion will do to a model.

    Attributes:
        sites: The tensors that become random.
        skipped: The others.
        resized: Layers that are smaller than the architecture's own, because dead units were
            removed: their new sizes by attribute, such as {"fc1": {"out_features": 57}}.
    """

    sites: tuple[Site, ...] = ()
    skipped: tuple[Skip, ...] = ()
    resized: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Choices:
    """A method's choices for every site; a callable decides by (path, shape)."""

    family: Family
    prior: Callable[[str, tuple[int, ...]], Prior]
    initial_std: float | None = None
    how: Literal["sample", "local"] = "sample"
    scale: Scale = "weight"
    estimator: str = AUTO
    num_samples: int = 1000


def make_plan(model: nn.Module, selection: Selection, choices: Choices) -> Plan:
    """Plan a conversion, or raise one error that lists everything that stands in its way."""
    failures: list[tuple[str, str]] = []
    if posteriors(model):
        failures.append(("model", "it is Bayesian already: call revert first"))
    sites = []
    read_by_parent = _modules_read_by_parent(model)
    for candidate in selection.chosen:
        reasons = _obstacles(candidate)
        prior = None
        try:
            prior = choices.prior(candidate.path, candidate.shape)
        except Exception as error:  # the user's own function: whatever it raises is the reason
            reasons.append(f"the prior could not be made: {type(error).__name__}: {error}")
        if prior is not None:
            problem = divergence_problem(choices.family, prior, choices.estimator)
            reasons += [problem] if problem else []
        failures += [(candidate.path, reason) for reason in reasons]
        if not reasons and prior is not None:
            sites.append(_site(candidate, choices, prior, read_by_parent))
    if not selection.chosen:
        failures.append(("model", "nothing to make Bayesian: no tensor was selected"))
    if failures:
        raise ConversionError(failures)
    skipped = (Skip(c.path, c.shape, reason) for c, reason in selection.skipped)
    return Plan(tuple(sites), tuple(skipped))


def _obstacles(candidate: Candidate) -> list[str]:
    tensor = candidate.tensor
    if is_lazy(tensor):
        return ["its shape is not known yet: run the model once on an example first"]
    reasons = []
    if not tensor.is_floating_point():
        reasons.append(f"expected a real floating-point tensor, got {tensor.dtype}")
    elif tensor.is_meta:
        reasons.append("it is on the meta device: load its weights first")
    elif not bool(torch.isfinite(tensor).all()):
        reasons.append("it holds NaN or infinite values: start from finite weights")
    if any("parametrizations" in path.split(".") for path in candidate.paths):
        reasons.append(
            "it is parametrised already: remove the parametrisation, or leave it out of where"
        )
        return reasons
    for module, _ in candidate.owners:
        reasons += _obstacles_of_owner(module)
    return reasons


def _obstacles_of_owner(module: nn.Module) -> list[str]:
    reasons = []
    if isinstance(module, (nn.Sequential, nn.ModuleList, nn.ModuleDict)):
        kind = type(module).__name__
        reasons.append(f"a {kind} takes all it holds for layers: move its own parameter elsewhere")
    if isinstance(module, torch.jit.ScriptModule):
        reasons.append("its module is scripted: convert the original module instead")
    if isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
        if module.max_norm is not None:
            reasons.append("max_norm rewrites the table in every forward: set it to None")
        if module.sparse:
            reasons.append("sparse=True gradients cannot flow to a posterior: use sparse=False")
    return reasons


def _site(
    candidate: Candidate, choices: Choices, prior: Prior, read_by_parent: set[nn.Module]
) -> Site:
    module = candidate.module
    # Several places that use one tensor must share its draw, so it has to be drawn.
    can_be_local = (
        choices.family.is_gaussian
        and len(candidate.paths) == 1
        and candidate.name in ("weight", "bias")
        and functional_form(type(module)) is not None
        and module not in read_by_parent
    )
    padding = _padding_row(candidate)
    std = choices.initial_std
    return Site(
        path=candidate.path,
        paths=candidate.paths,
        shape=candidate.shape,
        module=type(module).__name__,
        family=choices.family,
        prior=prior,
        initial_std=_tenth_of_size(candidate.tensor) if std is None else float(std),
        scale_shape=_scale_shape(candidate, "weight" if padding is not None else choices.scale),
        how="local" if choices.how == "local" and can_be_local else "sample",
        can_be_local=can_be_local,
        fixed_row=padding,
        estimator=chosen_estimator(choices.family, prior, choices.estimator).name,
        num_samples=choices.num_samples,
    )


def _tenth_of_size(tensor: torch.Tensor) -> float:
    # Every layer starts at the same signal to noise; in float64, whose squares never overflow.
    norm = torch.linalg.vector_norm(tensor.detach(), dtype=torch.float64)
    return 0.1 * float(norm) / math.sqrt(max(tensor.numel(), 1)) or 1e-3


def _padding_row(candidate: Candidate) -> int | None:
    tables = [m for m, _ in candidate.owners if isinstance(m, (nn.Embedding, nn.EmbeddingBag))]
    return next((m.padding_idx for m in tables if m.padding_idx is not None), None)


def _scale_shape(candidate: Candidate, scale: Scale) -> tuple[int, ...]:
    shape = candidate.shape
    if scale == "weight" or len(shape) < 2:
        return shape
    out_axis = 1 if isinstance(candidate.module, _ConvTransposeNd) else 0
    return tuple(size if axis == out_axis else 1 for axis, size in enumerate(shape))


def _modules_read_by_parent(model: nn.Module) -> set[nn.Module]:
    # Attention never calls its output projection: it reads the weight and multiplies itself.
    return {m.out_proj for m in model.modules() if isinstance(m, nn.MultiheadAttention)}


def site_posterior(site: Site, tensor: nn.Parameter) -> Posterior:
    """Return the posterior a site describes, centred on the tensor's present values."""
    if site.scale_shape == site.shape:
        std = torch.full_like(tensor, site.initial_std)
    else:
        std = tensor.new_full(site.scale_shape, site.initial_std)
    random_index = None
    if site.fixed_row is not None:
        rows = torch.arange(tensor.numel(), device=tensor.device).view(tensor.shape)
        keep = torch.arange(tensor.shape[0], device=tensor.device) != site.fixed_row
        random_index = rows[keep].flatten()
    posterior = Posterior(
        tensor,
        std,
        site.family,
        site.prior,
        random_index=random_index,
        estimator=site.estimator,
        num_samples=site.num_samples,
    )
    posterior.how = site.how
    posterior.can_be_local = site.can_be_local
    return posterior
