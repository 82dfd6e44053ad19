"""Images and convolution kernels with their channels last in memory, which GPUs prefer.

The order in memory changes no value, and nothing that is written to a file.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from bayesify.batches import map_tensors

_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


def hold_channels_last_(model: nn.Module) -> None:
    """Lay out every parameter of four axes (images) or five (volumes) with its channels last."""
    # Not `module.to(memory_format=...)`: it knows one format, and refuses a model with both.
    for parameter in model.parameters():
        parameter.data = _channels_last(parameter.data)


def channels_last(inputs: Any) -> Any:
    """Return nested inputs with images and volumes laid out channels last."""
    return map_tensors(inputs, _channels_last)


def _channels_last(tensor: Tensor) -> Tensor:
    layout = _FORMATS.get(tensor.ndim)
    return tensor if layout is None else tensor.to(memory_format=layout)
