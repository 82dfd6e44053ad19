"""How a KL is found: exactly, or as an average over draws. One registry of rules for each way.

A rule is filed under a pair of types, family and prior; rules for every pair that meets a condition
are filed under base classes and say themselves where they do not hold.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from bayesify.distributions.family import Family, Parameters, Prior
from bayesify.registry import Registry, TypeRegistry

Compute = Callable[[Any, Parameters, Any, int], Tensor]
"""compute(family, parameters, prior, num_samples): the KL in nats, summed over entries."""


@dataclass(frozen=True)
class Rule:
    """How one way finds the KL of some pairs.

    Attributes:
        compute: What finds it.
        problem: Says why it cannot, for this family and this prior, or None.
    """

    compute: Compute
    problem: Callable[[Any, Any], str | None] | None = None


class Estimator:
    """One way to find a KL.

    Args:
        name: What people call it.
        needs_samples: Whether its cost or its noise depends on a number of samples.
    """

    def __init__(self, name: str, *, needs_samples: bool) -> None:
        self.name = name
        self.needs_samples = needs_samples
        self._rules: TypeRegistry[Rule] = TypeRegistry(f"{name} rule")

    def register(
        self,
        family: type[Family],
        prior: type[Prior],
        problem: Callable[[Any, Any], str | None] | None = None,
    ) -> Callable[[Any], Any]:
        """Return a decorator that files a function for a pair of types.

        Args:
            family: Type of the posterior family.
            prior: Type of the prior.
            problem: Says for which of these pairs the function does not hold.
        """
        add = self._rules.register(family, prior)

        def keep(compute: Any) -> Any:
            add(Rule(compute, problem))
            return compute

        return keep

    def problem(self, family: Family, prior: Prior) -> str | None:
        """Return why this way cannot find the KL of a pair, or None."""
        rule = self._rules.find(type(family), type(prior))
        if rule is None:
            return (
                f"no {self.name!r} KL is known between the {family.name!r} family and the "
                f"{prior.name!r} prior"
            )
        return rule.problem(family, prior) if rule.problem else None

    def __call__(
        self, family: Family, parameters: Parameters, prior: Prior, num_samples: int
    ) -> Tensor:
        """Return KL(family(parameters) ‖ prior) in nats, summed over all entries."""
        rule = self._rules.find(type(family), type(prior))
        assert rule is not None
        return rule.compute(family, parameters, prior, num_samples)


estimators: Registry[Estimator] = Registry("estimator")

closed = estimators.register("closed")(Estimator("closed", needs_samples=False))
"""The exact value."""
exact_mc = estimators.register("exact_mc")(Estimator("exact_mc", needs_samples=True))
"""The average over M draws, itself drawn from its exact law at the cost of two draws."""
repar = estimators.register("repar")(Estimator("repar", needs_samples=True))
"""The average over M draws, rewritten in sums of the noise alone: the graph of one draw."""
streamed = estimators.register("streamed")(Estimator("streamed", needs_samples=True))
"""The average over M draws, each one's gradient taken before the next: the memory of one draw."""
direct = estimators.register("direct")(Estimator("direct", needs_samples=True))
"""The average over M draws with the graph of all of them: for comparison only."""

BEST_FIRST = (closed, exact_mc, repar, streamed)
"""What "auto" tries, in order."""
