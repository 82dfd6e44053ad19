"""The plain network, as a baseline: no posterior, one prediction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from bayesify.conversion.method import Method, methods
from bayesify.conversion.plan import Plan


@methods.register("deterministic")
@dataclass(frozen=True)
class Deterministic(Method):
    """Train and predict with the network as it is."""

    name: ClassVar[str] = "deterministic"
    ways: ClassVar[Mapping[str, str]] = {"mean": "the plain network"}

    def plan(self, model: nn.Module) -> Plan:
        """Plan nothing."""
        del model
        return Plan()

    def prepare_(self, model: nn.Module, plan: Plan) -> nn.Module:
        """Return the model as it is."""
        del plan
        return model

    def num_draws(self, model: nn.Module, requested: int) -> int:
        """Return 1: every draw would be the same."""
        del model, requested
        return 1
