"""Any posterior family against any prior; the KL exact, or by many draws at the cost of one.

Reference: Nazarovs, Mehta, Lokhande, Singh (2021), "Graph reparameterizations for enabling 1000+
Monte Carlo iterations in Bayesian deep neural networks"; Farquhar, Osborne, Gal (2020), Radial.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

from torch import Tensor, nn

from bayesify.conversion.last_layer import exact_last_layer, last_linear
from bayesify.conversion.method import methods
from bayesify.conversion.plan import Choices, Plan, Scale
from bayesify.conversion.select import Where
from bayesify.distributions import Family, Prior, divergence_problem, estimators
from bayesify.distributions.divergence import AUTO
from bayesify.distributions.family import as_family, as_prior, describe
from bayesify.methods.variational import Variational, check_local, ways_of
from bayesify.registry import unknown

PriorChoice = str | Mapping[str, Any] | Prior | Callable[[str, tuple[int, ...]], Prior]
"""A name, a table of a name and options, a prior, or a function (path, shape) -> prior."""


@methods.register("monte_carlo_kl")
@dataclass(frozen=True)
class MonteCarloKL(Variational):
    """A posterior of any family on every selected weight, against any prior.

    Args:
        family: "normal", "radial", "laplace", ... (see `bayesify.distributions.families`), a table
            such as {"name": "student_t", "degrees": 5}, or a `Family`.
        prior: "normal", "laplace", ..., a table such as {"name": "normal", "std": 0.1}, a `Prior`,
            or a function (path, shape) -> prior.
        estimator: How the KL is found. "closed": exactly. "exact_mc": as the average over
            `num_samples` draws, itself drawn at the cost of two. "repar": the same by that many
            draws, with the graph of one. "streamed": for any pair, with the memory of one.
            "direct": with the graph of all, for comparison. "auto": the first of these there is.
        num_samples: Draws averaged for the KL in every step.
        initial_std: Standard deviation the posterior starts from; None takes a tenth of each
            tensor's root mean square.
        how: "sample" draws weights; "local" draws layer outputs, for Normal posteriors only.
        where: Which tensors become random (see `bayesify.conversion.select`).
        scale: "weight" for one scale per weight, "out" for one per output unit.
        biases: Whether biases become random too.
        last_layer: "sample" draws the last layer like the others; "exact" takes, in regression,
            the mean of the squared error over its weights, which has a closed form.
    """

    name: ClassVar[str] = "monte_carlo_kl"

    family: str | Mapping[str, Any] | Family = "radial"
    prior: PriorChoice = "normal"
    estimator: str = AUTO
    num_samples: int = 1000
    initial_std: float | None = None
    how: Literal["sample", "local"] = "sample"
    where: Where = "everything"
    scale: Scale = "weight"
    biases: bool = False
    last_layer: Literal["sample", "exact"] = "sample"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.last_layer not in ("sample", "exact"):
            raise ValueError(f"last_layer must be 'sample' or 'exact', got {self.last_layer!r}")
        object.__setattr__(self, "family", as_family(self.family))
        # A class is callable too, but makes no prior out of a path and a shape.
        if isinstance(self.prior, type) or not callable(self.prior):
            object.__setattr__(self, "prior", as_prior(cast(Any, self.prior)))
        if self.estimator != AUTO and self.estimator not in estimators:
            raise ValueError(unknown("estimator", str(self.estimator), (AUTO, *estimators)))
        if not isinstance(self.num_samples, int) or isinstance(self.num_samples, bool):
            raise TypeError(f"num_samples must be a whole number, got {self.num_samples!r}")
        if self.num_samples < 1:
            raise ValueError(f"num_samples must be a whole number >= 1, got {self.num_samples}")
        family, prior = self.chosen_family, self.prior
        check_local(self.how, family)
        if isinstance(prior, Prior):
            problem = divergence_problem(family, prior, self.estimator)
            if problem:
                raise ValueError(problem)

    @property
    def chosen_family(self) -> Family:
        """The family itself, whatever way it was named."""
        return as_family(self.family)

    @property
    def ways(self) -> Mapping[str, str]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Ways `predict(by=...)` can go with this family."""
        return ways_of(self.chosen_family)

    def choices(self) -> Choices:
        """Return the family, the prior of each site, and how the KL is found."""
        return Choices(
            self.chosen_family,
            self._prior,
            self.initial_std,
            self.how,
            self.scale,
            self.estimator,
            self.num_samples,
        )

    def _prior(self, path: str, shape: tuple[int, ...]) -> Prior:
        return as_prior(self.prior(path, shape) if callable(self.prior) else self.prior)

    def plan(self, model: nn.Module) -> Plan:
        """Plan the conversion; an exact last layer must be there, and have a variance."""
        if self.last_layer == "exact":
            last_linear(model)
            if not self.chosen_family.has_moment(2.0):
                family = self.chosen_family.name
                raise ValueError(f"last_layer='exact' needs a variance, family={family!r} has none")
        return super().plan(model)

    def nll(
        self, model: nn.Module, forward: Callable[[], Any], nll: Callable[..., Tensor]
    ) -> Tensor:
        """Return the nll of a draw, or its mean over the weights of the last layer."""
        if self.last_layer == "sample":
            return nll(forward())
        return nll(exact_last_layer(model, forward))

    def to_dict(self) -> dict[str, Any]:
        """Return the fields a file can hold, the family and the prior as tables."""
        named = {"family": describe(self.chosen_family)}
        if isinstance(self.prior, Prior):
            named["prior"] = describe(self.prior)
        return {**super().to_dict(), **named}
