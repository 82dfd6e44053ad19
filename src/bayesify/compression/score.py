"""How much an entry of a posterior is worth keeping, by several rules on one scale each.

|mean| / std and log alpha order entries alike: log alpha = -2 log(|mean| / std). Graves removes
below a ratio of 0.83, Molchanov above a log alpha of 3, which is a ratio of 0.223: compare the
sparsity of two networks at one and the same ratio only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesify.conversion.narrow import existing, signal_to_noise
from bayesify.conversion.posterior import Posterior
from bayesify.registry import Registry


@dataclass(frozen=True)
class Score:
    """A rule for which entries stay.

    Attributes:
        worth: Returns a number for every existing entry; the larger, the more worth keeping.
        cut: Turns the threshold a user gives into that number: what lies at or below it goes.
            None where only a number of entries to keep makes sense.
        ratio: Turns a ratio |mean| / std into a threshold, None where there is no such thing.
    """

    worth: Callable[[Posterior, torch.Generator], Tensor]
    cut: Callable[[float], float] | None = None
    ratio: Callable[[float], float] | None = None


scores: Registry[Score] = Registry("pruning score")


def _snr(posterior: Posterior, generator: torch.Generator) -> Tensor:
    del generator
    return signal_to_noise(posterior)


def _negative_log_alpha(posterior: Posterior, generator: torch.Generator) -> Tensor:
    del generator
    return 2.0 * signal_to_noise(posterior).log()


@torch.no_grad()
def _magnitude(posterior: Posterior, generator: torch.Generator) -> Tensor:
    del generator
    return existing(posterior, posterior.dense_mean()).abs().to(torch.float32)


def _random(posterior: Posterior, generator: torch.Generator) -> Tensor:
    # Drawn on the CPU: the same entries for a seed on every device.
    drawn = torch.rand(posterior.num_live, generator=generator)
    return drawn.to(next(posterior.parameters()).device)


def _as_it_is(value: float) -> float:
    return value


scores.register("snr")(Score(_snr, cut=_as_it_is, ratio=_as_it_is))
scores.register("log_alpha")(
    Score(_negative_log_alpha, cut=lambda value: -value, ratio=lambda r: -2.0 * math.log(r))
)
scores.register("magnitude")(Score(_magnitude, cut=_as_it_is))
scores.register("random")(Score(_random))
