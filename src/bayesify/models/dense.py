"""Dense networks of any depth."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import pairwise

from torch import Tensor, nn

from bayesify.models.catalogue import models
from bayesify.registry import unknown

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "leaky_relu": nn.LeakyReLU,
    "relu": nn.ReLU,
    "selu": nn.SELU,
    "sigmoid": nn.Sigmoid,
    "silu": nn.SiLU,
    "softplus": nn.Softplus,
    "tanh": nn.Tanh,
}


class MLP(nn.Module):
    """Map a flattened input through hidden layers to an output layer.

    Args:
        in_features: Number of values of one input, after flattening from dimension 1.
        hidden: Width of each hidden layer, first to last; empty for a linear model.
        out_features: Number of outputs: classes, or regression targets.
        activation: Name of the activation after each hidden layer, one of `ACTIVATIONS`.
        dropout: Probability of dropping a hidden unit. At 0 there are no dropout modules; the
            names in the state dict are the same with and without them.
        batch_norm: Whether each hidden layer is followed by a batch norm, before its activation.
    """

    def __init__(
        self,
        in_features: int = 784,
        hidden: Sequence[int] = (400, 400),
        out_features: int = 10,
        activation: str = "relu",
        dropout: float = 0.0,
        batch_norm: bool = False,
    ) -> None:
        super().__init__()
        check_positive(in_features=in_features, out_features=out_features)
        check_positive(**{f"hidden[{index}]": width for index, width in enumerate(hidden)})
        check_dropout(dropout)
        if activation not in ACTIVATIONS:
            raise ValueError(unknown("activation", activation, ACTIVATIONS))
        self.in_features = in_features
        widths = [in_features, *hidden]
        self.layers = nn.Sequential(
            _named_layers(widths, out_features, ACTIVATIONS[activation], dropout, batch_norm)
        )

    def forward(self, inputs: Tensor) -> Tensor:
        """Return one row of outputs for each input."""
        return self.layers(inputs.flatten(1))


def check_positive(**sizes: int) -> None:
    """Raise a ValueError that names the first size which is not a positive integer."""
    for name, size in sizes.items():
        if not isinstance(size, int) or size < 1:
            raise ValueError(f"{name} must be a positive integer, got {size!r}")


def check_dropout(dropout: float) -> None:
    """Raise a ValueError unless `dropout` is a probability below 1."""
    if not 0.0 <= dropout < 1.0:
        raise ValueError(f"dropout must lie in [0, 1), got {dropout}")


def _named_layers(
    widths: Sequence[int],
    out_features: int,
    activation: Callable[[], nn.Module],
    dropout: float,
    batch_norm: bool,
) -> OrderedDict[str, nn.Module]:
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for index, (before, after) in enumerate(pairwise(widths), start=1):
        layers[f"hidden_{index}"] = nn.Linear(before, after)
        if batch_norm:
            layers[f"norm_{index}"] = nn.BatchNorm1d(after)
        layers[f"activation_{index}"] = activation()
        if dropout > 0.0:
            layers[f"dropout_{index}"] = nn.Dropout(dropout)
    layers["output"] = nn.Linear(widths[-1], out_features)
    return layers


models.register("mlp")(MLP)
