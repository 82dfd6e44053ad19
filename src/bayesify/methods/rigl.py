"""Sparse training without a posterior: the moving subspace of `SparseSubspace` at zero scale.

A baseline: what the sparse network does without its scales. No KL, one prediction.

Reference: Evci, Gale, Menick, Castro, Elsen (2020), "Rigging the lottery: making all tickets
winners".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from bayesify.conversion.method import methods
from bayesify.methods.sparse_subspace import SparseSubspace


@methods.register("rigl")
@dataclass(frozen=True)
class RigL(SparseSubspace):
    """A fixed number of deterministic weights, which are chosen anew while it trains.

    The arguments are those of `SparseSubspace`; what is about scales has no effect.
    """

    name: ClassVar[str] = "rigl"
    is_random: ClassVar[bool] = False
    ways: ClassVar[Mapping[str, str]] = {"mean": "the sparse network"}

    removal: str = "magnitude"

    def default_way(self) -> str:
        """Return the only way there is."""
        return "mean"

    def num_draws(self, model: nn.Module, requested: int) -> int:
        """Return 1: every draw would be the same."""
        del model, requested
        return 1
