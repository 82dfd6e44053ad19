"""Mean-field variational inference: every selected weight gets a mean and a scale.

Reference: Graves (2011); Blundell, Cornebise, Kavukcuoglu, Wierstra (2015).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, Literal, cast

from torch import nn

from bayesify.conversion.convert import apply_plan_
from bayesify.conversion.method import Method, methods
from bayesify.conversion.plan import Choices, Plan, Scale, make_plan
from bayesify.conversion.posterior import How
from bayesify.conversion.scope import forward_by
from bayesify.conversion.select import Where, select
from bayesify.distributions import Normal, NormalPrior

Number = float | Callable[[str, tuple[int, ...]], float]
"""A number for every site, or a function of the site's path and shape."""


@methods.register("mean_field")
@dataclass(frozen=True)
class MeanField(Method):
    """Independent Normal posterior on every selected weight, Normal prior, closed KL.

    Args:
        prior_std: Prior standard deviation, or a function (path, shape) -> std.
        prior_mean: Prior mean, or a function (path, shape) -> mean.
        initial_std: Standard deviation the posterior starts from; None takes a tenth of each
            tensor's root mean square, which keeps a trained network's accuracy.
        how: "sample" draws weights; "local" draws layer outputs (local reparameterisation), with
            less gradient noise and, outside large convolutions, at a similar cost.
        where: Which tensors become random (see `bayesify.conversion.select`).
        scale: "weight" for one scale per weight, "out" for one per output unit.
        biases: Whether biases become random too.
    """

    name: ClassVar[str] = "mean_field"
    ways: ClassVar[Mapping[str, str]] = {
        "sample": "weight samples",
        "local": "output samples (local reparameterisation)",
        "mean": "mean weights",
    }

    prior_std: Number = 1.0
    prior_mean: Number = 0.0
    initial_std: float | None = None
    how: Literal["sample", "local"] = "sample"
    where: Where = "everything"
    scale: Scale = "weight"
    biases: bool = False

    def __post_init__(self) -> None:
        if self.how not in ("sample", "local"):
            raise ValueError(f"how must be 'sample' or 'local', got {self.how!r}")
        if self.scale not in ("weight", "out"):
            raise ValueError(f"scale must be 'weight' or 'out', got {self.scale!r}")
        std = self.initial_std
        if std is not None and not (math.isfinite(std) and std > 0):
            raise ValueError(f"initial_std must be positive and finite, got {std}")

    def plan(self, model: nn.Module) -> Plan:
        """Select the tensors and check that each can take a posterior."""
        selection = select(model, self.where, biases=self.biases)
        choices = Choices(Normal(), self._prior, self.initial_std, self.how, self.scale)
        return make_plan(model, selection, choices)

    def prepare_(self, model: nn.Module, plan: Plan) -> nn.Module:
        """Replace the planned tensors by posteriors."""
        return apply_plan_(model, plan)

    def default_way(self) -> str:
        """Predict the way the model was trained."""
        return self.how

    @contextmanager
    def sampling(self, model: nn.Module, by: str) -> Iterator[None]:
        """Draw weights, draw outputs, or use the mean weights."""
        with forward_by(model, cast(How, by)):
            yield

    def _prior(self, path: str, shape: tuple[int, ...]) -> NormalPrior:
        return NormalPrior(
            mean=_number(self.prior_mean, path, shape), std=_number(self.prior_std, path, shape)
        )


def _number(value: Number, path: str, shape: tuple[int, ...]) -> float:
    return float(value(path, shape) if callable(value) else value)
