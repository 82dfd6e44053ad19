"""The tables of rules, and the choice between them.

Rules are filed under the torch function they answer, or under a name such as "Tensor.view" where
the function is a method. The choice of a table is a plain attribute: the compiler guards it, and
makes a new graph when it changes; it traces no `ContextVar`, and does not guard a thread's own
variables.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, Literal, get_args

import torch

from bayesify.moments.missing_rule import missing_rule, name_of

Rules = Literal["exact", "taylor", "shared", "pooled"]
RULES: tuple[Rules, ...] = get_args(Rules)
Rule = Callable[..., Any]

TABLES: dict[str, dict[Any, Rule]] = {rules: {} for rules in RULES}


class _Chosen:
    """Which of the tables is read; one choice for the whole process."""

    rules: Rules = "exact"


_chosen = _Chosen()


def find_rule(function: Any) -> Rule | None:
    """Return the rule for a torch function under the current choice of rules, or None."""
    key = table_key(function)
    found = TABLES[_chosen.rules].get(key)
    return TABLES["exact"].get(key) if found is None else found


def dispatch(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Answer a torch function, or the method of a tensor named "Tensor.view", by its rule."""
    implementation = find_rule(function)
    if implementation is None:
        raise missing_rule(name_of(function))
    return implementation(*args, **kwargs)


class moment_rules:  # noqa: N801 (used as a verb: `with moment_rules("taylor"):`)
    """Choose the rules of a block.

    The choice holds for the whole process, all threads included.

    Args:
        rules: "exact" moments of each operation; the first-order "taylor" ones of the papers;
            "shared", exact ones that also carry what all positions of an image share; or "pooled",
            exact ones but that a layer sees the variances of its inputs as one sum, at little
            more than the cost of the plain network.
    """

    def __init__(self, rules: Rules) -> None:
        if rules not in TABLES:
            *most, last = (repr(each) for each in RULES)
            raise ValueError(f"rules must be {', '.join(most)} or {last}, got {rules!r}")
        self.rules: Rules = rules
        self.before: Rules = rules

    def __enter__(self) -> None:
        self.before = _chosen.rules
        _chosen.rules = self.rules

    def __exit__(self, *exception: object) -> None:
        _chosen.rules = self.before


def current_rules() -> Rules:
    """Return which rules are chosen now."""
    return _chosen.rules


def registered_functions() -> list[Any]:
    """Return every torch function that has a rule."""
    return [function for function in TABLES["exact"] if not isinstance(function, str)]


def _tensor_methods() -> dict[Any, list[str]]:
    """Return the names under which torch.Tensor has each of its methods."""
    methods: dict[Any, list[str]] = {}
    for name in dir(torch.Tensor):
        function = getattr(torch.Tensor, name, None)
        if callable(function):
            methods.setdefault(function, []).append(name)
    return methods


def table_key(function: Any) -> Any:
    """Return what a function is filed under: itself, or the name of a method.

    Methods that torch wrote in Python go by name, as the compiler misses them in a table.
    """
    name = getattr(function, "__name__", "")
    if name in _PYTHON_METHODS and getattr(torch.Tensor, name) is function:
        return f"Tensor.{name}"
    return function


TENSOR_METHODS = _tensor_methods()
_PYTHON_METHODS = {
    name
    for function, names in TENSOR_METHODS.items()
    for name in names
    if isinstance(function, FunctionType) and function.__name__ == name
}
