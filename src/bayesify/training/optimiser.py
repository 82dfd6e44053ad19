"""Optimisers: the user's choice for means and plain weights, one of their own for scales.

A scale's gradient carries the factor 1/N and its parameter lives on a log-like axis: an optimiser
tuned for means, plain SGD above all, leaves every scale where it started.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from bayesify.conversion.posterior import posteriors
from bayesify.registry import Registry
from bayesify.training.settings import FitSettings

optimizers: Registry[type[Optimizer]] = Registry("optimizer")
optimizers.register("adam")(torch.optim.Adam)
optimizers.register("adamw")(torch.optim.AdamW)
optimizers.register("sgd")(torch.optim.SGD)
optimizers.register("rmsprop")(torch.optim.RMSprop)
optimizers.register("adagrad")(torch.optim.Adagrad)


def make_optimizers(
    model: nn.Module, likelihood: nn.Module, settings: FitSettings
) -> list[Optimizer]:
    """Return the optimiser of locations and, where there are scales, the optimiser of scales."""
    scales = unique(entry for site in posteriors(model) for entry in site.scale_parameters())
    scales += likelihood.parameters()  # a learned noise variance is a scale too
    scale_ids = {id(entry) for entry in scales}
    # A pruned weight is stored as a list of entries, and is a matrix all the same.
    matrices = {
        id(entry)
        for site in posteriors(model)
        if len(site.shape) > 1
        for entry in site.parameters()
    }
    decayed, plain = [], []
    for parameter in unique(model.parameters()):
        if id(parameter) in scale_ids or not parameter.requires_grad:
            continue
        # Biases and norms are vectors: decaying them only shifts the function.
        is_matrix = parameter.ndim > 1 or id(parameter) in matrices
        (decayed if is_matrix else plain).append(parameter)
    groups = [
        {"params": decayed, "weight_decay": settings.weight_decay},
        {"params": plain, "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    optimizers_made = [_build(settings, groups)] if groups else []
    trainable = [entry for entry in scales if entry.requires_grad]
    if not groups and not trainable:
        raise ValueError("the model has nothing to train: every parameter is frozen")
    if trainable:
        group = {"params": trainable, "weight_decay": 0.0}
        name, rate = settings.scale_optimizer, settings.scale_learning_rate
        optimizers_made.append(_named(name, [group], rate, settings))
    for optimizer in optimizers_made:
        for group in optimizer.param_groups:
            group["base_lr"] = group["lr"]
    return optimizers_made


def set_learning_rate(optimizer: Any, factor: float) -> None:
    """Multiply every group's starting learning rate by a schedule's factor."""
    for group in optimizer.param_groups:
        group["lr"] = group["base_lr"] * factor


def unique(parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    """Return parameters in order, each once."""
    return list({id(parameter): parameter for parameter in parameters}.values())


def _build(settings: FitSettings, groups: list[dict[str, Any]]) -> Optimizer:
    choice = settings.optimizer
    if callable(choice):
        return choice(groups)
    return _named(choice, groups, settings.learning_rate, settings)


def _named(
    name: str, groups: list[dict[str, Any]], rate: float, settings: FitSettings
) -> Optimizer:
    kind = optimizers[name]
    options: dict[str, Any] = {"lr": rate}
    if name == "sgd":
        options |= {"momentum": 0.9, "nesterov": True}
    parameters = [entry for group in groups for entry in group["params"]]
    return kind(groups, **options, **_speed(kind, parameters, settings))


def _speed(
    kind: type[Optimizer], parameters: list[nn.Parameter], settings: FitSettings
) -> dict[str, Any]:
    """Return the options that make a step of Adam one call, where torch makes ten, or ten a tensor.

    Not of SGD, which would refuse a parameter whose first gradient comes late. Nor with a scaled
    loss: such a step takes the scale out itself, too late to clip gradients.
    """
    has_one = kind in (torch.optim.Adam, torch.optim.AdamW)
    is_plain = all(type(p) is nn.Parameter and p.is_floating_point() for p in parameters)
    is_there = all(p.device.type in ("cpu", "cuda") for p in parameters)
    is_scaled = settings.precision in ("16", "16-mixed")
    return {"fused": True} if has_one and is_plain and is_there and not is_scaled else {}
