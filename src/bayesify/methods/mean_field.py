"""Mean-field variational inference: every selected weight gets a mean and a scale.

Reference: Graves (2011); Blundell, Cornebise, Kavukcuoglu, Wierstra (2015).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

from bayesify.conversion.method import methods
from bayesify.conversion.plan import Choices, Scale
from bayesify.conversion.select import Where
from bayesify.distributions import Normal, NormalPrior
from bayesify.methods.variational import Variational

Number = float | Callable[[str, tuple[int, ...]], float]
"""A number for every site, or a function of the site's path and shape."""


@methods.register("mean_field")
@dataclass(frozen=True)
class MeanField(Variational):
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

    prior_std: Number = 1.0
    prior_mean: Number = 0.0
    initial_std: float | None = None
    how: Literal["sample", "local"] = "sample"
    where: Where = "everything"
    scale: Scale = "weight"
    biases: bool = False

    def choices(self) -> Choices:
        """Return the Normal family and the Normal prior of each site."""
        return Choices(Normal(), self._prior, self.initial_std, self.how, self.scale)

    def _prior(self, path: str, shape: tuple[int, ...]) -> NormalPrior:
        return NormalPrior(
            mean=_number(self.prior_mean, path, shape), std=_number(self.prior_std, path, shape)
        )


def _number(value: Number, path: str, shape: tuple[int, ...]) -> float:
    return float(value(path, shape) if callable(value) else value)
