"""What happens to a batch between memory and network: augmentation, then normalisation.

Both work on whole batches and are plain picklable objects, so that any `DataLoader` can use them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

BRIGHTEST_PIXEL = 255.0


@dataclass(frozen=True)
class Normalise:
    """Subtract the mean of each channel and divide by its standard deviation.

    Integer images are first scaled from 0..255 to 0..1; floating-point ones are taken as they
    are. The result is float32.

    Args:
        mean: Mean of each channel, on the scale 0..1.
        std: Standard deviation of each channel, on the scale 0..1.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std) or not self.mean:
            raise ValueError(
                "mean and std must have one value per channel each, "
                f"got {len(self.mean)} and {len(self.std)} values"
            )
        if not all(value > 0.0 for value in self.std):
            raise ValueError(f"std must be positive in every channel, got {self.std}")

    def __call__(self, images: Tensor) -> Tensor:
        """Return float32 images of shape (batch, channels, ...)."""
        if images.ndim < 2 or images.shape[1] != len(self.mean):
            raise ValueError(
                f"images must have shape (batch, {len(self.mean)}, ...) to be normalised by "
                f"{len(self.mean)} means, got {tuple(images.shape)}"
            )
        brightest = 1.0 if images.is_floating_point() else BRIGHTEST_PIXEL
        per_channel = (-1,) + (1,) * (images.ndim - 2)
        mean, std = (
            # Made on the CPU and sent without waiting: made on a GPU they would wait for its work.
            torch.tensor(values).to(images.device, non_blocking=True).view(per_channel)
            for values in (self.mean, self.std)
        )
        # One multiplication and one addition in place: half the memory traffic of the formula.
        return images.to(torch.float32, copy=True).mul_(1.0 / (brightest * std)).sub_(mean / std)


@dataclass(frozen=True)
class CropAndFlip:
    """Shift each image by up to `padding` pixels, and mirror it left to right, at random.

    Args:
        padding: Number of zero pixels added on every side before a crop of the original size.
        flip_probability: Probability that an image is mirrored.
        generator: Source of randomness, on the CPU; None takes torch's global generator, which a
            `DataLoader` seeds differently in each of its workers.
    """

    padding: int = 4
    flip_probability: float = 0.5
    generator: torch.Generator | None = None

    def __post_init__(self) -> None:
        if self.padding < 0:
            raise ValueError(f"padding must be 0 or more pixels, got {self.padding}")
        if not 0.0 <= self.flip_probability <= 1.0:
            raise ValueError(f"flip_probability must lie in [0, 1], got {self.flip_probability}")

    def __call__(self, images: Tensor) -> Tensor:
        """Return images of the same shape (batch, channels, height, width) and type."""
        if images.ndim != 4:
            raise ValueError(
                "images must have shape (batch, channels, height, width) to be cropped, "
                f"got {tuple(images.shape)}"
            )
        num_images, num_channels, height, width = images.shape
        padded = F.pad(images, (self.padding,) * 4)
        rows, columns = self._pixels(images)
        # A gather over flat pixel numbers does crop and flip in one pass.
        pixels = rows[:, :, None] * padded.shape[3] + columns[:, None, :]
        index = pixels.reshape(num_images, 1, height * width).expand(-1, num_channels, -1)
        return padded.flatten(2).gather(2, index).view(images.shape)

    def _pixels(self, images: Tensor) -> tuple[Tensor, Tensor]:
        num_images, _, height, width = images.shape
        device = images.device
        # Drawn on the CPU, wherever the images are: a run is the same on every device.
        shifts = torch.randint(0, 2 * self.padding + 1, (num_images, 2), generator=self.generator)
        is_flipped = torch.rand(num_images, 1, generator=self.generator) < self.flip_probability
        shifts, is_flipped = (each.to(device, non_blocking=True) for each in (shifts, is_flipped))
        rows = shifts[:, :1] + torch.arange(height, device=device)
        columns = torch.arange(width, device=device)
        columns = torch.where(is_flipped, width - 1 - columns, columns)
        return rows, shifts[:, 1:] + columns


@dataclass(frozen=True)
class Cutout:
    """Change images at random, then blank a square in each, whose centre may be any pixel.

    Reference: DeVries, Taylor (2017), "Improved regularization of convolutional neural networks
    with cutout".

    Args:
        first: What is done before, such as `CropAndFlip()`.
        size: Side of the square, in pixels; what lies outside of the image is cut off.
        fill: Value of each channel in the square, on the scale of the stored images.
        generator: Source of randomness, on the CPU; None takes torch's global generator.
    """

    first: Callable[[Tensor], Tensor]
    size: int
    fill: tuple[float, ...]
    generator: torch.Generator | None = None

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"size must be 1 or more pixels, got {self.size}")

    def __call__(self, images: Tensor) -> Tensor:
        """Return images of the same shape (batch, channels, height, width) and type."""
        images = self.first(images)
        if images.ndim != 4 or images.shape[1] != len(self.fill):
            raise ValueError(
                f"images must have shape (batch, {len(self.fill)}, height, width) to be blanked "
                f"by {len(self.fill)} values, got {tuple(images.shape)}"
            )
        is_blank = self._within(images, 2)[:, :, None] & self._within(images, 3)[:, None, :]
        fill = torch.tensor(self.fill).to(images.device, images.dtype, non_blocking=True)
        return torch.where(is_blank[:, None], fill.view(1, -1, 1, 1), images)

    def _within(self, images: Tensor, dim: int) -> Tensor:
        """Return which rows, or columns, of each image the square covers."""
        length = images.shape[dim]
        # Drawn on the CPU, wherever the images are: a run is the same on every device.
        centres = torch.randint(0, length, (len(images), 1), generator=self.generator)
        first = centres.to(images.device, non_blocking=True) - self.size // 2
        places = torch.arange(length, device=images.device)
        return (places >= first) & (places < first + self.size)


class PairTransform(ABC):
    """A change of inputs that targets follow, because they have the same positions."""

    @abstractmethod
    def __call__(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return a batch of inputs and their targets, changed together."""


@dataclass(frozen=True)
class FlipPairs(PairTransform):
    """Mirror images left to right at random, and their label maps with them.

    Args:
        probability: Probability that an image is mirrored.
        generator: Source of randomness, on the CPU; None takes torch's global generator.
    """

    probability: float = 0.5
    generator: torch.Generator | None = None

    def __post_init__(self) -> None:
        if not 0.0 <= self.probability <= 1.0:
            raise ValueError(f"probability must lie in [0, 1], got {self.probability}")

    def __call__(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return images (N, channels, height, width) and labels (N, height, width)."""
        if inputs.ndim != 4 or targets.shape != (len(inputs), *inputs.shape[2:]):
            raise ValueError(
                "inputs must have shape (batch, channels, height, width) and targets (batch, "
                "height, width) to be mirrored together, got "
                f"{tuple(inputs.shape)} and {tuple(targets.shape)}"
            )
        # Drawn on the CPU, wherever the images are: a run is the same on every device.
        is_flipped = torch.rand(len(inputs), generator=self.generator) < self.probability
        return _flipped(inputs, is_flipped), _flipped(targets, is_flipped)


def _flipped(maps: Tensor, is_flipped: Tensor) -> Tensor:
    chosen = is_flipped.to(maps.device, non_blocking=True).view(-1, *(1,) * (maps.ndim - 1))
    return torch.where(chosen, maps.flip(-1), maps)
