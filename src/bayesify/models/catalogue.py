"""The models that a recipe, the command line or a file can name."""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn

from bayesify.exporting.architectures import architectures as models
from bayesify.registry import unknown

__all__ = ["build_model", "models"]


def build_model(name: str, **options: Any) -> nn.Module:
    """Build a registered model with fresh weights.

    Args:
        name: One of `models`: "mlp", "lenet_300_100", "lenet_5", "resnet_18", "vgg_16", ...
        options: What this model offers, such as `num_classes=100` or `dropout=0.1`.
    """
    build = models[name]
    known = list(inspect.signature(build).parameters)
    for option in options:
        if option not in known:
            raise TypeError(unknown(f"option of the model {name!r}", option, known))
    return build(**options)
