"""What every method with a posterior over weights shares: its plan, its conversion, its ways."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import ClassVar, Literal, cast

from torch import nn

from bayesify.conversion.convert import apply_plan_, require_record
from bayesify.conversion.method import Method
from bayesify.conversion.narrow import num_above
from bayesify.conversion.plan import Choices, Plan, Scale, make_plan
from bayesify.conversion.posterior import How
from bayesify.conversion.scope import forward_by
from bayesify.conversion.select import Where, select
from bayesify.conversion.sites import named_posteriors
from bayesify.distributions import Family


def ways_of(family: Family) -> dict[str, str]:
    """Return the ways to predict with a posterior of a family.

    Outputs can be drawn, and a linearised network is Normal, for Normal posteriors only; moments
    and covariances need a variance.
    """
    barred = set() if family.is_gaussian else {"local", "linearised"}
    barred |= set() if family.has_moment(2.0) else {"moments", "covariance"}
    return {way: words for way, words in Variational.ways.items() if way not in barred}


def check_local(how: str, family: Family) -> None:
    """Raise a ValueError where outputs are to be drawn that have no known law."""
    if how == "local" and not family.is_gaussian:
        raise ValueError(
            f"how='local' needs a Normal posterior, got family={family.name!r}: a sum of its "
            "weights has no known law; take how='sample'"
        )


class Variational(Method):
    """A method that gives selected weights a posterior and draws from it.

    A final method is a frozen dataclass with the fields below and whatever its `choices` need.
    """

    ways: ClassVar[Mapping[str, str]] = {
        "sample": "weight samples",
        "local": "output samples (local reparameterisation)",
        "mean": "mean weights",
        "moments": "one pass of means and variances",
        "linearised": "the linearised network",
        "covariance": "one pass of means and variances, and its derivatives",
    }

    initial_std: float | None
    how: Literal["sample", "local"]
    where: Where
    scale: Scale
    biases: bool

    def __post_init__(self) -> None:
        if self.how not in ("sample", "local"):
            raise ValueError(f"how must be 'sample' or 'local', got {self.how!r}")
        if self.scale not in ("weight", "out"):
            raise ValueError(f"scale must be 'weight' or 'out', got {self.scale!r}")
        std = self.initial_std
        if std is not None and not (math.isfinite(std) and std > 0):
            raise ValueError(f"initial_std must be positive and finite, got {std}")

    @abstractmethod
    def choices(self) -> Choices:
        """Return the family, the prior and the start of every site."""

    def plan(self, model: nn.Module) -> Plan:
        """Select the tensors and check that each can take a posterior."""
        return make_plan(model, select(model, self.where, biases=self.biases), self.choices())

    def prepare_(self, model: nn.Module, plan: Plan) -> nn.Module:
        """Replace the planned tensors by posteriors."""
        return apply_plan_(model, plan)

    def default_way(self) -> str:
        """Predict the way the model was trained."""
        return self.how

    def watch(self, model: nn.Module) -> dict[str, float]:
        """Return the share of weights that are mostly noise or gone: of all, and of each site."""
        sites = named_posteriors(model)
        live = {path: num_above(site, self.pruning_ratio) for path, site in sites.items()}
        planned = {site.path: site.original_shape for site in require_record(model).plan.sites}
        total = {path: math.prod(planned.get(path) or site.shape) for path, site in sites.items()}
        shares = {f"sparsity/{path}": 1.0 - live[path] / total[path] for path in sites}
        return {"sparsity": 1.0 - sum(live.values()) / sum(total.values()), **shares}

    @contextmanager
    def sampling(self, model: nn.Module, by: str) -> Iterator[None]:
        """Draw weights, draw outputs, or use the mean weights."""
        # A network is linearised at its mean weights, and a covariance is of its moments.
        how = {"linearised": "mean", "covariance": "moments"}.get(by, by)
        with forward_by(model, cast(How, how)):
            yield
