"""The two LeNets of the pruning and variational dropout papers.

Reference: LeCun et al. (1998), "Gradient-based learning applied to document recognition"; the
convolutional one has the widths of the Caffe reference model, as in Molchanov et al. (2017).
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from bayesify.models.catalogue import models
from bayesify.models.dense import MLP, check_dropout, check_positive

KERNEL_SIZE = 5
CONVOLUTION_WIDTHS = (20, 50)
DENSE_WIDTH = 500
SMALLEST_IMAGE = 16


def lenet_300_100(
    in_features: int = 784, num_classes: int = 10, dropout: float = 0.0, batch_norm: bool = False
) -> MLP:
    """Return LeNet-300-100: two hidden ReLU layers of 300 and 100 units (266,610 weights).

    Args:
        in_features: Number of values of one input, after flattening.
        num_classes: Number of outputs.
        dropout: Probability of dropping a hidden unit; 0 adds no dropout modules.
        batch_norm: Whether each hidden layer is followed by a batch norm.
    """
    return MLP(in_features, (300, 100), num_classes, "relu", dropout, batch_norm)


class LeNet5(nn.Module):
    """Two convolutions with max pooling, then one hidden dense layer (431,080 weights).

    Args:
        in_channels: Number of channels of an image.
        num_classes: Number of outputs.
        image_size: Height and width of an image, at least 16; 28 for MNIST, 32 for CIFAR.
        dropout: Probability of dropping an input of either dense layer; 0 adds no dropout
            modules.
    """

    def __init__(
        self,
        in_channels: int = 1,
        num_classes: int = 10,
        image_size: int = 28,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_positive(in_channels=in_channels, num_classes=num_classes, image_size=image_size)
        check_dropout(dropout)
        if image_size < SMALLEST_IMAGE:
            raise ValueError(
                f"image_size must be at least {SMALLEST_IMAGE} for two 5x5 convolutions with "
                f"pooling, got {image_size}; use an mlp for smaller images"
            )
        first, second = CONVOLUTION_WIDTHS
        pixels = _size_after_features(image_size) ** 2
        self.conv1 = nn.Conv2d(in_channels, first, KERNEL_SIZE)
        self.conv2 = nn.Conv2d(first, second, KERNEL_SIZE)
        self.fc1 = nn.Linear(second * pixels, DENSE_WIDTH)
        self.fc2 = nn.Linear(DENSE_WIDTH, num_classes)
        self.dropout1 = nn.Dropout(dropout) if dropout > 0.0 else nn.Identity()
        self.dropout2 = nn.Dropout(dropout) if dropout > 0.0 else nn.Identity()

    def forward(self, images: Tensor) -> Tensor:
        """Return one row of logits for each image."""
        features = F.max_pool2d(F.relu(self.conv1(images)), 2)
        features = F.max_pool2d(F.relu(self.conv2(features)), 2)
        hidden = F.relu(self.fc1(self.dropout1(features.flatten(1))))
        return self.fc2(self.dropout2(hidden))


def _size_after_features(image_size: int) -> int:
    for _ in CONVOLUTION_WIDTHS:
        image_size = (image_size - KERNEL_SIZE + 1) // 2
    return image_size


models.register("lenet_300_100")(lenet_300_100)
models.register("lenet_5")(LeNet5)
