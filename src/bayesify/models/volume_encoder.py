"""The contracting half of a 3-D U-Net, used to classify volumes.

Reference: Çiçek et al. (2016), "3D U-Net: learning dense volumetric segmentation from sparse
annotation"; with the widths and pools of Nazarovs et al. (2021), "Graph reparameterizations for
enabling 1000+ Monte Carlo iterations in Bayesian deep neural networks".
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from bayesify.models.catalogue import models
from bayesify.models.convolution import check_inputs, initialise
from bayesify.models.dense import check_positive


class VolumeLevel(nn.Module):
    """Two 3x3x3 convolutions, each followed by batch normalisation and ReLU.

    Args:
        in_channels: Number of channels that come in.
        out_channels: Number of channels of both convolutions.
    """

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv3d(in_channels, out_channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm3d(out_channels)
        self.conv2 = nn.Conv3d(out_channels, out_channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm3d(out_channels)

    def forward(self, features: Tensor) -> Tensor:
        """Return features of the same sides."""
        inner = F.relu(self.bn1(self.conv1(features)))
        return F.relu(self.bn2(self.conv2(inner)))


class VolumeEncoder(nn.Module):
    """Levels of convolutions with max pooling between them, then the mean and a linear layer.

    Args:
        num_classes: Number of outputs.
        in_channels: Number of channels of a volume.
        width: Number of channels of the first level; it doubles with each level.
        pools: Side of the pooling window after each level but the last. There is one level more
            than pools, and a volume's sides are at least their product: 24 for (3, 2, 2, 2).
    """

    def __init__(
        self,
        num_classes: int = 2,
        in_channels: int = 1,
        width: int = 16,
        pools: Sequence[int] = (3, 2, 2, 2),
    ) -> None:
        super().__init__()
        check_positive(num_classes=num_classes, in_channels=in_channels, width=width)
        check_positive(**{f"pools[{index}]": pool for index, pool in enumerate(pools)})
        self.pools = tuple(pools)
        channels = [in_channels, *(width * 2**level for level in range(len(self.pools) + 1))]
        self.levels = nn.ModuleList(map(VolumeLevel, channels[:-1], channels[1:]))
        self.linear = nn.Linear(channels[-1], num_classes)
        self.apply(initialise)

    def forward(self, volumes: Tensor) -> Tensor:
        """Return one row of logits for each volume of shape (channels, depth, height, width)."""
        check_inputs("volumes", volumes, num_dimensions=3, smallest=math.prod(self.pools))
        features = self.levels[0](volumes)
        for pool, level in zip(self.pools, self.levels[1:], strict=True):
            features = level(F.max_pool3d(features, pool))
        return self.linear(F.adaptive_avg_pool3d(features, 1).flatten(1))


models.register("volume_encoder")(VolumeEncoder)
