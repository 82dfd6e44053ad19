"""Where kernels of our own can run."""

from __future__ import annotations

from importlib.util import find_spec

import torch

# Asked once: compiled code cannot.
HAS_TRITON = find_spec("triton") is not None


def has_bfloat16(device: torch.device) -> bool:
    """Whether a GPU computes with bfloat16: older ones are left to torch's own operations.

    To be asked where an operation runs, and not where it is chosen: compiled code cannot ask.
    """
    return device.type != "cuda" or torch.cuda.get_device_capability(device) >= (8, 0)
