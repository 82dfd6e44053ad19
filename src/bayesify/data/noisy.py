"""Inputs under white noise of a given signal-to-noise ratio: drawn, or carried as a variance.

An example's noise has the variance of its own entries over 10^(decibels / 10): at 0 as much noise
as signal, at -6 four times as much, at 40 a ten-thousandth. The transform of the data is applied
first, so noise leaves the range of pixels and is not clipped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesify.data.dataset import TensorData, Transform
from bayesify.moments import Moments, precise_dtype

_PAIR = 2


def noisy(data: TensorData, decibels: float, *, seed: int = 0) -> TensorData:
    """Return examples with normal noise added, the same for a seed.

    Args:
        data: Examples with numbers as inputs.
        decibels: Signal-to-noise ratio.
        seed: Decides the noise; the same noise, scaled, for every ratio.
    """
    inputs, targets = data.__getitems__(list(range(len(data))))
    _check_numbers("noisy", inputs)
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(inputs.shape, generator=generator).to(inputs)
    std = _noise_variance(inputs, decibels).sqrt()
    return TensorData((inputs + std * noise).to(inputs.dtype), targets)


def uncertain(data: TensorData, decibels: float | Sequence[float]) -> TensorData:
    """Return examples as `Moments`: inputs as they are, with the variance that noise would have.

    Trained on them by moments a network learns from all the noise there could be, without a draw.

    Args:
        data: Examples with numbers as inputs.
        decibels: Signal-to-noise ratio, or two of them: then every example has, each time it is
            read, its own between them.
    """
    return _changed("uncertain", data, decibels, is_drawn=False)


def newly_noisy(data: TensorData, decibels: float | Sequence[float]) -> TensorData:
    """Return examples with noise that is drawn anew whenever they are read, to train on.

    Args:
        data: Examples with numbers as inputs.
        decibels: Signal-to-noise ratio, or two of them: then every example has, each time it is
            read, its own between them.
    """
    return _changed("newly_noisy", data, decibels, is_drawn=True)


@dataclass(frozen=True)
class WhiteNoise:
    """A transform that adds white noise to a batch, or the variance it would have.

    Args:
        before: The transform of the data, which comes first.
        lowest: Least signal-to-noise ratio, in decibels.
        highest: Greatest one; each example has its own between them.
        is_drawn: Whether to draw the noise; else inputs become `Moments`.
    """

    before: Transform | None
    lowest: float
    highest: float
    is_drawn: bool

    def __call__(self, inputs: Tensor) -> Any:
        """Return the inputs as a network reads them under noise."""
        seen = inputs if self.before is None else self.before(inputs)
        shares = torch.rand(len(seen)).to(seen)
        decibels = self.lowest + (self.highest - self.lowest) * shares
        moments = Moments(seen, _noise_variance(seen, decibels))
        return moments.draw() if self.is_drawn else moments


def _changed(
    who: str, data: TensorData, decibels: float | Sequence[float], *, is_drawn: bool
) -> TensorData:
    lowest, highest = check_decibels(decibels)
    _check_numbers(who, data.with_augmentation(None).__getitems__([0][: len(data)])[0])
    return data.with_transform(WhiteNoise(data.transform, lowest, highest, is_drawn))


def check_decibels(decibels: float | Sequence[float]) -> tuple[float, float]:
    """Return the least and the greatest of one signal-to-noise ratio, or of two."""
    found = decibels if isinstance(decibels, Sequence) else (decibels, decibels)
    is_pair = len(found) == _PAIR and all(type(each) in (int, float) for each in found)
    if not is_pair or not (math.isfinite(sum(found)) and found[0] <= found[1]):
        raise ValueError(
            "decibels must be a number, or two of which the first is not the larger, "
            f"got {decibels!r}"
        )
    return float(found[0]), float(found[1])


def _check_numbers(who: str, inputs: Tensor) -> None:
    if not isinstance(inputs, Tensor) or not inputs.is_floating_point():
        got = inputs.dtype if isinstance(inputs, Tensor) else type(inputs).__name__
        raise TypeError(f"{who} needs numbers as inputs, got {got}")


def _noise_variance(inputs: Tensor, decibels: float | Tensor) -> Tensor:
    """Return the variance of each example's noise, with an axis of 1 for each of the inputs'."""
    precise = inputs.to(precise_dtype(inputs.dtype))
    rows = precise.reshape(len(inputs), -1 if len(inputs) else 0)
    signal = rows.var(1, correction=0) if len(inputs) else precise.new_zeros(0)
    return (signal * 10.0 ** (-decibels / 10.0)).view(-1, *[1] * (inputs.ndim - 1))
