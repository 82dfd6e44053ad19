"""Variational dropout: Gaussian noise on weights under a log-uniform prior, which sparsifies.

Reference: Kingma, Salimans, Welling (2015), multiplicative; Molchanov, Ashukha, Vetrov (2017),
additive.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from bayesify.conversion.method import methods
from bayesify.conversion.plan import Choices, Scale
from bayesify.conversion.select import Where
from bayesify.distributions import LogUniformPrior, MultiplicativeNormal, Normal
from bayesify.distributions.log_uniform import LogUniformKL
from bayesify.methods.variational import Variational


@methods.register("variational_dropout")
@dataclass(frozen=True)
class VariationalDropout(Variational):
    """Normal posterior, log-uniform prior.

    Args:
        noise: "additive" gives every weight a scale of its own (Molchanov); "multiplicative" a
            dropout rate alpha, kept below 1 (Kingma).
        kl: "exact"; or a published fit, "molchanov", or "kingma" for multiplicative noise.
        initial_std: Standard deviation the posterior starts from; None takes a tenth of each
            tensor's root mean square.
        how: "local" draws layer outputs, "sample" draws weights.
        where: Which tensors become random (see `bayesify.conversion.select`).
        scale: "weight" for one scale per weight, "out" for one per output unit.
        biases: Whether biases become random too.
    """

    name: ClassVar[str] = "variational_dropout"
    pruning_ratio: ClassVar[float] = math.exp(-1.5)  # log alpha = 3, a dropout rate of 0.953

    noise: Literal["additive", "multiplicative"] = "additive"
    kl: LogUniformKL = "exact"
    initial_std: float | None = None
    how: Literal["sample", "local"] = "local"
    where: Where = "everything"
    scale: Scale = "weight"
    biases: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.noise not in ("additive", "multiplicative"):
            raise ValueError(f"noise must be 'additive' or 'multiplicative', got {self.noise!r}")
        if problem := LogUniformPrior(self.kl).problem():
            raise ValueError(problem)
        if self.kl == "kingma" and self.noise != "multiplicative":
            raise ValueError(
                "kl='kingma' holds for alpha <= 1 only: it needs noise='multiplicative', got "
                f"noise={self.noise!r}; take kl='exact' or 'molchanov'"
            )

    def choices(self) -> Choices:
        """Return the family of the noise and the log-uniform prior."""
        family = Normal() if self.noise == "additive" else MultiplicativeNormal()
        prior = LogUniformPrior(self.kl)
        return Choices(family, lambda *_: prior, self.initial_std, self.how, self.scale)
