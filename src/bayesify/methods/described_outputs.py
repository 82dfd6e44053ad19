"""The expected negative log-likelihood of outputs that a pass describes and does not draw."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from bayesify.conversion.convert import require_record
from bayesify.training.likelihood import Likelihood
from bayesify.types import OutputMoments


def expected_nll(
    model: nn.Module, nll: Callable[..., Tensor], moments: OutputMoments, draw: Callable[[], Tensor]
) -> Tensor:
    """Return what a likelihood expects, in closed form where it has one, else over some draws.

    Args:
        model: The converted model.
        nll: The negative log-likelihood of an output (see `Method.nll`).
        moments: Mean and variance of every output.
        draw: Returns draws of the outputs, one after another along the first axis.
    """
    likelihood = require_record(model).likelihood
    if isinstance(likelihood, Likelihood) and likelihood.takes_moments:
        return nll(moments)
    first, *rest = draw()
    # Every draw is a batch of its own; one is logged for all.
    return torch.stack([nll(first), *(nll(each, is_logged=False) for each in rest)]).mean()
