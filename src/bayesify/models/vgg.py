"""VGG networks for small images.

The convolutions are those of the paper. Five poolings leave one pixel of a 32x32 image, so one
linear layer takes the place of the paper's three dense ones, as is common for CIFAR.

Reference: Simonyan and Zisserman (2015), "Very deep convolutional networks for large-scale image
recognition", table 1, columns A, B, D and E.
"""

from __future__ import annotations

from collections import OrderedDict

import torch.nn.functional as F
from torch import Tensor, nn

from bayesify.models.catalogue import models
from bayesify.models.convolution import check_inputs, dropout_or_identity, initialise
from bayesify.models.dense import check_dropout, check_positive

# Convolutions of each stage; the depth counts the paper's three dense layers too.
STAGES: dict[int, tuple[int, ...]] = {
    11: (1, 1, 2, 2, 2),
    13: (2, 2, 2, 2, 2),
    16: (2, 2, 3, 3, 3),
    19: (2, 2, 4, 4, 4),
}
# Multiples of the width: 64-128-256-512-512 channels.
CHANNELS = (1, 2, 4, 8, 8)
SMALLEST_IMAGE = 2 ** len(CHANNELS)


class VGG(nn.Module):
    """Stages of 3x3 convolutions with max pooling after each, then a linear layer.

    Convolutions are named by stage and place, `features.conv3_1`, with and without batch
    normalisation.

    Args:
        depth: Which column of the paper: 11, 13, 16 or 19.
        num_classes: Number of outputs.
        in_channels: Number of channels of an image; its height and width are at least 32.
        width: Number of channels of the first stage; it doubles up to the fourth.
        batch_norm: Whether batch normalisation follows each convolution, in place of its bias.
        dropout: Probability of dropping an input of the linear layer, 0.5 in the paper; 0 adds
            no dropout module.
    """

    def __init__(
        self,
        depth: int = 16,
        num_classes: int = 10,
        in_channels: int = 3,
        width: int = 64,
        batch_norm: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_positive(num_classes=num_classes, in_channels=in_channels, width=width)
        check_dropout(dropout)
        if depth not in STAGES:
            raise ValueError(f"depth must be one of {', '.join(map(str, STAGES))}, got {depth!r}")
        self.features = nn.Sequential(_named_layers(STAGES[depth], in_channels, width, batch_norm))
        self.dropout = dropout_or_identity(dropout)
        self.linear = nn.Linear(width * CHANNELS[-1], num_classes)
        self.apply(initialise)

    def forward(self, images: Tensor) -> Tensor:
        """Return one row of logits for each image."""
        check_inputs("images", images, num_dimensions=2, smallest=SMALLEST_IMAGE)
        features = F.adaptive_avg_pool2d(self.features(images), 1)
        return self.linear(self.dropout(features.flatten(1)))


def vgg_11(
    num_classes: int = 10,
    in_channels: int = 3,
    width: int = 64,
    batch_norm: bool = True,
    dropout: float = 0.0,
) -> VGG:
    """Return VGG with 8 convolutions; see `VGG`."""
    return VGG(11, num_classes, in_channels, width, batch_norm, dropout)


def vgg_13(
    num_classes: int = 10,
    in_channels: int = 3,
    width: int = 64,
    batch_norm: bool = True,
    dropout: float = 0.0,
) -> VGG:
    """Return VGG with 10 convolutions; see `VGG`."""
    return VGG(13, num_classes, in_channels, width, batch_norm, dropout)


def vgg_16(
    num_classes: int = 10,
    in_channels: int = 3,
    width: int = 64,
    batch_norm: bool = True,
    dropout: float = 0.0,
) -> VGG:
    """Return VGG with 13 convolutions; see `VGG`."""
    return VGG(16, num_classes, in_channels, width, batch_norm, dropout)


def vgg_19(
    num_classes: int = 10,
    in_channels: int = 3,
    width: int = 64,
    batch_norm: bool = True,
    dropout: float = 0.0,
) -> VGG:
    """Return VGG with 16 convolutions; see `VGG`."""
    return VGG(19, num_classes, in_channels, width, batch_norm, dropout)


def _named_layers(
    num_convolutions: tuple[int, ...], channels: int, width: int, batch_norm: bool
) -> OrderedDict[str, nn.Module]:
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for stage, (count, multiple) in enumerate(zip(num_convolutions, CHANNELS, strict=True), 1):
        for place in range(1, count + 1):
            name, out_channels = f"{stage}_{place}", width * multiple
            layers[f"conv{name}"] = nn.Conv2d(
                channels, out_channels, 3, padding=1, bias=not batch_norm
            )
            if batch_norm:
                layers[f"bn{name}"] = nn.BatchNorm2d(out_channels)
            layers[f"relu{name}"] = nn.ReLU()
            channels = out_channels
        layers[f"pool{stage}"] = nn.MaxPool2d(2)
    return layers


models.register("vgg_11")(vgg_11)
models.register("vgg_13")(vgg_13)
models.register("vgg_16")(vgg_16)
models.register("vgg_19")(vgg_19)
