"""What the convolutional networks share: their layers, how they start, the inputs they take."""

from __future__ import annotations

from torch import Tensor, nn


def convolution(
    in_channels: int, out_channels: int, kernel_size: int = 3, stride: int = 1
) -> nn.Conv2d:
    """Return a convolution without a bias that keeps the size of an image at stride 1.

    Args:
        in_channels: Number of channels that come in.
        out_channels: Number of channels that go out.
        kernel_size: Height and width of the kernel, odd.
        stride: Step between the pixels that go out.
    """
    return nn.Conv2d(
        in_channels, out_channels, kernel_size, stride, padding=kernel_size // 2, bias=False
    )


def dropout_or_identity(dropout: float) -> nn.Module:
    """Return dropout, or at 0 a module that does nothing and is not taken for dropout."""
    return nn.Dropout(dropout) if dropout > 0.0 else nn.Identity()


def initialise(module: nn.Module) -> None:
    """Draw the weights of a layer that a ReLU follows so that its outputs keep their scale.

    Networks hand it to `apply`, so it passes over all that is no convolution. Biases start at 0.

    Reference: He et al. (2015), "Delving deep into rectifiers", eq. 10.
    """
    if isinstance(module, nn.Conv2d | nn.Conv3d):
        draw_for_relu(module)


def draw_for_relu(layer: nn.Conv2d | nn.Conv3d | nn.Linear) -> None:
    """Draw one layer's weights with variance 2 / inputs and set its bias to 0."""
    nn.init.kaiming_normal_(layer.weight, mode="fan_in", nonlinearity="relu")
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


def check_inputs(name: str, inputs: Tensor, num_dimensions: int, smallest: int) -> None:
    """Raise a ValueError unless inputs have their dimensions and outlive the pooling.

    Args:
        name: What the inputs are, as the error should say: "images", "volumes".
        inputs: Tensor to check, of shape (batch, channels, ...).
        num_dimensions: Number of sides: 2 for images, 3 for volumes.
        smallest: Length that every side must have at least.
    """
    sides = tuple(inputs.shape[2:])
    if len(sides) != num_dimensions or min(sides) < smallest:
        raise ValueError(
            f"{name} must have shape (batch, channels, {', '.join(['side'] * num_dimensions)}) "
            f"with sides of at least {smallest}, or pooling leaves nothing of them, "
            f"got {tuple(inputs.shape)}; pad or resize them"
        )
