"""Check the options of something named in a recipe against its own signature.

A recipe is text: a misspelt name or a word where a number belongs should be answered by a sentence
that names the option, before anything is built.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Literal, Union

from bayesify.registry import unknown

# Where the data files are is a fact about the machine, not a choice of the data set.
_NOT_OPTIONS = ("root", "self")

_WORDS: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
}


def options_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return every option of a function or class and its default; `inspect` marks the required."""
    parameters = inspect.signature(function).parameters
    return {name: entry.default for name, entry in parameters.items() if name not in _NOT_OPTIONS}


def check_options(
    owner: str, function: Callable[..., Any], options: Mapping[str, Any], also: Iterable[str] = ()
) -> None:
    """Raise unless every option exists and is of a type the function takes.

    Args:
        owner: Whose options they are, as it should read in an error: "model 'mlp'".
        function: What will be called with them.
        options: The options, without its name.
        also: Keys that stand beside the options and belong to the recipe itself; they are offered
            as corrections too.

    Raises:
        TypeError: An option is unknown, or its value of another type.
    """
    known = options_of(function)
    hints = _type_hints(function)
    for name, value in options.items():
        if name not in known:
            raise TypeError(unknown(f"{owner} option", name, [*known, *also]))
        if name in hints and not _fits(value, hints[name]):
            raise TypeError(f"{name} of {owner} must be {_in_words(hints[name])}, got {value!r}")


def _type_hints(function: Callable[..., Any]) -> dict[str, Any]:
    source = function.__init__ if inspect.isclass(function) else function
    try:
        return typing.get_type_hints(source)
    except (NameError, TypeError):
        return {}  # names known to a type checker only: the function checks for itself


def _fits(value: Any, hint: Any) -> bool:
    if hint is Any:
        return True
    origin = typing.get_origin(hint)
    if origin in (Union, types.UnionType):
        return any(_fits(value, entry) for entry in typing.get_args(hint))
    if origin is Literal:
        return value in typing.get_args(hint)
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    kind = origin or hint
    if not isinstance(kind, type):
        return True
    if issubclass(kind, Mapping):
        return isinstance(value, Mapping)
    if issubclass(kind, Collection) and kind is not str:
        return isinstance(value, (list, tuple, dict)) and not isinstance(value, str)
    return isinstance(value, kind)


def _in_words(hint: Any) -> str:
    if typing.get_origin(hint) in (Union, types.UnionType):
        words = [_in_words(entry) for entry in typing.get_args(hint) if entry is not type(None)]
        # Only Python can pass objects and functions: a recipe's reader need not hear of them.
        sayable = [word for word in dict.fromkeys(words) if word] or words
        return " or ".join(sayable)
    if typing.get_origin(hint) is Literal:
        return " or ".join(repr(entry) for entry in typing.get_args(hint))
    kind = typing.get_origin(hint) or hint
    if isinstance(kind, type) and issubclass(kind, Mapping):
        return "a table"
    if isinstance(kind, type) and issubclass(kind, Collection) and kind is not str:
        return "a list"
    return _WORDS.get(hint, "")
