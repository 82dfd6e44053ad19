"""One forward, one draw: how long a sample of the weights lives.

A draw is taken when the converted model is entered and dropped when it is left, so a weight read
twice, tied weights and a module called twice all see the same sample. The draw stays reachable
for the backward pass that follows, because a gradient checkpoint calls its layers again there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import nn

from bayesify.conversion.posterior import Backward, How, KeptDraw, Posterior, posteriors


def hold_draw(sites: Sequence[Posterior]) -> list[Posterior]:
    """Begin a forward: draw every sampled site that no outer forward has drawn already."""
    entered = [site for site in sites if not site._held]
    for site in entered:
        site._held = True
        # A sharded parameter is whole only inside its own layer's forward: drawn there.
        if site.how == "sample" and not _is_sharded(site):
            site.value()
    return entered


def release_draw(entered: Sequence[Posterior]) -> None:
    """End a forward that `hold_draw` began."""
    if torch.is_grad_enabled() and not _is_transformed():
        _keep_for_backward(entered)
    for site in entered:
        site._draw = None
        site._held = False


def _keep_for_backward(entered: Sequence[Posterior]) -> None:
    backward = Backward()
    for site in entered:
        draw = site._draw
        if draw is None or not draw.requires_grad:
            continue
        draw.register_hook(lambda _: setattr(backward, "has_begun", True))
        is_ambiguous = site._kept is not None and not site._kept.backward.has_begun
        site._kept = KeptDraw(draw, backward, is_ambiguous)


def _is_transformed() -> bool:
    # Inside compile a checkpoint is part of the graph; inside torch.func no draw may escape.
    return (
        torch.compiler.is_compiling()
        or torch._C._functorch.peek_interpreter_stack() is not None
    )


def _is_sharded(site: Posterior) -> bool:
    # By name: importing the class costs a third of a second that most users never need.
    return any(type(parameter).__name__ == "DTensor" for parameter in site.parameters())


@contextmanager
def one_sample(model: nn.Module) -> Iterator[None]:
    """Hold one draw of the weights over several calls of the model.

    Useful where one sampled network must answer more than once, as in text generation.
    """
    entered = hold_draw(posteriors(model))
    try:
        yield
    finally:
        release_draw(entered)


@contextmanager
def forward_by(model: nn.Module, how: How) -> Iterator[None]:
    """Let every posterior travel as `how` says, and put each back afterwards."""
    sites = posteriors(model)
    before = [site.how for site in sites]
    for site in sites:
        site.how = "sample" if how == "local" and not site.can_be_local else how
    try:
        yield
    finally:
        for site, previous in zip(sites, before, strict=True):
            site.how = previous


def mean_weights(model: nn.Module) -> AbstractContextManager[None]:
    """Return a context in which every weight is its posterior mean: no noise, no draw."""
    return forward_by(model, "mean")
