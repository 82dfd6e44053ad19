"""Calls of a model that give the covariance of its outputs, beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from bayesify.conversion.scope import forward_by
from bayesify.prediction.by_linearisation import linearised_outputs
from bayesify.prediction.evaluation_mode import evaluating


@contextmanager
def linearised_calls(model: nn.Module) -> Iterator[None]:
    """Have each call of a model return outputs at the mean weights, and their covariances.

    Whatever wraps the model may make the call. Hooks of the model itself run around it; its layers
    are in evaluation mode, as examples must not see each other.
    """
    own = model.forward
    network = _Own(model, own)

    def forward(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if args and kwargs:
            raise TypeError(
                "a model whose outputs' covariance is wanted must be called with all inputs by "
                "position or all by keyword, got both"
            )
        with evaluating(model), forward_by(model, "mean"):
            return linearised_outputs(network, kwargs or args)

    is_own = "forward" in vars(model)
    vars(model)["forward"] = forward
    try:
        yield
    finally:
        if is_own:
            vars(model)["forward"] = own
        else:
            del vars(model)["forward"]


class _Own(nn.Module):
    """A model without the hooks of the model itself, which run around the call that was made."""

    def __init__(self, model: nn.Module, forward: Callable[..., Any]) -> None:
        super().__init__()
        self.model = model
        self.call = forward

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.call(*args, **kwargs)
