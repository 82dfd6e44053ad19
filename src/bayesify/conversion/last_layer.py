"""The exact mean and variance of a network's outputs over its last layer's weights.

Given what the last linear layer reads, its outputs are linear in its weights: their mean and
variance need no draw. Under a squared error that is all an expectation needs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesify.conversion.layer_class import posterior_of
from bayesify.conversion.posterior import How, Posterior
from bayesify.types import OutputMoments, output_tensor


def last_linear(model: nn.Module) -> nn.Linear:
    """Return the last linear layer of a model, or say why its outputs have no exact moments."""
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    if not layers:
        raise ValueError("last_layer='exact' needs a linear layer at the end, the model has none")
    return layers[-1]


def exact_last_layer(model: nn.Module, forward: Callable[[], Any]) -> OutputMoments:
    """Return the mean and the variance of a forward's outputs over the last layer's weights.

    Args:
        model: A converted model whose output is that of its last linear layer.
        forward: Calls it.
    """
    layer = last_linear(model)
    seen: list[tuple[Tensor, Tensor]] = []

    def look(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        seen.append((output, _variance(cast(nn.Linear, module), inputs[0])))

    own = [site for name in ("weight", "bias") if (site := posterior_of(layer, name)) is not None]
    before: list[How] = [site.how for site in own]
    handle = layer.register_forward_hook(look)
    try:
        for site in own:
            site.how = "mean"
        output = output_tensor(forward())
    finally:
        handle.remove()
        for site, how in zip(own, before, strict=True):
            site.how = how
    if len(seen) != 1:
        raise ValueError(
            f"last_layer='exact' needs a network that calls its last linear layer once, not "
            f"{len(seen)} times; under compile=True calls are not seen: train it uncompiled"
        )
    of_layer, variance = seen[0]
    is_same = of_layer.numel() == output.numel() and (
        of_layer.data_ptr() == output.data_ptr()
        or torch.equal(of_layer.float().flatten(), output.float().flatten())
    )
    if not is_same:
        raise ValueError(
            "last_layer='exact' needs a network whose output is that of its last linear layer, "
            f"{type(model).__name__} changes it afterwards: take last_layer='sample'"
        )
    return OutputMoments(output, variance.view(output.shape))


def _variance(layer: nn.Linear, inputs: Tensor) -> Tensor:
    """Return Σ u² Var(w) + Var(b), in float32 or better."""
    kind = torch.float64 if inputs.dtype == torch.float64 else torch.float32
    spreads = [_spread(posterior_of(layer, name), kind) for name in ("weight", "bias")]
    with torch.autocast(inputs.device.type, enabled=False):
        squares = inputs.to(kind).square()
        if spreads[0] is not None:
            return F.linear(squares, spreads[0], spreads[1])
        zeros = squares.new_zeros(*squares.shape[:-1], layer.out_features)
        return zeros if spreads[1] is None else zeros + spreads[1]


def _spread(posterior: Posterior | None, kind: torch.dtype) -> Tensor | None:
    return None if posterior is None else posterior.dense_variance().to(kind)
