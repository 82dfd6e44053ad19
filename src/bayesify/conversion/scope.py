"""One forward, one draw: how long a sample of the weights lives.

A draw is taken when the converted model is entered and dropped when it is left, so a weight read
twice, tied weights and a module called twice all see the same sample.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import nn
from torch._C._functorch import peek_interpreter_stack

from bayesify.conversion.posterior import How, Posterior, posteriors
from bayesify.conversion.recall import Pass


def not_held(sites: Sequence[Posterior]) -> list[Posterior]:
    """Return the sites that no outer forward has drawn already."""
    return [site for site in sites if not site._held]


def hold_draw(entered: Sequence[Posterior]) -> None:
    """Begin a forward: draw every sampled site."""
    made_in = Pass() if torch.is_grad_enabled() and not _is_transformed() else None
    for site in entered:
        site._held = True
        site._pass = made_in
        # A sharded parameter is whole only inside its own layer's forward: drawn there.
        if site.how == "sample" and not _is_sharded(site):
            site.value()


def remember_draw(
    sites: Sequence[Posterior], entered: Sequence[Posterior], output: Any = None
) -> None:
    """Note a forward that went well, for gradient checkpoints in its backward pass."""
    if torch.compiler.is_compiling():
        return
    for made_in in {site._pass for site in sites}:
        if made_in is not None:
            made_in.watch(output)
    for site in entered:
        site.remember()


def release_draw(entered: Sequence[Posterior]) -> None:
    """End a forward that `hold_draw` began."""
    for site in entered:
        site._held = False
        site._draw = site._pass = site._state = None


def _is_transformed() -> bool:
    # Inside compile a checkpoint is part of the graph; inside torch.func no draw may escape.
    return torch.compiler.is_compiling() or peek_interpreter_stack() is not None


def _is_sharded(site: Posterior) -> bool:
    # By name: importing the class costs a third of a second that most users never need.
    return any(type(parameter).__name__ == "DTensor" for parameter in site.parameters())


@contextmanager
def one_sample(model: nn.Module) -> Iterator[None]:
    """Hold one draw of the weights over several calls of the model.

    Useful where one sampled network must answer more than once, as in text generation.
    """
    sites = posteriors(model)
    entered = not_held(sites)
    before: list[How] = [site.how for site in entered]
    try:
        for site in entered:
            # Noise on a layer's outputs belongs to one call: here the weights are drawn.
            if site.how == "local":
                site.how = "sample"
        hold_draw(entered)
        yield
        remember_draw(sites, entered)
    finally:
        release_draw(entered)
        for site, how in zip(entered, before, strict=True):
            site.how = how


@contextmanager
def forward_by(model: nn.Module, how: How) -> Iterator[None]:
    """Let every posterior travel as `how` says, and put each back afterwards."""
    sites = posteriors(model)
    before: list[How] = [site.how for site in sites]
    try:
        for site in sites:
            is_out_of_reach = how == "local" and not site.can_be_local
            site.how = "sample" if is_out_of_reach else how
        yield
    finally:
        for site, previous in zip(sites, before, strict=True):
            site.how = previous


def mean_weights(model: nn.Module) -> AbstractContextManager[None]:
    """Return a context in which every weight is its posterior mean: no noise, no draw."""
    return forward_by(model, "mean")
