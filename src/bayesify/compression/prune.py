"""Which entries of a model's posteriors stay: by a threshold, by a share, or as many as elsewhere.

Nothing here changes a model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from bayesify.compression.score import Score, scores
from bayesify.conversion.convert import require_record
from bayesify.conversion.posterior import Posterior, posteriors

Scope = Literal["global", "layer"]
"""Whether entries compete with all others, or with those of their own tensor."""

Kept = Mapping[Posterior, Tensor]
"""For every posterior whether each of its existing entries stays."""


@dataclass(frozen=True)
class Rule:
    """What to keep; see `bayesify.compress`."""

    by: str = "snr"
    threshold: float | None = None
    keep: float | None = None
    scope: Scope = "global"
    like: nn.Module | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        score = scores[self.by]
        given = [name for name in ("threshold", "keep", "like") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"only one of threshold, keep and like can be given, got {given}")
        if self.scope not in get_args(Scope):
            raise ValueError(f"scope must be 'global' or 'layer', got {self.scope!r}")
        for name in ("threshold", "keep"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, (int, float)):
                raise TypeError(f"{name} must be a number, got {value!r}")
        if self.scope == "layer" and self.keep is None:
            raise ValueError("scope='layer' needs keep: it says of what the share is taken")
        if self.keep is not None and not 0.0 <= self.keep <= 1.0:
            raise ValueError(
                f"keep must be the share of weights to keep, in [0, 1], got {self.keep}"
            )
        if self.threshold is not None and (score.cut is None or math.isnan(self.threshold)):
            raise ValueError(
                f"threshold={self.threshold} means nothing for by={self.by!r}: say how much to "
                "keep instead"
            )
        if not given and score.ratio is None:
            raise ValueError(f"by={self.by!r} needs keep, the share of weights to keep, or like")


def kept_entries(model: nn.Module, rule: Rule) -> Kept:
    """Return which entries of every posterior a rule keeps."""
    sites = require_posteriors(model)
    score = scores[rule.by]
    generator = torch.Generator().manual_seed(rule.seed)
    worth = {site: score.worth(site, generator) for site in sites}
    if rule.like is not None:
        counts = _counts_of(rule.like, sites)
        return {site: _largest(worth[site], counts[site]) for site in sites}
    if rule.keep is None:
        cut = _cut(score, rule, model)
        return {site: value > cut for site, value in worth.items()}
    if rule.scope == "layer":
        return {site: _largest(value, _share(rule.keep, value)) for site, value in worth.items()}
    device = next(iter(worth.values())).device
    everywhere = torch.cat([value.to(device) for value in worth.values()])
    stays = _largest(everywhere, _share(rule.keep, everywhere))
    parts = stays.split([value.numel() for value in worth.values()])
    return {
        site: part.to(value.device)
        for (site, value), part in zip(worth.items(), parts, strict=True)
    }


def require_posteriors(model: nn.Module) -> list[Posterior]:
    """Return the posteriors of a model, or say how to get some."""
    sites = posteriors(model)
    if not sites:
        raise TypeError(
            "model has no posterior to prune: convert it with a method such as MeanField or "
            "VariationalDropout first"
        )
    return sites


def _cut(score: Score, rule: Rule, model: nn.Module) -> float:
    assert score.cut is not None
    if rule.threshold is not None:
        return score.cut(rule.threshold)
    assert score.ratio is not None
    return score.cut(score.ratio(require_record(model).method.pruning_ratio))


def _share(keep: float, worth: Tensor) -> int:
    return round(keep * worth.numel())


def _largest(worth: Tensor, count: int) -> Tensor:
    stays = torch.zeros(worth.shape, dtype=torch.bool, device=worth.device)
    stays[worth.topk(count).indices] = True
    return stays


def _counts_of(other: nn.Module, sites: list[Posterior]) -> dict[Posterior, int]:
    theirs = posteriors(other)
    if len(theirs) != len(sites):
        raise ValueError(
            f"like must be a model with the same posteriors: it has {len(theirs)}, model "
            f"{len(sites)}"
        )
    counts = {}
    for number, (site, their) in enumerate(zip(sites, theirs, strict=True)):
        if their.num_live > site.num_live:
            raise ValueError(
                f"like must keep no more entries than there are: posterior {number} has "
                f"{site.num_live}, in like {their.num_live}"
            )
        counts[site] = their.num_live
    return counts
