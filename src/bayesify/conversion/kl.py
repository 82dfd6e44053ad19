"""The KL of a whole model: a walk over its posteriors, never a by-product of forward."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bayesify.conversion.posterior import posteriors
from bayesify.types import device_of


def kl(model: nn.Module) -> Tensor:
    """Return KL(posterior ‖ prior) of a model in nats: a sum over its random weights.

    Tied weights count once. A model without a posterior has KL 0. Divide by the number of
    training examples where the likelihood is a mean over examples; `elbo_loss` does.
    """
    terms = [site.kl() for site in posteriors(model) if site.num_random]
    if not terms:
        return torch.zeros((), device=device_of(model))
    return torch.stack([_whole(term) for term in terms]).sum()


def _whole(term: Tensor) -> Tensor:
    # Under FSDP each rank holds a shard of the weights: the sum over shards is the KL.
    gather = getattr(term, "full_tensor", None)
    return term if gather is None else gather()
