"""Partial Bayesian networks: only the weights that a trained network hangs on become random.

Every weight keeps its mean and trains it; the chosen ones have a scale beside it. Their number is
exact, the others are never drawn, and scales exist, with gradients and optimiser state, for the
chosen ones only: 1 + fraction numbers per weight.

Reference: partial Bayesian networks, after Abboud et al. (2024); the scores and the storage are
not theirs.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from bayesify.conversion.method import Method, methods
from bayesify.conversion.narrow import partly_random, without_scales
from bayesify.conversion.plan import Choices, Plan, Scale
from bayesify.conversion.select import Where, candidates
from bayesify.conversion.sites import named_posteriors, replace_posteriors_
from bayesify.distributions import Family, NormalPrior
from bayesify.distributions.family import as_family
from bayesify.methods.checks import check_choice, check_share
from bayesify.methods.sensitivity import score_tensors, scores
from bayesify.methods.variational import Variational, check_local, ways_of
from bayesify.registry import unknown


@methods.register("partial_bayes")
@dataclass(frozen=True)
class PartialBayes(Variational):
    """A posterior on the most sensitive share of a trained network's weights.

    Args:
        fraction: Share of the weights that become random; 0 is the plain network, 1 is every one.
        score: What is taken for sensitive: "jacobian" (squared derivatives of the outputs),
            "fisher" (squared gradients of the examples' losses), "mean_abs_grad", "grad" (one
            batch, as published), "magnitude" or "random".
        scope: Whether all weights compete ("global"), or those of each tensor ("layer").
        data: A loader of training examples to score by; "magnitude" and "random" need none. `fit`
            from a recipe takes the training data.
        num_batches: How many batches to score by; None for all.
        family: Family of the posterior: a name, a table of its name and options, or a `Family`.
        prior_std: Prior standard deviation of the random weights.
        initial_std: Standard deviation the posterior starts from; None takes a tenth of each
            tensor's root mean square, which keeps a trained network's accuracy.
        how: "sample" draws weights, "local" draws layer outputs.
        where: Which tensors take part (see `bayesify.conversion.select`).
        biases: Whether biases take part too.
        seed: Seed of the scores.
    """

    name: ClassVar[str] = "partial_bayes"
    can_be_sharded: ClassVar[bool] = False
    scale: ClassVar[Scale] = "weight"  # pyright: ignore[reportIncompatibleVariableOverride]

    fraction: float = 0.01
    score: str = "jacobian"
    scope: Literal["global", "layer"] = "global"
    data: Iterable[Any] | None = None
    num_batches: int | None = None
    family: Any = "normal"
    prior_std: float = 1.0
    initial_std: float | None = None
    how: Literal["sample", "local"] = "sample"
    where: Where = "everything"
    biases: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_share("fraction", self.fraction, may_be_zero=True)
        if self.score not in scores:
            raise ValueError(unknown("score", self.score, scores))
        check_choice("scope", self.scope, ("global", "layer"))
        check_local(self.how, self.chosen_family)

    @property
    def chosen_family(self) -> Family:
        """The family itself, whatever way it was named."""
        return as_family(self.family)

    @property
    def ways(self) -> Mapping[str, str]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Ways `predict(by=...)` can go with this family."""
        return ways_of(self.chosen_family)

    def for_data(self, data: Iterable[Any] | None) -> Method:
        """Return the method with data to score by, where it has none of its own."""
        if self.data is not None or not scores[self.score].needs_data:
            return self
        if data is None:
            return dataclasses.replace(self, score="magnitude")
        return dataclasses.replace(self, data=data)

    def choices(self) -> Choices:
        """Return the family and the Normal prior."""
        prior = NormalPrior(std=self.prior_std)
        return Choices(self.chosen_family, lambda *_: prior, self.initial_std, self.how, self.scale)

    def plan(self, model: nn.Module) -> Plan:
        """Select the tensors, and check that there are data to score by."""
        if self.data is None and 0 < self.fraction < 1 and scores[self.score].needs_data:
            raise ValueError(
                f"data must be given to score weights by {self.score!r}: "
                f"PartialBayes({self.fraction}, data=train_loader), or take score='magnitude'"
            )
        return super().plan(model)

    def prepare_(self, model: nn.Module, plan: Plan) -> nn.Module:
        """Score the weights, replace the planned tensors, and keep the scales of the best."""
        found = self._scores(model, plan)  # before anything changes
        model = super().prepare_(model, plan)
        sites = named_posteriors(model)
        if found is None:
            # Read from a file, which knows the chosen ones.
            new = {site: without_scales(site) for site in sites.values()}
        else:
            chosen = self._chosen(found)
            new = {site: partly_random(site, chosen[path]) for path, site in sites.items()}
        replace_posteriors_(model, new)
        return model

    def _scores(self, model: nn.Module, plan: Plan) -> dict[str, Tensor] | None:
        tensors = {candidate.path: candidate.tensor for candidate in candidates(model)}
        wanted = {site.path: tensors[site.path] for site in plan.sites}
        if self.fraction in (0, 1):
            found = {path: torch.ones_like(tensor) for path, tensor in wanted.items()}
        elif self.data is None and scores[self.score].needs_data:
            return None
        else:
            options = {"num_batches": self.num_batches, "seed": self.seed}
            found = score_tensors(model, wanted, self.data, self.score, **options)
        for site in plan.sites:
            if site.fixed_row is not None:
                found[site.path][site.fixed_row] = -math.inf
        return {path: score.detach().flatten() for path, score in found.items()}

    def _chosen(self, found: Mapping[str, Tensor]) -> dict[str, Tensor]:
        if self.scope == "layer":
            return {path: best(score, self.fraction) for path, score in found.items()}
        sizes = [len(score) for score in found.values()]
        together = best(torch.cat([score.double() for score in found.values()]), self.fraction)
        return dict(zip(found, together.split(sizes), strict=True))


def best(score: Tensor, fraction: float) -> Tensor:
    """Return a mask of the share of entries with the largest scores; −inf never is.

    Among equals the first are taken, so that the choice is the same everywhere.
    """
    count = min(round(fraction * len(score)), int((score > -math.inf).sum()))
    chosen = torch.zeros(len(score), dtype=torch.bool, device=score.device)
    chosen[score.argsort(descending=True, stable=True)[:count]] = True
    return chosen
