"""Out-of-distribution data made from a data set itself, for where there is no other set.

Every variant keeps the inputs' shape and the range of their values, so that no network can tell
by a number it never saw: only the picture is strange.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from bayesify.data import TensorData
from bayesify.registry import Registry

Variant = Callable[[Tensor, torch.Generator], Tensor]
ood_variants: Registry[Variant] = Registry("out-of-distribution variant")


def make_ood(data: TensorData, name: str, seed: int = 0) -> TensorData:
    """Return a strange version of examples, read through the same transform.

    Args:
        data: Familiar examples.
        name: One of `ood_variants`: "inverted", "rotated", "shuffled", "noise".
        seed: Fixes what is drawn.
    """
    change = ood_variants[name]
    if not len(data):
        raise ValueError("data must hold at least one example to make a strange version of")
    strange = change(data.inputs, torch.Generator().manual_seed(seed)).to(data.inputs.dtype)
    return TensorData(strange, data.targets, data.transform)


@ood_variants.register("inverted")
def inverted(inputs: Tensor, generator: torch.Generator) -> Tensor:
    """Turn the highest value into the lowest and back: ink becomes paper."""
    del generator
    return inputs.max() + inputs.min() - inputs


@ood_variants.register("rotated")
def rotated(inputs: Tensor, generator: torch.Generator) -> Tensor:
    """Turn images by a quarter."""
    del generator
    if inputs.ndim < 3 or inputs.shape[-1] != inputs.shape[-2]:
        raise ValueError(
            f"rotated needs square images, got inputs of shape {tuple(inputs.shape[1:])}"
        )
    return inputs.rot90(1, (-2, -1))


@ood_variants.register("shuffled")
def shuffled(inputs: Tensor, generator: torch.Generator) -> Tensor:
    """Put every example's own values in an order of their own."""
    flat = inputs.flatten(1)
    order = torch.rand(flat.shape, generator=generator).argsort(1)
    return flat.gather(1, order).view(inputs.shape)


@ood_variants.register("noise")
def noise(inputs: Tensor, generator: torch.Generator) -> Tensor:
    """Draw every value evenly between the lowest and the highest there is."""
    low, high = float(inputs.min()), float(inputs.max())
    return low + (high - low) * torch.rand(inputs.shape, generator=generator)
