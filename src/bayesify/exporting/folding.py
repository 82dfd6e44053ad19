"""A converted model as a plain network with constants: what a deployed graph computes with.

Posteriors are stored for training: as a scale's inverse, at some positions only, beside an index.
A deployed graph should not unpack them at every call, so each is folded to a mean and a variance,
or a standard deviation, before anything is traced. What has no variance stays a plain weight.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from bayesify.batches import output_tensor
from bayesify.conversion.convert import revert
from bayesify.conversion.posterior import Posterior
from bayesify.conversion.sites import posterior_paths
from bayesify.moments import Moments

Fold = Callable[[Posterior], nn.Module]


class WeightMoments(nn.Module):
    """A random weight as its mean and its variance."""

    mean: Tensor
    variance: Tensor

    def __init__(self, posterior: Posterior) -> None:
        super().__init__()
        self.register_buffer("mean", _constant(posterior.dense_mean()))
        self.register_buffer("variance", _constant(_variance(posterior)))

    def forward(self) -> Any:
        """Return the moments that stand where the weight would."""
        return Moments(self.mean, self.variance)


class GaussianDraw(nn.Module):
    """A Gaussian weight, drawn anew at every call."""

    mean: Tensor
    std: Tensor

    def __init__(self, posterior: Posterior) -> None:
        super().__init__()
        self.register_buffer("mean", _constant(posterior.dense_mean()))
        self.register_buffer("std", _constant(_variance(posterior).sqrt()))

    def forward(self) -> Tensor:
        """Draw the weight."""
        return self.mean + self.std * torch.randn_like(self.mean)


class FamilyDraw(nn.Module):
    """A weight of any other family, drawn anew at every call by the family itself."""

    mean: Tensor
    positions: Tensor | None

    def __init__(self, posterior: Posterior) -> None:
        super().__init__()
        self.family = posterior.family
        self.register_buffer("mean", _constant(posterior.dense_mean()))
        self.register_buffer("positions", _random_positions(posterior))
        parameters = posterior.random_parameters()
        self.names = tuple(parameters)
        for name, value in parameters.items():
            self.register_buffer(f"parameter_{name}", _constant(value))

    def forward(self) -> Tensor:
        """Draw the weight."""
        parameters = {name: getattr(self, f"parameter_{name}") for name in self.names}
        deviation = self.family.deviation(parameters)
        if self.positions is None:
            return self.mean + deviation.view(self.mean.shape)
        flat = self.mean.flatten().index_add(0, self.positions, deviation.flatten())
        return flat.view(self.mean.shape)


def fold_draw(posterior: Posterior) -> nn.Module:
    """Return what draws a weight in a graph."""
    return (GaussianDraw if posterior.family.is_gaussian else FamilyDraw)(posterior)


class FoldedNetwork(nn.Module):
    """The plain network of a converted model, its random weights folded beside it.

    A call asks each folded weight for its value once, hands it to every layer that reads it, and
    returns the one output that the likelihood is about.

    Args:
        model: A converted model in evaluation mode.
        fold: What each random weight becomes; None leaves the mean weights.
        names: Keywords that the model takes its inputs by; None for inputs by position.
    """

    def __init__(self, model: nn.Module, fold: Fold | None, names: tuple[str, ...] | None) -> None:
        super().__init__()
        self.network = revert(model).requires_grad_(False)
        self.names = names
        self.weights = nn.ModuleList()
        self.num_random = 0
        self._owners: list[list[tuple[nn.Module, str]]] = []
        for posterior, paths in posterior_paths(model).items() if fold is not None else ():
            assert fold is not None
            if not bool((_variance(posterior) > 0).any()):
                continue
            self.num_random += posterior.num_random
            self.weights.append(fold(posterior))
            self._owners.append([_without_parameter(self.network, path) for path in paths])

    def forward(self, *inputs: Tensor) -> Any:
        """Return the output tensor, or its moments."""
        try:
            for weight, owners in zip(self.weights, self._owners, strict=True):
                value = weight()
                for module, name in owners:
                    setattr(module, name, value)
            if self.names is None:
                output = self.network(*inputs)
            else:
                output = self.network(**dict(zip(self.names, inputs, strict=True)))
        finally:
            for owners in self._owners:
                for module, name in owners:
                    _forget(module, name)
        return output_tensor(output, (Tensor, Moments))


def variance_problem(model: nn.Module) -> str | None:
    """Return which weight of a model has no finite variance, or None."""
    for posterior, paths in posterior_paths(model).items():
        if not bool(_variance(posterior).isfinite().all()):
            return f"{paths[0]} has a posterior without a finite variance ({posterior.family.name})"
    return None


def _variance(posterior: Posterior) -> Tensor:
    if posterior.is_tied_scale:
        # One number for many weights stays one; it is spread where it is used.
        return posterior.family.variance(posterior.random_parameters())
    return posterior.dense_variance()


def _random_positions(posterior: Posterior) -> Tensor | None:
    """Return where the random entries are in the whole tensor, flat; None for everywhere."""
    live, random = posterior.index, posterior.random_index
    if live is None or random is None:
        known = random if live is None else live
        # Eight bytes each: ONNX has no other positions.
        return None if known is None else known.long()
    return live.long()[random.long()]


def _constant(tensor: Tensor) -> Tensor:
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def _without_parameter(network: nn.Module, path: str) -> tuple[nn.Module, str]:
    parent, _, name = path.rpartition(".")
    module = network.get_submodule(parent)
    del module._parameters[name]
    _forget(module, name)
    return module, name


def _forget(module: nn.Module, name: str) -> None:
    # Set before it is deleted: a recurrent layer keeps a list of what was set.
    setattr(module, name, None)
    delattr(module, name)
