"""The contracts of an approximate posterior family and of a prior over one tensor's entries."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from bayesify.registry import Registry

Parameters = Mapping[str, Tensor]


@dataclasses.dataclass(frozen=True)
class Family(ABC):
    """How the entries of one tensor are distributed, given its unconstrained parameters.

    A family holds no tensors: a posterior keeps them under `parameter_names` and passes them in.
    Every parameter broadcasts against the first one, which has one number per entry.
    """

    name: ClassVar[str]
    parameter_names: ClassVar[tuple[str, ...]]
    is_elementwise: ClassVar[bool] = True
    """Whether entries are independent, so that several tensors can be treated as one."""
    is_gaussian: ClassVar[bool] = False
    """Whether a sum of entries is Gaussian, which local reparameterisation needs."""

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
        """Return the log density of every entry."""


@dataclasses.dataclass(frozen=True)
class Prior(ABC):
    """A prior every entry of one tensor shares."""

    name: ClassVar[str]

    @abstractmethod
    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density of every entry."""

    @abstractmethod
    def problem(self) -> str | None:
        """Return what is wrong with the numbers of this prior, or None."""


families: Registry[type[Family]] = Registry("family")
priors: Registry[type[Prior]] = Registry("prior")


def describe(record: Family | Prior) -> dict[str, Any]:
    """Return a family or prior as JSON-ready fields with its registered name."""
    return {"name": record.name, **dataclasses.asdict(record)}


def rebuild_family(fields: Mapping[str, Any]) -> Family:
    """Return the family that `describe` wrote."""
    return families[fields["name"]](**{k: v for k, v in fields.items() if k != "name"})


def rebuild_prior(fields: Mapping[str, Any]) -> Prior:
    """Return the prior that `describe` wrote."""
    return priors[fields["name"]](**{k: v for k, v in fields.items() if k != "name"})
