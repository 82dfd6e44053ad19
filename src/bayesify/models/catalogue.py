"""The models that a recipe or the command line can name."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from bayesify.registry import Registry

models: Registry[Callable[..., nn.Module]] = Registry("model")
