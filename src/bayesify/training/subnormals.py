"""Numbers too small for full precision, taken as zero while a model trains on a CPU.

Gradients through the tails of a normal law are full of them, and a CPU takes much longer over each.
Nothing is lost: in float32 the largest of them is 1e-38.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def subnormals_as_zero(device: torch.device) -> Iterator[None]:
    """Treat subnormal numbers as zero within the block, on a CPU that can."""
    if device.type != "cpu" or _are_zero():
        yield
        return
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


def _are_zero() -> bool:
    """Whether someone has asked for it before; torch has no way to ask."""
    return float(torch.full((), 1e-38) * 0.5) == 0.0
