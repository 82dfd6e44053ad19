"""The precision mathematics is done in, whatever precision a tensor is stored in."""

from __future__ import annotations

import torch
from torch import Tensor


def at_least_float32(tensor: Tensor) -> Tensor:
    """Return a tensor in float32, or in float64 where it is that already."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()
