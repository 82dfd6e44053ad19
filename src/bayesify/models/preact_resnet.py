"""Residual networks that normalise and rectify before each convolution, for small images.

Nothing lies on the path of the shortcuts but one projection per change of shape, and a last
normalisation and ReLU follow the last block, as in the paper. (A common CIFAR port leaves those
two out; its networks have 2 weights less per channel of the last stage.)

Reference: He et al. (2016), "Identity mappings in deep residual networks", figure 1b.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from bayesify.models.catalogue import models
from bayesify.models.convolution import convolution, initialise
from bayesify.models.dense import check_positive


class PreActBlock(nn.Module):
    """Add two 3x3 convolutions, each after normalisation and ReLU, to a shortcut.

    Args:
        in_channels: Number of channels that come in.
        channels: Number of channels of both convolutions, and that go out.
        stride: Stride of the first convolution.
    """

    expansion = 1

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(in_channels)
        self.conv1 = convolution(in_channels, channels, stride=stride)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv2 = convolution(channels, channels)
        self.shortcut = _projection(in_channels, channels, stride)

    def forward(self, features: Tensor) -> Tensor:
        """Return the block's features."""
        active = F.relu(self.bn1(features))
        # A projection reads what the first convolution reads; an identity must not.
        kept = features if self.shortcut is None else self.shortcut(active)
        inner = self.conv1(active)
        return self.conv2(F.relu(self.bn2(inner))) + kept


class PreActBottleneck(nn.Module):
    """Add 1x1, 3x3 and 1x1 convolutions, each after normalisation and ReLU, to a shortcut.

    Args:
        in_channels: Number of channels that come in.
        channels: Number of channels of the 3x3 convolution; four times as many go out.
        stride: Stride of the 3x3 convolution.
    """

    expansion = 4

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        out_channels = self.expansion * channels
        self.bn1 = nn.BatchNorm2d(in_channels)
        self.conv1 = convolution(in_channels, channels, kernel_size=1)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv2 = convolution(channels, channels, stride=stride)
        self.bn3 = nn.BatchNorm2d(channels)
        self.conv3 = convolution(channels, out_channels, kernel_size=1)
        self.shortcut = _projection(in_channels, out_channels, stride)

    def forward(self, features: Tensor) -> Tensor:
        """Return the block's features."""
        active = F.relu(self.bn1(features))
        kept = features if self.shortcut is None else self.shortcut(active)
        inner = self.conv2(F.relu(self.bn2(self.conv1(active))))
        return self.conv3(F.relu(self.bn3(inner))) + kept


class PreActResNet(nn.Module):
    """Stack stages of pre-activation blocks; each stage after the first halves the image.

    Args:
        block: Which block to stack.
        num_blocks: Number of blocks of each stage.
        num_classes: Number of outputs.
        in_channels: Number of channels of an image.
        width: Number of channels of the stem; those of a stage's 3x3 convolutions start from it
            and double with each stage.
    """

    def __init__(
        self,
        block: type[PreActBlock] | type[PreActBottleneck],
        num_blocks: Sequence[int],
        num_classes: int = 10,
        in_channels: int = 3,
        width: int = 64,
    ) -> None:
        super().__init__()
        check_positive(num_classes=num_classes, in_channels=in_channels, width=width)
        self.conv1 = convolution(in_channels, width)
        self.stage_names = tuple(f"layer{index}" for index in range(1, len(num_blocks) + 1))
        channels = width
        for index, (name, count) in enumerate(zip(self.stage_names, num_blocks, strict=True)):
            inner, stride = width * 2**index, min(index, 1) + 1
            first = block(channels, inner, stride)
            channels = inner * block.expansion
            others = (block(channels, inner, 1) for _ in range(count - 1))
            self.add_module(name, nn.Sequential(first, *others))
        self.bn = nn.BatchNorm2d(channels)
        self.linear = nn.Linear(channels, num_classes)
        self.apply(initialise)

    def forward(self, images: Tensor) -> Tensor:
        """Return one row of logits for each image."""
        features = self.conv1(images)
        for name in self.stage_names:
            features = self.get_submodule(name)(features)
        features = F.relu(self.bn(features))
        return self.linear(F.adaptive_avg_pool2d(features, 1).flatten(1))


def preact_resnet_18(num_classes: int = 10, in_channels: int = 3, width: int = 64) -> PreActResNet:
    """Return PreActResNet-18, of 8 basic blocks; see `PreActResNet`."""
    return PreActResNet(PreActBlock, (2, 2, 2, 2), num_classes, in_channels, width)


def preact_resnet_34(num_classes: int = 10, in_channels: int = 3, width: int = 64) -> PreActResNet:
    """Return PreActResNet-34, of 16 basic blocks; see `PreActResNet`."""
    return PreActResNet(PreActBlock, (3, 4, 6, 3), num_classes, in_channels, width)


def preact_resnet_50(num_classes: int = 10, in_channels: int = 3, width: int = 64) -> PreActResNet:
    """Return PreActResNet-50, of 16 bottleneck blocks; see `PreActResNet`."""
    return PreActResNet(PreActBottleneck, (3, 4, 6, 3), num_classes, in_channels, width)


def preact_resnet_101(num_classes: int = 10, in_channels: int = 3, width: int = 64) -> PreActResNet:
    """Return PreActResNet-101, of 33 bottleneck blocks; see `PreActResNet`."""
    return PreActResNet(PreActBottleneck, (3, 4, 23, 3), num_classes, in_channels, width)


def preact_resnet_152(num_classes: int = 10, in_channels: int = 3, width: int = 64) -> PreActResNet:
    """Return PreActResNet-152, of 50 bottleneck blocks; see `PreActResNet`."""
    return PreActResNet(PreActBottleneck, (3, 8, 36, 3), num_classes, in_channels, width)


def _projection(in_channels: int, out_channels: int, stride: int) -> nn.Conv2d | None:
    if stride == 1 and in_channels == out_channels:
        return None
    return convolution(in_channels, out_channels, kernel_size=1, stride=stride)


models.register("preact_resnet_18")(preact_resnet_18)
models.register("preact_resnet_34")(preact_resnet_34)
models.register("preact_resnet_50")(preact_resnet_50)
models.register("preact_resnet_101")(preact_resnet_101)
models.register("preact_resnet_152")(preact_resnet_152)
