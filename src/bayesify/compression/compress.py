"""Remove the weights a posterior says the network does not need."""

from __future__ import annotations

import copy
import dataclasses
import logging
from typing import TypeVar

from torch import nn

from bayesify.compression.prune import Kept, Rule, Scope, kept_entries
from bayesify.compression.shrink import shrink_
from bayesify.conversion.convert import require_record
from bayesify.conversion.narrow import narrowed
from bayesify.conversion.posterior import posteriors
from bayesify.conversion.sites import posterior_paths, replace_posteriors_

logger = logging.getLogger("bayesify")

Model = TypeVar("Model", bound=nn.Module)


def compress(
    model: Model,
    *,
    by: str = "snr",
    threshold: float | None = None,
    keep: float | None = None,
    scope: Scope = "global",
    like: nn.Module | None = None,
    shrink: bool = True,
    seed: int = 0,
) -> Model:
    """Return a smaller copy of a model; the model itself is left untouched.

    Weights that go are not stored, drawn or trained any more, and `save` writes only what is
    left. Units that nothing feeds or nothing reads are removed where the network's structure
    allows it, which leaves its predictions as they are. Without `threshold`, `keep` or `like` the
    method's own rule decides: |mean| / std below 0.83 for `MeanField` (Graves), log alpha above 3
    for `VariationalDropout` (Molchanov).

    Args:
        model: A model with posteriors, trained.
        by: What weights are ranked by: "snr", |mean| / std; "log_alpha", log(variance / mean²);
            "magnitude", |mean|; or "random", the control.
        threshold: Remove weights with |mean| / std or |mean| up to it, or log alpha from it on.
        keep: Keep this share of the weights there are, those ranked highest; dead units then
            take a few more with them.
        scope: Whether `keep` is a share of the whole network's weights, "global", or of each
            "layer"'s.
        like: Keep as many weights of each layer as this compressed model has: with by="random"
            the matched control.
        shrink: Whether to remove dead units too.
        seed: Decides what by="random" keeps.
    """
    require_record(model)
    rule = Rule(by, threshold, keep, scope, like, seed)
    kept = kept_entries(model, rule)
    twin = copy.deepcopy(model)
    _prune_(twin, dict(zip(posteriors(twin), kept.values(), strict=True)))
    if shrink and (reason := shrink_(twin)):
        logger.info("dead units were kept: %s", reason)
    return twin


def _prune_(model: nn.Module, kept: Kept) -> None:
    smaller = {site: narrowed(site, entries) for site, entries in kept.items()}
    paths = posterior_paths(model)
    changed = {paths[site][0] for site, new in smaller.items() if new.index is not None}
    replace_posteriors_(model, smaller)
    record = require_record(model)
    sites = tuple(
        # Entries that shared a scale have each their own once some are gone.
        dataclasses.replace(site, scale_shape=site.shape) if site.path in changed else site
        for site in record.plan.sites
    )
    record.plan = dataclasses.replace(record.plan, sites=sites)
