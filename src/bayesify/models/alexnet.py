"""AlexNet for small images.

The widths are those of the one-column network; the stem has 3x3 kernels at stride 2 and pooling
windows do not overlap, as is common for CIFAR, where the 11x11 stem at stride 4 would leave
little of an image.

Reference: Krizhevsky et al. (2012), "ImageNet classification with deep convolutional neural
networks"; Krizhevsky (2014), "One weird trick for parallelizing convolutional neural networks".
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from bayesify.models.catalogue import models
from bayesify.models.convolution import draw_for_relu, dropout_or_identity
from bayesify.models.dense import check_dropout, check_positive

# Multiples of the width: 64-192-384-256-256 channels and 4096 units.
CHANNELS = (1, 3, 6, 4, 4)
UNITS = 64
SMALLEST_IMAGE = 15


class AlexNet(nn.Module):
    """Five convolutions, three of them pooled, then two hidden dense layers (23,272,266 weights).

    Args:
        num_classes: Number of outputs.
        in_channels: Number of channels of an image.
        image_size: Height and width of an image, at least 15.
        width: Number of channels of the first convolution; the others grow with it.
        dropout: Probability of dropping an input of either hidden dense layer, 0.5 in the paper;
            0 adds no dropout modules.
    """

    def __init__(
        self,
        num_classes: int = 10,
        in_channels: int = 3,
        image_size: int = 32,
        width: int = 64,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_positive(num_classes=num_classes, in_channels=in_channels)
        check_positive(image_size=image_size, width=width)
        check_dropout(dropout)
        if image_size < SMALLEST_IMAGE:
            raise ValueError(
                f"image_size must be at least {SMALLEST_IMAGE} for a stride of 2 and three "
                f"poolings, got {image_size}; use lenet_5 or an mlp for smaller images"
            )
        first, second, third, fourth, fifth = (width * multiple for multiple in CHANNELS)
        self.conv1 = nn.Conv2d(in_channels, first, 3, stride=2, padding=1)
        self.conv2 = nn.Conv2d(first, second, 3, padding=1)
        self.conv3 = nn.Conv2d(second, third, 3, padding=1)
        self.conv4 = nn.Conv2d(third, fourth, 3, padding=1)
        self.conv5 = nn.Conv2d(fourth, fifth, 3, padding=1)
        units = width * UNITS
        self.dropout1 = dropout_or_identity(dropout)
        self.fc1 = nn.Linear(fifth * _size_after_features(image_size) ** 2, units)
        self.dropout2 = dropout_or_identity(dropout)
        self.fc2 = nn.Linear(units, units)
        self.linear = nn.Linear(units, num_classes)
        convolutions = (self.conv1, self.conv2, self.conv3, self.conv4, self.conv5)
        for layer in (*convolutions, self.fc1, self.fc2):
            draw_for_relu(layer)

    def forward(self, images: Tensor) -> Tensor:
        """Return one row of logits for each image."""
        features = F.max_pool2d(F.relu(self.conv1(images)), 2)
        features = F.max_pool2d(F.relu(self.conv2(features)), 2)
        features = F.relu(self.conv4(F.relu(self.conv3(features))))
        features = F.max_pool2d(F.relu(self.conv5(features)), 2)
        hidden = F.relu(self.fc1(self.dropout1(features.flatten(1))))
        hidden = F.relu(self.fc2(self.dropout2(hidden)))
        return self.linear(hidden)


def _size_after_features(image_size: int) -> int:
    return (image_size + 1) // 2 // 2 // 2 // 2


models.register("alexnet")(AlexNet)
