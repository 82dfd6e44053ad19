"""The error for an operation that moments cannot go through, which says where it happened."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import nn

_CALL = nn.Module._call_impl.__code__
_COMPARISONS = {"lt", "le", "gt", "ge", "eq", "ne", "__bool__", "item", "isnan", "isinf"}


class MissingRuleError(NotImplementedError):
    """No rule says what an operation does to a mean and a variance.

    Attributes:
        operation: The operation, such as "torch.cumprod" or "Tensor.tolist".
        module: Path and class of the innermost module that was being called, or "".
    """

    operation: str = ""
    module: str = ""


def missing_rule(operation: str) -> MissingRuleError:
    """Return the error for an operation, which looks for the module that is being called."""
    module = _calling_module()
    where = f" in the module {module}" if module else ""
    if operation.rpartition(".")[2] in _COMPARISONS:
        advice = "a value that is not certain cannot decide anything; use its `.mean` for that"
    else:
        advice = (
            "write one with `@rule(...)` from bayesify.moments, or call the operation on "
            "`.mean` where its variance does not matter"
        )
    error = MissingRuleError(f"there is no moment rule for {operation}{where}: {advice}")
    error.operation, error.module = operation, module
    return error


def name_of(function: Any) -> str:
    """Return the name people know a torch function by: "F.unfold", "torch.cumprod"."""
    if isinstance(function, str):
        return function
    name = getattr(function, "__name__", str(function))
    homes = (("Tensor", torch.Tensor), ("F", nn.functional), ("torch", torch))
    for home, namespace in homes:
        if getattr(namespace, name, None) is function:
            return f"{home}.{name}"
    return name


def _calling_module() -> str:
    """Return "path (Class)" of the innermost module on the call stack.

    Modules put themselves on the stack, so no hook has to follow them through every forward.
    """
    if torch.compiler.is_compiling():
        return ""
    modules: list[nn.Module] = []
    frame = sys._getframe()
    while frame is not None:
        code = frame.f_code
        # What calls a module's forward. Other functions may be given modules, and train them.
        if code is _CALL:
            modules.append(frame.f_locals["self"])
        frame = frame.f_back
    if not modules:
        return ""
    innermost = modules[0]
    name = type(innermost).__name__
    # The outermost that has it: what wraps a model need not know it as a part.
    for module in reversed(modules):
        for path, each in module.named_modules():
            if each is innermost:
                return f"{path or 'the model itself'} ({name})"
    return name
