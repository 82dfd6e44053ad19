"""Densely connected networks for small images.

The blocks are those of the paper's ImageNet networks, with bottlenecks and half the channels kept
between blocks; the stem is one 3x3 convolution without pooling, as is common for CIFAR.

Reference: Huang et al. (2017), "Densely connected convolutional networks", table 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesify.models.catalogue import models
from bayesify.models.convolution import (
    check_inputs,
    convolution,
    dropout_or_identity,
    initialise,
)
from bayesify.models.dense import check_dropout, check_positive

# Channels of a bottleneck and of the stem, in growth rates, and the divisor of a transition.
BOTTLENECK = 4
STEM = 2
COMPRESSION = 2


class DenseLayer(nn.Module):
    """Append `growth_rate` new channels, made by 1x1 and 3x3 convolutions, to what came in.

    Args:
        in_channels: Number of channels that come in.
        growth_rate: Number of channels that are added.
        dropout: Probability of dropping an output of either convolution.
    """

    def __init__(self, in_channels: int, growth_rate: int, dropout: float) -> None:
        super().__init__()
        channels = BOTTLENECK * growth_rate
        self.bn1 = nn.BatchNorm2d(in_channels)
        self.conv1 = convolution(in_channels, channels, kernel_size=1)
        self.dropout1 = dropout_or_identity(dropout)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv2 = convolution(channels, growth_rate)
        self.dropout2 = dropout_or_identity(dropout)

    def forward(self, features: Tensor) -> Tensor:
        """Return the features that came in and the new ones after them."""
        inner = self.dropout1(self.conv1(F.relu(self.bn1(features))))
        added = self.dropout2(self.conv2(F.relu(self.bn2(inner))))
        return torch.cat([features, added], dim=1)


class Transition(nn.Module):
    """Mix the channels into half as many and halve the image.

    Args:
        in_channels: Number of channels that come in.
        dropout: Probability of dropping an output of the convolution.
    """

    def __init__(self, in_channels: int, dropout: float) -> None:
        super().__init__()
        self.bn = nn.BatchNorm2d(in_channels)
        self.conv = convolution(in_channels, in_channels // COMPRESSION, kernel_size=1)
        self.dropout = dropout_or_identity(dropout)

    def forward(self, features: Tensor) -> Tensor:
        """Return the smaller image with fewer channels."""
        return F.avg_pool2d(self.dropout(self.conv(F.relu(self.bn(features)))), 2)


class DenseNet(nn.Module):
    """Stack blocks of dense layers with a transition between any two.

    Args:
        num_layers: Number of dense layers of each block.
        num_classes: Number of outputs.
        in_channels: Number of channels of an image.
        growth_rate: Number of channels that each dense layer adds; the stem has twice as many.
        dropout: Probability of dropping an output of each convolution but the stem, 0.2 in the
            paper where images are not augmented; 0 adds no dropout modules.
    """

    def __init__(
        self,
        num_layers: Sequence[int],
        num_classes: int = 10,
        in_channels: int = 3,
        growth_rate: int = 32,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_positive(num_classes=num_classes, in_channels=in_channels, growth_rate=growth_rate)
        check_dropout(dropout)
        channels = STEM * growth_rate
        self.conv1 = convolution(in_channels, channels)
        self.blocks = nn.Sequential()
        for index, count in enumerate(num_layers, start=1):
            layers = [
                DenseLayer(channels + place * growth_rate, growth_rate, dropout)
                for place in range(count)
            ]
            self.blocks.add_module(f"dense{index}", nn.Sequential(*layers))
            channels += count * growth_rate
            if index < len(num_layers):
                self.blocks.add_module(f"transition{index}", Transition(channels, dropout))
                channels //= COMPRESSION
        self.bn = nn.BatchNorm2d(channels)
        self.linear = nn.Linear(channels, num_classes)
        self.smallest_image = 2 ** (len(num_layers) - 1)
        self.apply(initialise)

    def forward(self, images: Tensor) -> Tensor:
        """Return one row of logits for each image."""
        check_inputs("images", images, num_dimensions=2, smallest=self.smallest_image)
        features = F.relu(self.bn(self.blocks(self.conv1(images))))
        return self.linear(F.adaptive_avg_pool2d(features, 1).flatten(1))


def densenet_121(
    num_classes: int = 10, in_channels: int = 3, growth_rate: int = 32, dropout: float = 0.0
) -> DenseNet:
    """Return DenseNet-121, of 58 dense layers that add 32 channels each; see `DenseNet`."""
    return DenseNet((6, 12, 24, 16), num_classes, in_channels, growth_rate, dropout)


def densenet_161(
    num_classes: int = 10, in_channels: int = 3, growth_rate: int = 48, dropout: float = 0.0
) -> DenseNet:
    """Return DenseNet-161, of 78 dense layers that add 48 channels each; see `DenseNet`."""
    return DenseNet((6, 12, 36, 24), num_classes, in_channels, growth_rate, dropout)


def densenet_169(
    num_classes: int = 10, in_channels: int = 3, growth_rate: int = 32, dropout: float = 0.0
) -> DenseNet:
    """Return DenseNet-169, of 82 dense layers that add 32 channels each; see `DenseNet`."""
    return DenseNet((6, 12, 32, 32), num_classes, in_channels, growth_rate, dropout)


def densenet_201(
    num_classes: int = 10, in_channels: int = 3, growth_rate: int = 32, dropout: float = 0.0
) -> DenseNet:
    """Return DenseNet-201, of 98 dense layers that add 32 channels each; see `DenseNet`."""
    return DenseNet((6, 12, 48, 32), num_classes, in_channels, growth_rate, dropout)


models.register("densenet_121")(densenet_121)
models.register("densenet_161")(densenet_161)
models.register("densenet_169")(densenet_169)
models.register("densenet_201")(densenet_201)
