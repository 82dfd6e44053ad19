"""U-Net: a class for every pixel of an image, from features at several resolutions.

Reference: Ronneberger et al. (2015), "U-Net: convolutional networks for biomedical image
segmentation"; with padded convolutions and batch normalisation, as it is mostly used since.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesify.models.catalogue import models
from bayesify.models.convolution import check_inputs, convolution, initialise
from bayesify.models.dense import check_positive
from bayesify.registry import unknown

UpSampling = Literal["bilinear", "transposed"]


class ConvolutionPair(nn.Module):
    """Two 3x3 convolutions, each followed by batch normalisation and ReLU.

    Args:
        in_channels: Number of channels that come in.
        middle_channels: Number of channels between the convolutions.
        out_channels: Number of channels that go out.
    """

    def __init__(self, in_channels: int, middle_channels: int, out_channels: int) -> None:
        super().__init__()
        self.conv1 = convolution(in_channels, middle_channels)
        self.bn1 = nn.BatchNorm2d(middle_channels)
        self.conv2 = convolution(middle_channels, out_channels)
        self.bn2 = nn.BatchNorm2d(out_channels)

    def forward(self, features: Tensor) -> Tensor:
        """Return features of the same height and width."""
        inner = F.relu(self.bn1(self.conv1(features)))
        return F.relu(self.bn2(self.conv2(inner)))


class BilinearStage(nn.Module):
    """Interpolate features to the size of a skip, join both, and convolve them twice.

    Args:
        in_channels: Number of channels that come from below; as many come with the skip.
        out_channels: Number of channels that go out.
    """

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.pair = ConvolutionPair(2 * in_channels, in_channels, out_channels)

    def forward(self, features: Tensor, skip: Tensor) -> Tensor:
        """Return features of the skip's height and width."""
        larger = F.interpolate(features, skip.shape[2:], mode="bilinear", align_corners=False)
        return self.pair(torch.cat([skip, larger], dim=1))


class TransposedStage(nn.Module):
    """Enlarge features by a 2x2 transposed convolution, join the skip, and convolve twice.

    Args:
        in_channels: Number of channels that come from below; half as many come with the skip.
        out_channels: Number of channels that go out, half as many.
    """

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(in_channels, out_channels, 2, stride=2)
        self.pair = ConvolutionPair(in_channels, out_channels, out_channels)

    def forward(self, features: Tensor, skip: Tensor) -> Tensor:
        """Return features of the skip's height and width."""
        larger = self.up(features)
        # Pooling drops the last row and column of an odd side; zeros take their place.
        missing = [skip.shape[axis] - larger.shape[axis] for axis in (2, 3)]
        larger = F.pad(larger, (0, missing[1], 0, missing[0]))
        return self.pair(torch.cat([skip, larger], dim=1))


class UNet(nn.Module):
    """Stages that halve an image, stages that enlarge it again beside them, and a 1x1 head.

    Any height and width of at least `2**depth` will do; multiples of it lose no pixel in between.

    Args:
        num_classes: Number of outputs of each pixel.
        in_channels: Number of channels of an image.
        width: Number of channels of the first stage; it doubles with each stage below.
        depth: Number of times an image is halved; there is one stage more on the way down.
        up: How features are enlarged: "transposed" by convolutions with weights of their own, or
            "bilinear" by interpolation, for which the lowest stage and those above it on the way
            up give half as many channels, so that a skip brings as many as come from below.
    """

    def __init__(
        self,
        num_classes: int = 11,
        in_channels: int = 3,
        width: int = 64,
        depth: int = 4,
        up: UpSampling = "transposed",
    ) -> None:
        super().__init__()
        check_positive(num_classes=num_classes, in_channels=in_channels, width=width, depth=depth)
        if up not in ("bilinear", "transposed"):
            raise ValueError(unknown("way up of a U-Net", str(up), ("bilinear", "transposed")))
        self.depth = depth
        widths = [width * 2**level for level in range(depth + 1)]
        stage = BilinearStage if up == "bilinear" else TransposedStage
        # Channels on the way up, from the lowest stage's to those that the head reads.
        rising = [*widths[-2::-1], width] if up == "bilinear" else widths[::-1]
        falling = [*widths[:-1], rising[0]]
        self.down_stages = nn.ModuleList(
            map(ConvolutionPair, [in_channels, *falling], falling, falling)
        )
        self.up_stages = nn.ModuleList(map(stage, rising[:-1], rising[1:]))
        self.head = nn.Conv2d(width, num_classes, 1)
        self.apply(initialise)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits of shape (batch, classes, height, width)."""
        check_inputs("images", images, num_dimensions=2, smallest=2**self.depth)
        features, skips = images, []
        for stage in self.down_stages[:-1]:
            skips.append(stage(features))
            features = F.max_pool2d(skips[-1], 2)
        features = self.down_stages[-1](features)
        for stage, skip in zip(self.up_stages, reversed(skips), strict=True):
            features = stage(features, skip)
        return self.head(features)


models.register("unet")(UNet)
