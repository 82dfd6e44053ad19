"""Noise that a short number format rounds away before it does anything."""

from __future__ import annotations

import warnings

import torch
from torch import nn

from bayesify.archive import whole
from bayesify.conversion.layer_class import SUFFIX
from bayesify.conversion.posterior import Posterior

# bfloat16 keeps 8 bits: what is smaller than this share of a weight changes no bit of it.
_RESOLUTION = 2.0**-8
_SUBSTANTIAL_SHARE = 0.5


def warn_of_rounded_noise(model: nn.Module) -> bool:
    """Warn when sampled weights move by less than bfloat16 can show; return whether it did."""
    rounded = [
        name.removesuffix(SUFFIX)
        for name, site in model.named_modules()
        if isinstance(site, Posterior) and rounded_share(site) > _SUBSTANTIAL_SHARE
    ]
    if rounded:
        more = f" and {len(rounded) - 3} more" if len(rounded) > 3 else ""
        warnings.warn(
            f"in bfloat16 the noise of {', '.join(rounded[:3])}{more} rounds away: for most of its "
            "weights std/|mean| is below 2^-8, so samples equal the mean. Use how='local', whose "
            "noise is float32, or precision='32-true'",
            stacklevel=2,
        )
    return bool(rounded)


@torch.no_grad()
def rounded_share(site: Posterior) -> float:
    """Return the share of a sampled site's random entries whose noise bfloat16 cannot show."""
    if site.how != "sample" or site.num_random == 0:
        return 0.0
    parameters = site.random_parameters()
    std = site.family.variance(parameters).sqrt()
    is_rounded = std < _RESOLUTION * site.family.mean(parameters).float().abs()
    return float(whole(is_rounded.float().mean()))
