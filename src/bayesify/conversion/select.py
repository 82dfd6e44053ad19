"""Where: which tensors of a model may become random.

A selector is a glob over tensor or module names ("encoder.*"), a module type, "last_layer",
"everything", a predicate, or a sequence of those (any one suffices). Norm layers and biases stay
deterministic unless a selector names them outright or `biases` asks for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import is_lazy

Predicate = Callable[[str, nn.Module, Tensor], bool]
Where = str | type[nn.Module] | Predicate | Sequence[Any]

_NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.LocalResponseNorm)


@dataclass(frozen=True)
class Candidate:
    """One parameter of a model, under every name it has."""

    path: str
    owners: tuple[tuple[nn.Module, str], ...]
    paths: tuple[str, ...]
    tensor: nn.Parameter

    @property
    def shape(self) -> tuple[int, ...]:
        """The tensor's shape; empty while a lazy layer has none yet."""
        return () if is_lazy(self.tensor) else tuple(self.tensor.shape)

    @property
    def module(self) -> nn.Module:
        """The module that first registers the tensor."""
        return self.owners[0][0]

    @property
    def name(self) -> str:
        """The tensor's name in that module."""
        return self.owners[0][1]


@dataclass(frozen=True)
class Selection:
    """What a selector chose, and why it left the rest."""

    chosen: tuple[Candidate, ...]
    skipped: tuple[tuple[Candidate, str], ...]


def candidates(model: nn.Module) -> list[Candidate]:
    """Return every parameter once, with all modules and names that share it."""
    owners: dict[int, list[tuple[nn.Module, str]]] = {}
    paths: dict[int, list[str]] = {}
    tensors: dict[int, nn.Parameter] = {}
    for prefix, module in model.named_modules(remove_duplicate=False):
        for name, tensor in module._parameters.items():
            if tensor is None:
                continue
            key = id(tensor)
            tensors[key] = tensor
            paths.setdefault(key, []).append(f"{prefix}.{name}" if prefix else name)
            if (module, name) not in owners.setdefault(key, []):
                owners[key].append((module, name))
    return [
        Candidate(paths[key][0], tuple(owners[key]), tuple(paths[key]), tensor)
        for key, tensor in tensors.items()
    ]


def select(model: nn.Module, where: Where, *, biases: bool = False) -> Selection:
    """Apply a selector to a model.

    Raises:
        ValueError: A selector matches nothing at all, which is almost always a typing mistake.
        TypeError: A selector is of no known kind.
    """
    everything = candidates(model)
    rules = [_rule(entry, model, everything) for entry in _flatten(where)]
    matched = [False] * len(rules)
    chosen: list[Candidate] = []
    skipped: list[tuple[Candidate, str]] = []
    for candidate in everything:
        answers = [rule(candidate) for rule in rules]
        matched = [old or bool(new) for old, new in zip(matched, answers, strict=True)]
        if "outright" in answers:
            chosen.append(candidate)
        elif "kind" not in answers:
            skipped.append((candidate, "not selected"))
        elif reason := reason_to_skip(candidate, biases=biases):
            skipped.append((candidate, reason))
        else:
            chosen.append(candidate)
    for entry, hit in zip(_flatten(where), matched, strict=True):
        if not hit and entry != "everything":
            names = ", ".join(candidate.path for candidate in everything[:8])
            raise ValueError(
                f"where={entry!r} matches no parameter of the model. Its parameters are: {names}"
                + (", ..." if len(everything) > 8 else "")
            )
    return Selection(tuple(chosen), tuple(skipped))


def reason_to_skip(candidate: Candidate, *, biases: bool) -> str | None:
    """Return why a tensor stays deterministic when nobody names it, or None."""
    tensor = candidate.tensor
    if not tensor.requires_grad:
        return "frozen (requires_grad is False)"
    if isinstance(candidate.module, _NORMS):
        return "parameter of a norm layer"
    if not tensor.is_floating_point():
        return f"not a real floating-point tensor ({tensor.dtype})"
    if is_lazy(tensor):
        return None if candidate.name == "weight" else "its shape is not known yet"
    if tensor.numel() == 0:
        return "it has no entries"
    if tensor.ndim < 2 and not (biases and "bias" in candidate.name):
        return "bias or vector (biases=True makes biases Bayesian)"
    return None


def _flatten(where: Where) -> Iterator[Any]:
    if isinstance(where, Sequence) and not isinstance(where, str):
        for entry in where:
            yield from _flatten(entry)
    else:
        yield where


def _rule(
    where: Any, model: nn.Module, everything: list[Candidate]
) -> Callable[[Candidate], str | None]:
    """Return a function that answers "outright", "kind" or None for a candidate."""
    if where == "everything":
        return lambda _: "kind"
    if where == "last_layer":
        last = _last_layer(model, everything)
        return lambda c: "kind" if any(owner is last for owner, _ in c.owners) else None
    if isinstance(where, str):
        return lambda candidate: _match_name(where, candidate)
    if isinstance(where, type) and issubclass(where, nn.Module):
        return lambda c: "kind" if any(isinstance(m, where) for m, _ in c.owners) else None
    if callable(where):
        return lambda c: "outright" if where(c.path, c.module, c.tensor) else None
    raise TypeError(
        "where must be 'everything', 'last_layer', a name pattern, a module type, a predicate "
        f"(path, module, tensor) -> bool, or a sequence of those, got {where!r}"
    )


def _last_layer(model: nn.Module, everything: list[Candidate]) -> nn.Module | None:
    # By module, not by tensor: a head tied to an embedding is last, its weight is not.
    weights = [c for c in everything if reason_to_skip(c, biases=False) is None]
    owners = {owner for candidate in weights for owner, _ in candidate.owners}
    return next((module for module in reversed(list(model.modules())) if module in owners), None)


def _match_name(pattern: str, candidate: Candidate) -> str | None:
    for path in candidate.paths:
        if path == pattern:
            return "outright"
        module_path = path.rpartition(".")[0]
        below = f"{module_path}.".startswith(f"{pattern}.")
        if fnmatchcase(path, pattern) or fnmatchcase(module_path, pattern) or below:
            return "kind"
    return None
