"""Run a model on moments instead of a tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from bayesify.moments.moments import Moments
from bayesify.moments.rule_table import Rules, moment_rules


def propagate(model: Callable[..., Any], inputs: Any, rules: Rules = "exact", **kwargs: Any) -> Any:
    """Return what a model gives, with the mean and variance of each output.

    The model's forward runs as it is. A floating-point tensor goes in as a certain value, with no
    variance; `Moments(x, noise)` goes in with the variance of the noise in the input. Integer
    tensors and everything else go in unchanged.

    Args:
        model: A module, or any function of tensors.
        inputs: A tensor or moments; a tuple or list of positional arguments; or a mapping of
            keyword arguments.
        rules: "exact" moments of each operation, the first-order "taylor" ones, or others that
            `moment_rules` names.
        kwargs: Further keyword arguments of the model, such as masks, which go in unchanged.

    Returns:
        `Moments`, or the model's own structure (a tuple, a mapping, a model output) with
        `Moments` in the place of its floating-point tensors.
    """
    if isinstance(inputs, Mapping):
        args, named = (), dict(inputs)
    elif isinstance(inputs, (tuple, list)):
        args, named = tuple(inputs), {}
    else:
        args, named = (inputs,), {}
    args = tuple(_lift(item) for item in args)
    named = {name: _lift(item) for name, item in named.items()}
    with moment_rules(rules):
        return _lift_all(model(*args, **named, **kwargs))


def _lift(value: Any) -> Any:
    """Return a floating-point tensor as certain moments; refuse a negative variance."""
    if isinstance(value, Tensor):
        return Moments(value) if value.is_floating_point() else value
    if isinstance(value, Moments) and not torch.compiler.is_compiling():
        value.check_variance()
    return value


def _lift_all(output: Any) -> Any:
    """Return an output with certain moments for its tensors, its structure kept."""
    if isinstance(output, (Tensor, Moments)):
        return _lift(output) if isinstance(output, Tensor) else output
    if isinstance(output, tuple) and hasattr(output, "_fields"):
        return type(output)(*map(_lift_all, output))
    if type(output) in (tuple, list):
        return type(output)(map(_lift_all, output))
    if isinstance(output, dict):
        # Also a model output, an ordered dictionary whose attributes follow its items.
        for name, value in output.items():
            lifted = _lift_all(value)
            if lifted is not value:
                output[name] = lifted
    return output
