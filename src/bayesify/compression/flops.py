"""How many multiplications a network takes, layer by layer, and how many its sparsity leaves.

Counted: the products of weights and inputs in linear layers and convolutions, one multiplication
and one addition each (2 FLOPs). Not counted: biases, norms, activations, attention's own products,
drawing noise, the KL, and the optimiser. A sparse layer counts its live weights only, which is what
a kernel that skips the others would take; the dense kernels of today take the dense number.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from bayesify.batches import batch_size, call_model
from bayesify.conversion.layer_class import posterior_of
from bayesify.conversion.scope import mean_weights

# Backward takes two products where forward takes one: for the inputs and for the weights.
_BACKWARD = 2


@dataclass(frozen=True)
class LayerFlops:
    """FLOPs of one layer for one example, in one forward pass with one product.

    Attributes:
        path: The layer's name.
        dense: With every weight.
        live: With the weights that exist.
        num_products: Products a training pass makes: 2 where outputs are drawn locally (one for the
            mean, one for the variance), else 1.
    """

    path: str
    dense: float
    live: float
    num_products: int


@dataclass(frozen=True)
class Flops:
    """FLOPs of a network for one example.

    Attributes:
        layers: Every layer that was called.
    """

    layers: tuple[LayerFlops, ...]

    @property
    def inference(self) -> float:
        """One forward pass with drawn or mean weights."""
        return sum(layer.live for layer in self.layers)

    @property
    def dense_inference(self) -> float:
        """The same with every weight there."""
        return sum(layer.dense for layer in self.layers)

    @property
    def training(self) -> float:
        """One forward and one backward pass, the way the model is trained."""
        return sum((1 + _BACKWARD) * layer.num_products * layer.live for layer in self.layers)

    @property
    def dense_training(self) -> float:
        """The same with every weight there."""
        return sum((1 + _BACKWARD) * layer.num_products * layer.dense for layer in self.layers)

    def average_training(self, interval: int) -> float:
        """Return the mean over steps where every `interval`-th needs the gradient of all weights.

        That gradient is one more product with every weight, in place of one with the live ones.
        """
        extra = sum(layer.num_products * (layer.dense - layer.live) for layer in self.layers)
        return self.training + extra / interval

    def __str__(self) -> str:
        lines = [f"{layer.path}: {layer.live:,.0f} of {layer.dense:,.0f}" for layer in self.layers]
        total = f"{self.inference:,.0f} of {self.dense_inference:,.0f} FLOPs per example and pass"
        return "\n".join([*lines, total])


def count_flops(model: nn.Module, inputs: Any) -> Flops:
    """Count the FLOPs of a model by calling it once on some inputs.

    Args:
        model: Any module; a converted one counts its live weights.
        inputs: A batch of inputs, as the model takes them; the count is divided by its size.
    """
    # A copy: hooks and a forward must leave no trace, such as norms' running averages.
    twin = copy.deepcopy(model).eval()
    found: dict[str, LayerFlops] = {}
    number = max(batch_size(inputs), 1)
    with torch.no_grad(), mean_weights(twin), _counting(twin, found, number):
        call_model(twin, inputs)
    # How it is trained is told by the model itself: the copy was called with its mean weights.
    products = {path: _num_products(module) for path, module in model.named_modules()}
    return Flops(
        tuple(
            LayerFlops(layer.path, layer.dense, layer.live, products[layer.path])
            for layer in found.values()
        )
    )


@contextmanager
def _counting(model: nn.Module, found: dict[str, LayerFlops], number: int) -> Iterator[None]:
    def counted(path: str) -> Any:
        def look(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            uses = _uses_of_each_weight(module, inputs[0], output) / number
            num_weights, num_live = _weights(module)
            before = found.get(path, LayerFlops(path, 0.0, 0.0, 1))
            found[path] = LayerFlops(
                path, before.dense + 2 * uses * num_weights, before.live + 2 * uses * num_live, 1
            )

        return look

    handles = [
        module.register_forward_hook(counted(path))
        for path, module in model.named_modules()
        if isinstance(module, (nn.Linear, _ConvNd))
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _uses_of_each_weight(module: nn.Module, inputs: Tensor, output: Tensor) -> float:
    if isinstance(module, _ConvTransposeNd):
        return inputs.numel() / module.in_channels
    if isinstance(module, _ConvNd):
        return output.numel() / module.out_channels
    assert isinstance(module, nn.Linear)
    return output.numel() / module.out_features


def _weights(module: nn.Module) -> tuple[int, int]:
    posterior = posterior_of(module, "weight")
    if posterior is None:
        number = module.get_parameter("weight").numel()
        return number, number
    return posterior.shape.numel(), posterior.num_live


def _num_products(module: nn.Module) -> int:
    posterior = posterior_of(module, "weight")
    is_local = posterior is not None and posterior.how == "local" and posterior.num_random > 0
    return 2 if is_local else 1
