"""Inputs under white noise of a given signal-to-noise ratio."""

from __future__ import annotations

import torch

from bayesify.data.dataset import TensorData


def noisy(data: TensorData, decibels: float, *, seed: int = 0) -> TensorData:
    """Return examples with normal noise added, as the network sees them.

    An example's noise has the variance of its own entries over 10^(decibels / 10): at 0 as much
    noise as signal, at -6 four times as much, at 40 a ten-thousandth. The transform is applied
    first, so noise leaves the range of pixels and is not clipped.

    Args:
        data: Examples with numbers as inputs.
        decibels: Signal-to-noise ratio.
        seed: Decides the noise; the same noise, scaled, for every ratio.
    """
    inputs, targets = data.__getitems__(list(range(len(data))))
    if not inputs.is_floating_point():
        raise TypeError(f"noisy needs numbers as inputs, got {inputs.dtype}")
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(inputs.shape, generator=generator).to(inputs)
    signal = inputs.flatten(1).var(1, correction=0) if len(inputs) else inputs.new_zeros(0)
    std = (signal * 10.0 ** (-decibels / 10.0)).sqrt()
    return TensorData(inputs + std.view(-1, *[1] * (inputs.ndim - 1)) * noise, targets)
