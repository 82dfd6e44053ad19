"""A module's own class, with some of its tensors read from posteriors.

The module stays where it is and keeps its class (a subclass of the same name), its hooks, its
buffers and its code. Each Bayesian tensor leaves `_parameters`; a submodule `<name>_posterior`
takes its place and a property `<name>` gives what the posterior says its value is now. The whole
model's class also holds one draw of the weights for the length of a forward.
"""

from __future__ import annotations

from functools import cache, wraps
from typing import Any, cast

from torch import Tensor, nn

from bayesify.conversion.live_rows import by_live_rows, live_rows
from bayesify.conversion.local import (
    FunctionalForm,
    compressed_mean,
    functional_form,
    is_linear,
    local_forward,
)
from bayesify.conversion.posterior import Posterior, posteriors
from bayesify.conversion.scope import hold_draw, not_held, release_draw, remember_draw
from bayesify.conversion.sparse_linear import can_be_compressed

SUFFIX = "_posterior"


@cache
def bayesian_class(base: type[nn.Module], names: tuple[str, ...], is_root: bool) -> type[nn.Module]:
    """Return the subclass of `base` that reads the tensors `names` from posteriors."""
    namespace: dict[str, Any] = {name: _property(name) for name in names}
    form = functional_form(base)
    if "weight" in names and form is not None:
        namespace["forward"] = _local_or_plain(base, form)
    if issubclass(base, nn.RNNBase) and names:
        namespace |= _recurrent()
    kind = _subclass(base, namespace, (base, names, False))
    return _subclass(kind, {"forward": _one_draw(kind)}, (base, names, True)) if is_root else kind


def plain_class(kind: type[nn.Module]) -> type[nn.Module]:
    """Return the user's own class under a class that `bayesian_class` made."""
    recipe = kind.__dict__.get("_bayesify_recipe")
    return recipe[0] if recipe else kind


def is_bayesian(module: nn.Module) -> bool:
    """Whether this module itself, children aside, is of a class that `bayesian_class` made."""
    return "_bayesify_recipe" in vars(type(module))


def posterior_of(module: nn.Module, name: str) -> Posterior | None:
    """Return the posterior of a module's tensor, or None where the tensor is a plain one."""
    return cast("Posterior | None", module._modules.get(name + SUFFIX))


def _subclass(
    base: type[nn.Module], namespace: dict[str, Any], recipe: tuple[type, tuple[str, ...], bool]
) -> type[nn.Module]:
    def reduce(self: nn.Module, protocol: Any) -> tuple[Any, ...]:
        _, _, *rest = object.__reduce_ex__(self, protocol)
        return (_new, recipe, *rest)

    described = {
        "__module__": base.__module__,
        "__qualname__": base.__qualname__,
        "__doc__": base.__doc__,
        "__reduce_ex__": reduce,
        "_bayesify_recipe": recipe,
    }
    return type(base.__name__, (base,), {**namespace, **described})


def _new(base: type[nn.Module], names: tuple[str, ...], is_root: bool) -> nn.Module:
    kind = bayesian_class(base, names, is_root)
    return kind.__new__(kind)


def _property(name: str) -> property:
    def read(self: nn.Module) -> Tensor:
        return cast(Posterior, self._modules[name + SUFFIX]).value()

    return property(read, doc=f"The current value of the posterior of {name!r}.")


def _local_or_plain(base: type[nn.Module], form: FunctionalForm) -> Any:
    @wraps(base.forward)
    def forward(self: nn.Module, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        weight = cast(Posterior, self._modules["weight" + SUFFIX])
        is_tensor = weight.way() in ("sample", "mean") or weight.num_random == 0
        rows = live_rows(self, weight, input) if is_tensor else None
        if rows is not None:
            part = weight.value().index_select(0, rows)
            bias = cast("Tensor | None", getattr(self, "bias", None))
            return by_live_rows(self, rows, bias, lambda bias: form(self, input, part, bias))
        is_plain = weight.way() == "mean" or weight.num_random == 0
        if is_plain and is_linear(form) and can_be_compressed(weight, input):
            bias = cast("Tensor | None", getattr(self, "bias", None))
            return compressed_mean(weight, bias, input)
        if weight.way() != "local" or weight.num_random == 0:
            return base.forward(self, input, *args, **kwargs)
        bias = posterior_of(self, "bias")
        if bias is None or bias.way() != "local":
            # Also a bias that another layer shares, which has to be one draw for both.
            bias = cast("Tensor | None", getattr(self, "bias", None))
        return local_forward(form, self, weight, bias, input, *args, **kwargs)

    return forward


def _one_draw(base: type[nn.Module]) -> Any:
    @wraps(base.forward)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        sites = posteriors(self)
        entered = not_held(sites)
        try:
            hold_draw(entered)
            output = base.forward(self, *args, **kwargs)
            remember_draw(sites, entered, output)
            return output
        finally:
            release_draw(entered)

    return forward


def _recurrent() -> dict[str, Any]:
    # Recurrent layers keep a list of their weights: it must follow the draw, and there is no
    # longer one block of memory to flatten them into.
    def read(self: nn.RNNBase) -> list[Tensor]:
        return [getattr(self, name) for name in self._flat_weights_names]

    def ignore(self: nn.RNNBase, value: Any = None) -> None:
        del self, value

    return {"_flat_weights": property(read, ignore), "flatten_parameters": ignore}
