"""The contracts of an approximate posterior family and of a prior over one tensor's entries."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from bayesify.distributions.statistic import Exponent, Power, Statistic, Terms
from bayesify.registry import Registry, unknown

Parameters = Mapping[str, Tensor]

Support = Literal["line", "half line", "above a minimum", "simplex"]
"""Where a distribution lives. "half line": the side of 0 that the mean is on; see `Prior`."""


@dataclasses.dataclass(frozen=True)
class Averaged:
    """A quantity averaged over draws, rewritten so that parameters and noise part.

    Attributes:
        of_noise: Functions of the noise; their averages over the draws need no graph.
        assemble: Returns the average of the quantity from the parameters and those averages.
    """

    of_noise: tuple[Callable[[Tensor], Tensor], ...]
    assemble: Callable[[Parameters, Sequence[Tensor]], Tensor]


@dataclasses.dataclass(frozen=True)
class Family(ABC):
    """How the entries of one tensor are distributed, given its unconstrained parameters.

    A family holds no tensors: a posterior keeps them under `parameter_names` and passes them in.
    Every parameter broadcasts against the first one, which has one number per entry.
    """

    name: ClassVar[str]
    parameter_names: ClassVar[tuple[str, ...]]
    support: ClassVar[Support] = "line"
    is_elementwise: ClassVar[bool] = True
    """Whether entries are independent of each other."""
    is_gaussian: ClassVar[bool] = False
    """Whether a sum of entries is Gaussian, which local reparameterisation needs."""
    has_exponential_moments: ClassVar[bool] = False
    """Whether E[exp(t w)] is finite for every t > 0."""

    @abstractmethod
    def initial(self, tensor: Tensor, std: Tensor) -> dict[str, Tensor]:
        """Return parameters centred on a trained tensor with this standard deviation."""

    @abstractmethod
    def deviation(self, parameters: Parameters) -> Tensor:
        """Draw sample − mean by reparameterisation, shaped like the first parameter."""

    @abstractmethod
    def mean(self, parameters: Parameters) -> Tensor:
        """Return the mean of every entry."""

    @abstractmethod
    def variance(self, parameters: Parameters) -> Tensor:
        """Return the variance of every entry; may broadcast."""

    @abstractmethod
    def log_prob(self, parameters: Parameters, value: Tensor) -> Tensor:
        """Return the log density of every entry, or of all where they are not independent."""

    def draw(self, parameters: Parameters) -> Tensor:
        """Draw every entry by reparameterisation, inside the support to the last digit."""
        return self.mean(parameters) + self.deviation(parameters)

    def entropy(self, parameters: Parameters) -> Tensor | None:
        """Return the entropy of all entries together, None where no closed form is known."""
        del parameters
        return None

    def expected(self, statistic: Statistic, parameters: Parameters) -> Tensor | None:
        """Return the exact average of a statistic of every entry, None where none is known."""
        del statistic, parameters
        return None

    def noise(self, parameters: Parameters) -> Tensor:
        """Draw the noise that `averaged` speaks of."""
        raise NotImplementedError(f"the {self.name} family's noise depends on its parameters")

    def averaged(self, statistic: Statistic | None) -> Averaged | None:
        """Return how an average over draws parts into noise and parameters; None if it does not.

        Args:
            statistic: What is averaged; None for the log density of the draws themselves.
        """
        del statistic
        return None

    def has_moment(self, power: float) -> bool:
        """Whether E|w|^power is finite whatever the parameters."""
        return power > -1

    def joined(self, sizes: tuple[int, ...]) -> Family:
        """Return the family of several tensors of these sizes laid end to end."""
        del sizes
        return self


@dataclasses.dataclass(frozen=True)
class Prior(ABC):
    """A prior every entry of one tensor shares.

    A prior of the half line is a prior of a weight's size, |w|: its sign is taken as given, as the
    families of the half line take it from the trained weight.
    """

    name: ClassVar[str]
    support: ClassVar[Support] = "line"
    is_elementwise: ClassVar[bool] = True
    positive: ClassVar[tuple[str, ...]] = ()
    """Fields that must be positive numbers."""

    def terms(self) -> tuple[float, Terms] | None:
        """Return the log density as a constant and weighted statistics, None if it is not one."""
        return None

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density of every entry, or of all where they are not independent."""
        found = self.terms()
        assert found is not None, f"{type(self).__name__} needs terms or a log_prob of its own"
        constant, terms = found
        total = torch.full_like(value, constant)
        for weight, statistic in terms:
            total = total + weight * statistic(value)
        return total

    def moments_needed(self) -> tuple[float, ...]:
        """Return the powers of |w| whose average its log density needs to be finite."""
        found = self.terms()
        if found is None:
            return ()
        return tuple(entry.exponent for _, entry in found[1] if isinstance(entry, Power))

    def needs_exponential_moments(self) -> bool:
        """Whether its log density falls as exp(w)."""
        found = self.terms()
        return found is not None and any(isinstance(entry, Exponent) for _, entry in found[1])

    def is_fit(self) -> bool:
        """Whether its KL is a published fit, which is a closed form and no average over draws."""
        return False

    def problem(self) -> str | None:
        """Return what is wrong with the numbers of this prior, or None."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            is_finite = is_finite_number(value)
            if field.name in self.positive and not (is_finite and value > 0):
                return f"the prior's {field.name} must be positive and finite, got {value!r}"
            if not is_finite:
                return f"the prior's {field.name} must be finite, got {value!r}"
        return None


def is_finite_number(value: object) -> bool:
    """Whether an option of a family or a prior is a number that can be calculated with."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return False
    return math.isfinite(value)


families: Registry[type[Family]] = Registry("family")
priors: Registry[type[Prior]] = Registry("prior")


def as_family(choice: str | Mapping[str, Any] | Family) -> Family:
    """Return a family from its name, from a table of its name and options, or as it is."""
    return _as_record("family", families, Family, choice)


def as_prior(choice: str | Mapping[str, Any] | Prior) -> Prior:
    """Return a prior from its name, from a table of its name and options, or as it is."""
    return _as_record("prior", priors, Prior, choice)


def _as_record(kind: str, known: Registry[Any], contract: type, choice: Any) -> Any:
    if isinstance(choice, contract):
        return choice
    if isinstance(choice, str):
        return known[choice]()
    if not isinstance(choice, Mapping) or not isinstance(choice.get("name"), str):
        raise TypeError(
            f"{kind} must be a name, a table of a name and options, or a {contract.__name__}, "
            f"got {choice!r}; known names: {', '.join(known)}"
        )
    maker = known[choice["name"]]
    options = {key: value for key, value in choice.items() if key != "name"}
    offered = [field.name for field in dataclasses.fields(maker)]
    for option in options:
        if not offered:
            raise TypeError(f"the {kind} {choice['name']!r} takes no options, got {option!r}")
        if option not in offered:
            raise TypeError(unknown(f"option of the {kind} {choice['name']!r}", option, offered))
    return maker(**options)


def describe(record: Family | Prior) -> dict[str, Any]:
    """Return a family or prior as JSON-ready fields with its registered name."""
    return {"name": record.name, **dataclasses.asdict(record)}
