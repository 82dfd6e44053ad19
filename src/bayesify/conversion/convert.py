"""Make a model Bayesian and back: plan, check everything, only then change it."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from torch import nn

from bayesify.conversion.layer_class import (
    SUFFIX,
    bayesian_class,
    is_bayesian,
    plain_class,
    posterior_of,
)
from bayesify.conversion.method import Method
from bayesify.conversion.plan import Plan, site_posterior
from bayesify.conversion.select import candidates
from bayesify.types import ConversionError

Model = TypeVar("Model", bound=nn.Module)

_ATTRIBUTE = "bayesify"
_ORDER = "_bayesify_parameter_order"


@dataclass
class Record:
    """What a converted model remembers of its making; its `bayesify` attribute.

    It is kept beside the module tree, not in it: a `Sequential` calls every submodule it has.

    Attributes:
        method: The method it was made by.
        plan: Every site and every skip.
        likelihood: What its outputs mean, once `fit` knows (a module: noise may be learned).
        moment_factors: Factors on propagated variances by module, once they have been fitted.
    """

    method: Method
    plan: Plan
    likelihood: nn.Module | None = None
    moment_factors: dict[str, float] | None = None


def convert(model: Model, method: Method) -> Model:
    """Return a Bayesian copy of a model; the model itself is left untouched.

    The copy has the model's own class, call signature, hooks, buffers and ties. With every scale
    at 0, or under `mean_weights`, it gives the model's own outputs.

    Args:
        model: Any PyTorch module.
        method: What to make of it, such as `MeanField(prior_std=1.0)`.

    Raises:
        ConversionError: Something stands in the way; the error lists every problem at once.
    """
    _check_arguments(model, method)
    plan = method.plan(model)
    try:
        twin = copy.deepcopy(model)
    except Exception as error:
        raise ConversionError(
            [("model", f"it cannot be copied ({error}); convert_ converts it in place")]
        ) from error
    return cast(Model, _prepare(twin, method, plan))


def convert_(model: Model, method: Method) -> Model:
    """Make a model Bayesian in place and return it; on an error it is unchanged.

    Use what it returns: a method that needs several networks (`DeepEnsemble`) returns a new module
    of copies instead.
    """
    _check_arguments(model, method)
    return cast(Model, _prepare(model, method, method.plan(model)))


def revert(model: Model) -> Model:
    """Return the plain network of a Bayesian one: its mean weights in the user's own layers.

    An ensemble has no one network: it stays a module of plain `members`.
    """
    twin = copy.deepcopy(model)
    for module in list(twin.modules()):
        if is_bayesian(module):
            _restore(module)
        module.__dict__.pop(_ATTRIBUTE, None)
    return twin


def record_of(model: nn.Module) -> Record | None:
    """Return what a converted model remembers of its making, None for a plain model."""
    record = model.__dict__.get(_ATTRIBUTE)
    return record if isinstance(record, Record) else None


def require_record(model: nn.Module) -> Record:
    """Return a converted model's record, or say how to get one."""
    record = record_of(model)
    if record is None:
        raise TypeError(
            f"model must come from bayesify.convert, got a plain {type(model).__name__}; "
            "use convert(model, Deterministic()) for a network without a posterior"
        )
    return record


def attach_record(model: nn.Module, method: Method, plan: Plan) -> nn.Module:
    """Give a converted model its record and return it."""
    model.__dict__[_ATTRIBUTE] = Record(method, plan)
    return model


def apply_plan_(model: nn.Module, plan: Plan) -> nn.Module:
    """Replace every planned tensor by its posterior, wherever the model uses it."""
    tensors = {candidate.path: candidate for candidate in candidates(model)}
    owners: dict[nn.Module, dict[str, nn.Module]] = {}
    for site in plan.sites:
        candidate = tensors[site.path]
        posterior = site_posterior(site, candidate.tensor)
        for module, name in candidate.owners:
            owners.setdefault(module, {})[name] = posterior
    # Every class is made before any module changes: a user's class may refuse to be subclassed.
    kinds = {
        module: bayesian_class(type(module), tuple(sorted(owners.get(module, {}))), module is model)
        for module in {model: None, **dict.fromkeys(owners)}
    }
    for module, kind in kinds.items():
        _take_over(module, owners.get(module, {}), kind)
    return model


def _take_over(module: nn.Module, sites: dict[str, nn.Module], kind: type[nn.Module]) -> None:
    module.__dict__[_ORDER] = list(module._parameters)
    for name, posterior in sites.items():
        del module._parameters[name]
        module._modules[name + SUFFIX] = posterior
    if sites:
        # A recurrent layer's own list of its plain weights would stay in memory and in copies.
        module.__dict__.pop("_flat_weights", None)
    module.__class__ = kind


def _restore(module: nn.Module) -> None:
    order: list[str] = module.__dict__.pop(_ORDER)
    values: dict[str, Any] = dict(module._parameters)
    for name in order:
        if (posterior := posterior_of(module, name)) is not None:
            values[name] = _plain_parameter(posterior)
            del module._modules[name + SUFFIX]
    module._parameters.clear()
    module._parameters.update({name: values[name] for name in order})
    module.__class__ = plain_class(type(module))
    if isinstance(module, nn.RNNBase):
        module._init_flat_weights()


def _plain_parameter(posterior: Any) -> nn.Parameter:
    # Tied owners share one posterior and must share one parameter again.
    if "_plain" not in posterior.__dict__:
        mean = posterior.dense_mean()
        plain = nn.Parameter(mean.detach().clone(), requires_grad=mean.requires_grad)
        posterior.__dict__["_plain"] = plain
    return posterior.__dict__["_plain"]


def _prepare(model: nn.Module, method: Method, plan: Plan) -> nn.Module:
    return attach_record(method.prepare_(model, plan), method, plan)


def _check_arguments(model: object, method: object) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    if not isinstance(method, Method):
        hint = f"; did you mean {method.__name__}()?" if isinstance(method, type) else ""
        raise TypeError(f"method must be a bayesify method, got {method!r}{hint}")
    if record_of(model) is not None:
        raise ConversionError([("model", "it is converted already: call revert first")])
