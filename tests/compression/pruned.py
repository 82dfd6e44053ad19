"""Small networks with ways for units to flow, and a way to prune chosen weights of them."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesify.conversion.layer_class import SUFFIX, posterior_of
from bayesify.conversion.narrow import existing, narrowed
from bayesify.conversion.posterior import posteriors
from bayesify.conversion.sites import replace_posteriors_


def dense() -> nn.Module:
    layers = nn.Linear(5, 8), nn.ReLU(), nn.Dropout(0.0), nn.Linear(8, 7), nn.Tanh()
    return nn.Sequential(*layers, nn.Linear(7, 3))


class Convolutional(nn.Module):
    """A LeNet in small, with a functional forward."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(2, 6, 3)
        self.conv2 = nn.Conv2d(6, 5, 3, padding=1)
        self.fc1 = nn.Linear(5 * 3 * 2, 9)
        self.fc2 = nn.Linear(9, 3)

    def forward(self, images: Tensor) -> Tensor:
        features = F.max_pool2d(F.relu(self.conv1(images)), 2)
        features = F.relu(self.conv2(features))
        return self.fc2(F.leaky_relu(self.fc1(features.flatten(1)), 0.2))


class Viewed(Convolutional):
    """The same with the older idiom for flattening, whose batch size is read early."""

    def forward(self, images: Tensor) -> Tensor:
        features = F.max_pool2d(torch.relu(self.conv1(images)), 2)
        features = self.conv2(features)
        num_images = features.shape[0]
        features = features.relu_().view(num_images, -1)
        return self.fc2(F.gelu(self.fc1(features)))


def normalised() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1, bias=False),
        nn.BatchNorm2d(6),
        nn.ReLU(inplace=True),
        nn.Conv2d(6, 5, 3),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.BatchNorm1d(5 * 3 * 2),
        nn.SiLU(),
        nn.Linear(5 * 3 * 2, 4),
        nn.BatchNorm1d(4, affine=False),
        nn.ReLU(),
        nn.Linear(4, 3),
    )


class TwoHeads(nn.Module):
    """Two layers read the units of one."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(5, 8)
        self.left = nn.Linear(8, 2)
        self.right = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = torch.sigmoid(self.body(x)).tanh()
        return self.left(hidden), self.right(F.relu(hidden))


class Averaged(nn.Module):
    """Convolutions of one axis, then the mean over it."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Conv1d(2, 6, 3)
        self.decode = nn.ConvTranspose1d(6, 5, 3, stride=2)
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.elu(self.decode(F.hardtanh(self.encode(x)))).mean(-1))


def words() -> nn.Module:
    return nn.Sequential(nn.Embedding(7, 6), nn.Tanh(), nn.Linear(6, 3))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "dense": (dense, lambda: torch.randn(9, 5)),
    "sequences": (dense, lambda: torch.randn(3, 4, 5)),
    "convolutional": (Convolutional, lambda: torch.randn(4, 2, 8, 6)),
    "viewed": (Viewed, lambda: torch.randn(4, 2, 8, 6)),
    "normalised": (normalised, lambda: torch.randn(4, 2, 8, 6)),
    "two_heads": (TwoHeads, lambda: torch.randn(9, 5)),
    "averaged": (Averaged, lambda: torch.randn(4, 2, 9)),
    "words": (words, lambda: torch.randint(7, (4, 3))),
}


def prune_(layer: nn.Module, kept: Tensor, name: str = "weight") -> None:
    """Remove the entries of one tensor that are not kept, a mask that broadcasts to it."""
    posterior = posterior_of(layer, name)
    assert posterior is not None
    mask = existing(posterior, kept.expand(posterior.shape).contiguous())
    layer._modules[name + SUFFIX] = narrowed(posterior, mask)


def prune_most_(model: nn.Module, share: float = 0.3) -> None:
    """Keep a random share of all entries, and none at all of some rows."""
    smaller = {}
    for posterior in posteriors(model):
        rows = posterior.shape[:1] + (1,) * (len(posterior.shape) - 1)
        kept = (torch.rand(posterior.shape) < share) & (torch.rand(rows) < 0.8)
        smaller[posterior] = narrowed(posterior, existing(posterior, kept))
    replace_posteriors_(model, smaller)


def prune_input_(layer: nn.Module, unit: int, block: int = 1) -> None:
    """Remove all weights that read one unit."""
    posterior = posterior_of(layer, "weight")
    assert posterior is not None
    axis = 0 if isinstance(layer, nn.ConvTranspose1d) else 1
    shape = [1] * len(posterior.shape)
    shape[axis] = -1
    inputs = torch.arange(posterior.shape[axis]) // block != unit
    prune_(layer, inputs.view(shape))


def prune_output_(layer: nn.Module, unit: int) -> None:
    """Remove all weights that feed one unit."""
    posterior = posterior_of(layer, "weight")
    assert posterior is not None
    axis = 1 if isinstance(layer, nn.ConvTranspose1d | nn.Embedding) else 0
    shape = [1] * len(posterior.shape)
    shape[axis] = -1
    prune_(layer, (torch.arange(posterior.shape[axis]) != unit).view(shape))
