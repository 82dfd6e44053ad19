"""The exact mean and variance of a network's outputs over its last layer's weights.

Given what the last linear layer reads, its outputs are linear in its weights: their mean and
variance need no draw. Under a squared error that is all an expectation needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesify.batches import output_tensor
from bayesify.conversion.layer_class import posterior_of
from bayesify.conversion.posterior import How, Posterior
from bayesify.types import OutputMoments


def last_linear(model: nn.Module) -> nn.Linear:
    """Return the last linear layer of a model, or say why its outputs have no exact moments."""
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    if not layers:
        raise ValueError("last_layer='exact' needs a linear layer at the end, the model has none")
    last = layers[-1]
    own = last._parameters.get("weight")
    if own is not None and any(own is each for each in _of_others(model, last)):
        raise ValueError(
            "last_layer='exact' needs a last linear layer with weights of its own, these are also "
            "used elsewhere in the model: take last_layer='sample'"
        )
    return last


def _of_others(model: nn.Module, layer: nn.Module) -> Iterator[nn.Parameter | None]:
    for module in model.modules():
        if module is not layer:
            yield from module._parameters.values()


def exact_last_layer(model: nn.Module, forward: Callable[[], Any]) -> OutputMoments:
    """Return the mean and the variance of a forward's outputs over the last layer's weights.

    Args:
        model: A converted model whose output is that of its last linear layer.
        forward: Calls it.
    """
    layer = last_linear(model)
    seen: list[tuple[Tensor, Tensor]] = []

    def look(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        # A copy: the network may write into what it was given.
        seen.append((output.detach().clone(), _variance(cast(nn.Linear, module), inputs[0])))

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
            f"{len(seen)} times; the last is the one it defines last; under compile=True calls "
            "are not seen: train it uncompiled"
        )
    of_layer, variance = seen[0]
    if not _is_same(of_layer, output):
        raise ValueError(
            "last_layer='exact' needs a network whose output is that of its last linear layer, "
            f"{type(model).__name__} changes it afterwards: take last_layer='sample'"
        )
    return OutputMoments(output, variance.view(output.shape))


def _is_same(first: Tensor, second: Tensor) -> bool:
    """Whether two tensors hold the same numbers, NaN too, in the same order."""
    if first.numel() != second.numel():
        return False
    pair = (each.detach().flatten().float() for each in (first, second))
    return torch.allclose(*pair, rtol=0.0, atol=0.0, equal_nan=True)


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
