"""The negative ELBO: the only place where a KL is weighed."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from bayesify.conversion.kl import kl as model_kl
from bayesify.types import Loss


def elbo_loss(
    nll: Tensor,
    model: nn.Module,
    *,
    num_data: float,
    beta: float | Tensor = 1.0,
    kl: Tensor | None = None,
) -> Loss:
    """Return nll + beta · KL / num_data, with both parts beside it.

    Args:
        nll: Mean over the batch of the negative log-likelihood of one example. An example's own
            outputs (pixels, tokens, targets) are summed. Where a loss averages over P outputs
            of each example instead, pass num_data = N · P.
        model: The Bayesian model; a plain one has KL 0.
        num_data: Number of training examples N. It has no default: the weight of the KL is
            never guessed.
        beta: Weight of the KL: 1 is the ELBO, less is a tempered ("cold") posterior.
        kl: The model's KL where it is at hand, as from a compiled pass; None computes it.
    """
    if not isinstance(nll, Tensor) or nll.ndim != 0:
        shape = tuple(nll.shape) if isinstance(nll, Tensor) else type(nll).__name__
        raise ValueError(f"nll must be a scalar, the mean over the batch, got {shape}")
    if not (math.isfinite(num_data) and num_data > 0):
        raise ValueError(
            f"num_data must be the number of training examples, a positive number, got {num_data}"
        )
    if not isinstance(beta, Tensor) and not (math.isfinite(beta) and beta >= 0):
        raise ValueError(f"beta must be a finite number >= 0, got {beta}")
    divergence = model_kl(model) if kl is None else kl
    # A weight of 0 must switch the KL off even where it is infinite (a scale of exactly 0).
    weighted = divergence * (beta / num_data) if not _is_zero(beta) else torch.zeros_like(nll)
    return Loss(total=nll + weighted, nll=nll, kl=divergence)


def _is_zero(beta: float | Tensor) -> bool:
    return not isinstance(beta, Tensor) and beta == 0
