"""Layers with fewer units: which tensors a size decides, and the same layer with some of them.

A layer keeps its place, its class and its code; its tensors and its size attributes get smaller.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bayesify.conversion.layer_class import SUFFIX, posterior_of
from bayesify.conversion.narrow import without_units
from bayesify.conversion.posterior import Posterior


@dataclass(frozen=True)
class Sizes:
    """How large a type of layer is.

    Attributes:
        outputs: The attribute that counts the units a layer makes.
        inputs: The attribute that counts those it reads; None where it reads none, or its own.
        axes: For each of the two, the axis of every tensor that it decides.
    """

    outputs: str
    inputs: str | None
    axes: Mapping[str, Mapping[str, int]]


_LINEAR = Sizes(
    "out_features",
    "in_features",
    {"out_features": {"weight": 0, "bias": 0}, "in_features": {"weight": 1}},
)
_CONVOLUTION = Sizes(
    "out_channels",
    "in_channels",
    {"out_channels": {"weight": 0, "bias": 0}, "in_channels": {"weight": 1}},
)
_TRANSPOSED = Sizes(
    "out_channels",
    "in_channels",
    {"out_channels": {"weight": 1, "bias": 0}, "in_channels": {"weight": 0}},
)
_EMBEDDING = Sizes("embedding_dim", None, {"embedding_dim": {"weight": 1}})
_NORM = Sizes(
    "num_features",
    None,
    {"num_features": dict.fromkeys(("weight", "bias", "running_mean", "running_var"), 0)},
)
_SIZES: dict[type[nn.Module], Sizes] = {
    nn.Linear: _LINEAR,
    **dict.fromkeys((nn.Conv1d, nn.Conv2d, nn.Conv3d), _CONVOLUTION),
    **dict.fromkeys((nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d), _TRANSPOSED),
    nn.Embedding: _EMBEDDING,
    **dict.fromkeys((nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d), _NORM),
}

Units = Mapping[str, Tensor]
"""For each size attribute that shrinks the positions that stay, ascending."""


def sizes_of(layer: nn.Module) -> Sizes | None:
    """Return how large a layer's type is, or None where its units cannot be taken apart."""
    if getattr(layer, "groups", 1) != 1:
        return None
    return next((sizes for kind, sizes in _SIZES.items() if isinstance(layer, kind)), None)


def smaller_tensors(layer: nn.Module, units: Units) -> dict[str, Tensor | Posterior]:
    """Return a layer's tensors with only some units; the layer itself is left as it is."""
    sizes = sizes_of(layer)
    assert sizes is not None, f"a {type(layer).__name__} has no known sizes"
    smaller: dict[str, Tensor | Posterior] = {}
    for attribute, kept in units.items():
        for name, axis in sizes.axes[attribute].items():
            tensor = smaller.get(name, _tensor(layer, name))
            if tensor is not None:
                smaller[name] = _selected(tensor, axis, kept)
    return smaller


def take_tensors_(
    layer: nn.Module, tensors: Mapping[str, Tensor | Posterior], sizes: Mapping[str, int]
) -> None:
    """Give a layer the tensors of `smaller_tensors` and the sizes that go with them."""
    for name, tensor in tensors.items():
        if isinstance(tensor, Posterior):
            layer._modules[name + SUFFIX] = tensor
        elif isinstance(tensor, nn.Parameter):
            layer._parameters[name] = tensor
        else:
            layer._buffers[name] = tensor
    for attribute, size in sizes.items():
        setattr(layer, attribute, size)


def resize_(net: nn.Module, resized: Mapping[str, Mapping[str, int]]) -> None:
    """Bring a freshly built network to smaller sizes in place; on an error it is unchanged.

    Which units its layers lose does not matter: their values are about to be loaded.

    Args:
        net: A plain network.
        resized: For each layer that shrinks its new sizes, as in `Plan.resized`.

    Raises:
        ValueError: The network has no such layer, or it cannot have such a size.
    """
    layers = {path: _layer(net, path, sizes) for path, sizes in resized.items()}
    smaller = {
        path: smaller_tensors(
            layer, {attribute: torch.arange(size) for attribute, size in resized[path].items()}
        )
        for path, layer in layers.items()
    }
    for path, layer in layers.items():
        take_tensors_(layer, smaller[path], resized[path])


def _tensor(layer: nn.Module, name: str) -> Tensor | Posterior | None:
    posterior = posterior_of(layer, name)
    return getattr(layer, name, None) if posterior is None else posterior


def _selected(tensor: Tensor | Posterior, axis: int, kept: Tensor) -> Tensor | Posterior:
    if isinstance(tensor, Posterior):
        return without_units(tensor, axis, kept.to(next(tensor.parameters()).device))
    values = tensor.detach().index_select(axis, kept.to(tensor.device))
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(values, requires_grad=tensor.requires_grad)
    return values


def _layer(net: nn.Module, path: str, sizes: Mapping[str, int]) -> nn.Module:
    try:
        layer = net.get_submodule(path)
    except AttributeError:
        raise ValueError(f"resized names the layer {path!r}, which the network has not") from None
    known = sizes_of(layer)
    for attribute, size in sizes.items():
        if known is None or attribute not in known.axes:
            raise ValueError(
                f"resized asks for {attribute}={size} of the layer {path!r}, which is a "
                f"{type(layer).__name__} and cannot shrink that way"
            )
        now = getattr(layer, attribute)
        if not 1 <= size <= now:
            raise ValueError(
                f"resized must give the layer {path!r} between 1 and {now} {attribute}, got {size}"
            )
    return layer
