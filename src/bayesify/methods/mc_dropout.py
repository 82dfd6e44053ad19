"""Monte Carlo dropout: the network's own dropout layers stay on when it predicts.

Reference: Gal, Ghahramani (2016).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from bayesify.conversion.method import Method, methods
from bayesify.conversion.plan import Plan
from bayesify.types import ConversionError


@methods.register("mc_dropout")
@dataclass(frozen=True)
class MCDropout(Method):
    """Sample the network's dropout layers at prediction.

    Args:
        rate: Dropout rate to give every dropout layer; None keeps each layer's own.
    """

    name: ClassVar[str] = "mc_dropout"
    ways: ClassVar[Mapping[str, str]] = {"sample": "dropout samples", "mean": "dropout off"}

    rate: float | None = None

    def __post_init__(self) -> None:
        if self.rate is not None and not 0.0 < self.rate < 1.0:
            raise ValueError(f"rate must lie in (0, 1), got {self.rate}")

    def plan(self, model: nn.Module) -> Plan:
        """Check that there is a dropout layer to sample."""
        layers = dropout_layers(model)
        if not layers:
            reason = "it has no nn.Dropout layer to sample: add some, or use another method"
            raise ConversionError([("model", reason)])
        if self.rate is None and all(_rate(layer) == 0 for layer in layers):
            reason = "every dropout layer has rate 0: pass rate=, such as MCDropout(rate=0.1)"
            raise ConversionError([("model", reason)])
        return Plan()

    def prepare_(self, model: nn.Module, plan: Plan) -> nn.Module:
        """Set the rate, where one was given."""
        del plan
        if self.rate is not None:
            for layer in dropout_layers(model):
                setattr(layer, _rate_name(layer), self.rate)
        return model

    @contextmanager
    def sampling(self, model: nn.Module, by: str) -> Iterator[None]:
        """Turn dropout layers on, and nothing else: norms keep their running statistics."""
        layers = dropout_layers(model) if by == "sample" else []
        before = [layer.training for layer in layers]
        is_fused = torch.backends.mha.get_fastpath_enabled()
        try:
            for layer in layers:
                layer.training = True
            if layers:
                # In evaluation a transformer layer runs fused, past the dropout layers it holds.
                torch.backends.mha.set_fastpath_enabled(False)
            yield
        finally:
            torch.backends.mha.set_fastpath_enabled(is_fused)
            for layer, mode in zip(layers, before, strict=True):
                layer.training = mode


def dropout_layers(model: nn.Module) -> list[nn.Module]:
    """Return the layers of a model that drop out; attention and recurrent ones have their own."""
    return [
        module
        for module in model.modules()
        if isinstance(module, _DropoutNd)
        or (isinstance(module, (nn.MultiheadAttention, nn.RNNBase)) and module.dropout > 0)
    ]


def _rate_name(layer: nn.Module) -> str:
    return "p" if isinstance(layer, _DropoutNd) else "dropout"


def _rate(layer: nn.Module) -> float:
    return getattr(layer, _rate_name(layer))
