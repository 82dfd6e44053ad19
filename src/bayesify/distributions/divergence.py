"""KL(posterior ‖ prior), summed over a tensor's entries, found by the pair of types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from bayesify.distributions.family import Family, Parameters, Prior
from bayesify.registry import TypeRegistry

# Entries take (family, parameters, prior) and return a scalar: a sum over entries, in nats.
divergences: TypeRegistry[Callable[[Any, Parameters, Any], Tensor]] = TypeRegistry("divergence")


def divergence(family: Family, parameters: Parameters, prior: Prior) -> Tensor:
    """Return KL(family(parameters) ‖ prior) in nats, summed over all entries."""
    problem = divergence_problem(family, prior)
    if problem:
        raise ValueError(problem)
    rule = divergences.find(type(family), type(prior))
    assert rule is not None
    return rule(family, parameters, prior)


def divergence_problem(family: Family, prior: Prior) -> str | None:
    """Return why this pair has no divergence, or None."""
    if divergences.find(type(family), type(prior)) is None:
        return f"no KL is known between the {family.name!r} family and the {prior.name!r} prior"
    return prior.problem()
