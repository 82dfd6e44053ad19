"""Residual networks for small images.

One class covers both families: ResNet-18 with projection shortcuts, and the 6n+2-layer networks
made for CIFAR, whose shortcuts have no weights. State-dict names are those of the published
CIFAR-10 checkpoints (`conv1`, `bn1`, `layer1.0.conv1`, ..., `linear`).

Reference: He et al. (2016), "Deep residual learning for image recognition", section 4.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from bayesify.models.catalogue import models
from bayesify.models.dense import check_positive

Shortcut = Literal["padding", "projection"]


class PaddingShortcut(nn.Module):
    """Subsample an image and add zero channels on both sides (option A of the paper).

    Args:
        in_channels: Number of channels that come in.
        out_channels: Number of channels that go out.
        stride: Step between the pixels that are kept.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        added = out_channels - in_channels
        self.channels_before = added // 2
        self.channels_after = added - added // 2
        self.stride = stride

    def forward(self, features: Tensor) -> Tensor:
        """Return the smaller image with more channels."""
        kept = features[:, :, :: self.stride, :: self.stride]
        return F.pad(kept, (0, 0, 0, 0, self.channels_before, self.channels_after))


class BasicBlock(nn.Module):
    """Add two 3x3 convolutions with batch normalisation to a shortcut.

    Args:
        in_channels: Number of channels that come in.
        out_channels: Number of channels that go out.
        stride: Stride of the first convolution.
        shortcut: What matches the shapes when they differ: "padding" or "projection".
    """

    def __init__(
        self, in_channels: int, out_channels: int, stride: int, shortcut: Shortcut
    ) -> None:
        super().__init__()
        self.conv1 = _convolution(in_channels, out_channels, stride)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.conv2 = _convolution(out_channels, out_channels)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.shortcut = _shortcut(in_channels, out_channels, stride, shortcut)

    def forward(self, features: Tensor) -> Tensor:
        """Return the block's features."""
        inner = F.relu(self.bn1(self.conv1(features)))
        return F.relu(self.bn2(self.conv2(inner)) + self.shortcut(features))


class ResNet(nn.Module):
    """Stack stages of basic blocks; each stage after the first halves the image.

    Args:
        num_blocks: Number of blocks of each stage.
        width: Number of channels of the stem and the first stage; it doubles with each stage.
        shortcut: What matches the shapes when they differ: "padding" or "projection".
        num_classes: Number of outputs.
        in_channels: Number of channels of an image.
    """

    def __init__(
        self,
        num_blocks: Sequence[int],
        width: int,
        shortcut: Shortcut,
        num_classes: int = 10,
        in_channels: int = 3,
    ) -> None:
        super().__init__()
        check_positive(width=width, num_classes=num_classes, in_channels=in_channels)
        self.conv1 = _convolution(in_channels, width)
        self.bn1 = nn.BatchNorm2d(width)
        self.stage_names = tuple(f"layer{index}" for index in range(1, len(num_blocks) + 1))
        channels = width
        for index, (name, count) in enumerate(zip(self.stage_names, num_blocks, strict=True)):
            out_channels = width * 2**index
            self.add_module(
                name, _stage(channels, out_channels, count, min(index, 1) + 1, shortcut)
            )
            channels = out_channels
        self.linear = nn.Linear(channels, num_classes)
        self.apply(_initialise)

    def forward(self, images: Tensor) -> Tensor:
        """Return one row of logits for each image."""
        features = F.relu(self.bn1(self.conv1(images)))
        for name in self.stage_names:
            features = self.get_submodule(name)(features)
        return self.linear(F.adaptive_avg_pool2d(features, 1).flatten(1))


def resnet_18(num_classes: int = 10, in_channels: int = 3, width: int = 64) -> ResNet:
    """Return ResNet-18 with a 3x3 stem and no max pooling, for images of about 32x32.

    Args:
        num_classes: Number of outputs.
        in_channels: Number of channels of an image.
        width: Number of channels of the first of four stages.
    """
    return ResNet((2, 2, 2, 2), width, "projection", num_classes, in_channels)


def cifar_resnet(
    depth: int = 20, num_classes: int = 10, in_channels: int = 3, width: int = 16
) -> ResNet:
    """Return the CIFAR residual network of a given depth.

    Args:
        depth: Number of layers with weights, 6n + 2: 20, 32, 44, 56, 110, ...
        num_classes: Number of outputs.
        in_channels: Number of channels of an image.
        width: Number of channels of the first of three stages.
    """
    num_blocks, remainder = divmod(depth - 2, 6)
    if num_blocks < 1 or remainder:
        raise ValueError(f"depth must be 6n + 2 (8, 14, 20, 26, 32, ...), got {depth}")
    return ResNet((num_blocks,) * 3, width, "padding", num_classes, in_channels)


def resnet_20(num_classes: int = 10, in_channels: int = 3, width: int = 16) -> ResNet:
    """Return the CIFAR residual network with 20 layers; see `cifar_resnet`."""
    return cifar_resnet(20, num_classes, in_channels, width)


def resnet_56(num_classes: int = 10, in_channels: int = 3, width: int = 16) -> ResNet:
    """Return the CIFAR residual network with 56 layers; see `cifar_resnet`."""
    return cifar_resnet(56, num_classes, in_channels, width)


def _convolution(in_channels: int, out_channels: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(in_channels, out_channels, 3, stride=stride, padding=1, bias=False)


def _shortcut(in_channels: int, out_channels: int, stride: int, kind: Shortcut) -> nn.Module:
    if stride == 1 and in_channels == out_channels:
        return nn.Identity()
    if kind == "padding":
        return PaddingShortcut(in_channels, out_channels, stride)
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, 1, stride=stride, bias=False),
        nn.BatchNorm2d(out_channels),
    )


def _stage(
    in_channels: int, out_channels: int, num_blocks: int, stride: int, shortcut: Shortcut
) -> nn.Sequential:
    first = BasicBlock(in_channels, out_channels, stride, shortcut)
    others = (BasicBlock(out_channels, out_channels, 1, shortcut) for _ in range(num_blocks - 1))
    return nn.Sequential(first, *others)


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


models.register("cifar_resnet")(cifar_resnet)
models.register("resnet_18")(resnet_18)
models.register("resnet_20")(resnet_20)
models.register("resnet_56")(resnet_56)
