"""Running statistics of batch norms, measured anew under the posterior.

In training a batch norm sees the activations of a different weight sample in every step, and its
running mean forgets slowly; after pruning, or under a prediction way other than the training one,
they describe another network. A pass over some data measures them for the network as it is now.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from bayesify.batches import as_read, call_model, in_short, split_batch, to_device
from bayesify.conversion.convert import require_record
from bayesify.types import device_of


@torch.no_grad()
def refresh_norms(
    model: nn.Module, data: Iterable[Any], *, by: str | None = None, num_batches: int | None = None
) -> int:
    """Measure every batch norm's running statistics anew and return how many norms there are.

    Args:
        model: A converted model; everything but its batch norms stays in evaluation mode.
        data: A loader of the training data.
        by: The way the model will predict; None takes its default.
        num_batches: Batches to use; None uses all.
    """
    method = require_record(model).method
    way = method.default_way() if by is None else by
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    norms = [norm for norm in norms if norm.track_running_stats]
    modes = [(module, module.training) for module in model.modules()]
    momenta = [norm.momentum for norm in norms]
    device = device_of(model)
    try:
        model.eval()
        with method.sampling(model, way):
            for norm in norms:
                norm.reset_running_stats()
                norm.momentum = None  # a plain average over the batches
                norm.training = True
            for batch in islice(data, num_batches) if norms else ():
                inputs, _ = split_batch(to_device(batch, device))
                call_model(model, as_read(in_short(inputs, model), way))
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
        for module, mode in modes:
            module.training = mode
    return len(norms)
