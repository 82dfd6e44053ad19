"""Named architectures: what a file can say instead of holding code."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from bayesify.registry import Registry

architectures: Registry[Callable[..., nn.Module]] = Registry("model")
