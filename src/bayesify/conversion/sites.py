"""The posteriors of a model by the names of the tensors they stand for."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from bayesify.conversion.layer_class import SUFFIX
from bayesify.conversion.posterior import Posterior


def posterior_paths(model: nn.Module) -> dict[Posterior, list[str]]:
    """Return every posterior with the names, such as "fc.weight", of the tensors it stands for.

    Tied tensors share a posterior, which then has several names.
    """
    paths: dict[Posterior, list[str]] = {}
    for prefix, module in model.named_modules():
        for name, child in module._modules.items():
            if isinstance(child, Posterior):
                path = f"{prefix}.{name}" if prefix else name
                paths.setdefault(child, []).append(path.removesuffix(SUFFIX))
    return paths


def named_posteriors(model: nn.Module) -> dict[str, Posterior]:
    """Return every posterior once, under its first name."""
    return {paths[0]: site for site, paths in posterior_paths(model).items()}


def replace_posteriors_(model: nn.Module, new: Mapping[Posterior, Posterior]) -> None:
    """Put posteriors in the place of others, wherever the model uses them."""
    for module in list(model.modules()):
        for name, child in module._modules.items():
            if isinstance(child, Posterior) and child in new:
                module._modules[name] = new[child]
