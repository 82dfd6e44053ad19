"""Operations that treat each unit by itself, and what they make of a unit that is constant."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

Step = Callable[[Tensor], Tensor]
"""What an operation makes of units that are constant, one value each; NaN where unknown."""


@dataclass(frozen=True)
class Layout:
    """Where units lie: along the last axis, or along axis 1 with `num_dims` axes after it.

    Attributes:
        num_dims: Number of spatial axes; 0 where units are features.
        is_flat: Whether features are flattened channels, each of them a block.
    """

    num_dims: int = 0
    is_flat: bool = False

    def flattened(self) -> Layout:
        """Return the layout after all axes but the batch have become one."""
        return Layout(is_flat=self.is_flat or self.num_dims > 0)


def unknown(values: Tensor) -> Tensor:
    """Return that nothing is known of units which were constant."""
    return torch.full_like(values, torch.nan)


def _same(values: Tensor) -> Tensor:
    return values


def _zero_stays(values: Tensor) -> Tensor:
    return torch.where(values == 0, values, torch.nan)


def _by_dims(*names: str) -> dict[Any, int]:
    places = {name: nn if name[0].isupper() else F for name in names}
    return {
        getattr(place, f"{name}{num_dims}d"): num_dims
        for num_dims in (1, 2, 3)
        for name, place in places.items()
    }


NORMS = _by_dims("BatchNorm")
"""Normalisations of each unit by itself, with the number of axes after the units."""

# Module types, functions, and methods by their names.
_POINTWISE: set[Any] = {
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.CELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish),
    *(nn.Sigmoid, nn.LogSigmoid, nn.Tanh, nn.Softplus, nn.Softsign),
    *(nn.Hardtanh, nn.Hardsigmoid, nn.Hardswish, nn.Identity),
    *(F.relu, F.relu6, F.leaky_relu, F.elu, F.celu, F.selu, F.gelu, F.silu, F.mish),
    *(F.logsigmoid, F.softplus, F.softsign, F.hardtanh, F.hardsigmoid, F.hardswish),
    *(F.leaky_relu_, F.elu_, F.celu_, F.selu_, F.hardtanh_),
    *(torch.relu, torch.relu_, torch.sigmoid, torch.sigmoid_, torch.tanh, torch.tanh_),
    *("relu", "relu_", "sigmoid", "sigmoid_", "tanh", "tanh_", "contiguous"),
}
_DROPOUTS: set[Any] = {nn.Dropout, F.dropout, *_by_dims("Dropout", "dropout")}
_MAX_POOLS = _by_dims("MaxPool", "AdaptiveMaxPool", "max_pool", "adaptive_max_pool")
_AVERAGE_POOLS = _by_dims("AvgPool", "AdaptiveAvgPool", "avg_pool", "adaptive_avg_pool")
_FLATTENS: set[Any] = {nn.Flatten, torch.flatten, "flatten"}
_MEANS: set[Any] = {torch.mean, "mean"}
_VIEWS: set[Any] = {torch.reshape, "view", "reshape"}


def pass_through(
    node: fx.Node, module: nn.Module | None, layout: Layout
) -> tuple[Layout, Step] | None:
    """Return where an operation leaves units and what it makes of constant ones.

    Args:
        node: The operation; units are its first argument and only input.
        module: The module that it calls, if it calls one.
        layout: Where units lie in its input.

    Returns:
        None where units may not stay apart.
    """
    what = operation(node, module)
    if what in _POINTWISE:
        return layout, _applied(node, module)
    if what in _DROPOUTS:
        return layout, _zero_stays
    if layout.num_dims > 0 and layout.num_dims == _MAX_POOLS.get(what):
        return layout, _same
    if layout.num_dims > 0 and layout.num_dims == _AVERAGE_POOLS.get(what):
        # Where a window reaches over the border its mean is another one, unless it is 0.
        return layout, _zero_stays
    if what in _FLATTENS and _flattens_all(node, module):
        return layout.flattened(), _same
    if what in _MEANS and layout.num_dims > 0:
        return _averaged(node, layout)
    return None


def operation(node: fx.Node, module: nn.Module | None) -> Any:
    """Return what a node does: a module type, a function, or the name of a method."""
    return node.target if module is None else type(module)


def flattening_size(node: fx.Node) -> fx.Node | None:
    """Return the batch size that `x.view(size, -1)` asks for, None for any other operation."""
    if node.op == "call_module" or node.target not in _VIEWS or node.kwargs:
        return None
    shape = node.args[1:]
    if len(shape) == 1 and isinstance(shape[0], (tuple, list)):
        shape = tuple(shape[0])
    is_flattening = len(shape) == 2 and isinstance(shape[0], fx.Node) and shape[1] == -1
    return shape[0] if is_flattening and isinstance(shape[0], fx.Node) else None


def may_overwrite(node: fx.Node, module: nn.Module | None) -> bool:
    """Whether an operation may change its input in place."""
    name = getattr(node.target, "__name__", node.target)
    is_asked = getattr(module, "inplace", False) or node.kwargs.get("inplace")
    return bool(is_asked) or str(name).endswith("_") or any(a is True for a in node.args[1:])


def _applied(node: fx.Node, module: nn.Module | None) -> Step:
    def apply(values: Tensor) -> Tensor:
        # A copy, because the operation may work in place.
        values = values.clone()
        if module is not None:
            return module(values)
        if isinstance(node.target, str):
            return getattr(values, node.target)(*node.args[1:], **node.kwargs)
        return node.target(values, *node.args[1:], **node.kwargs)

    return apply


def _flattens_all(node: fx.Node, module: nn.Module | None) -> bool:
    if isinstance(module, nn.Flatten):
        return (module.start_dim, module.end_dim) == (1, -1)
    given = dict(zip(("start_dim", "end_dim"), node.args[1:], strict=False)) | node.kwargs
    return {"start_dim": 0, "end_dim": -1, **given} == {"start_dim": 1, "end_dim": -1}


def _averaged(node: fx.Node, layout: Layout) -> tuple[Layout, Step] | None:
    given = dict(zip(("dim", "keepdim"), node.args[1:], strict=False)) | node.kwargs
    dims = given.get("dim")
    dims = (dims,) if isinstance(dims, int) else dims
    if not isinstance(dims, (tuple, list)) or not all(isinstance(dim, int) for dim in dims):
        return None
    num_axes = layout.num_dims + 2
    if {dim % num_axes for dim in dims if isinstance(dim, int)} != set(range(2, num_axes)):
        return None
    return (layout if given.get("keepdim") else Layout()), _zero_stays
