"""What adds noise in a pass: layers of random weights, and activations, each with a 0 behind it.

Derivatives in these zeros say what becomes of noise that enters there (`by_covariance`).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bayesify.conversion.posterior import Posterior, posteriors
from bayesify.moments import Moments
from bayesify.moments.moments import mean_of, variance_of
from bayesify.moments.watched_functions import functions_watched
from bayesify.prediction.layer_slopes import layers_to_watch, read_elsewhere, sites_of


class NoisyCall(NamedTuple):
    """One call of a layer that adds noise: what it was given, and a 0 added to what it returned."""

    layer: nn.Module
    given: Tensor
    given_variance: Tensor | None
    shift: Tensor


class Bend(NamedTuple):
    """One call of an activation: mean and variance before and after it, and a 0 added behind."""

    given: Tensor
    given_variance: Tensor
    mean: Tensor
    variance: Tensor
    shift: Tensor


@dataclass
class NoisyCalls:
    """What adds noise in a pass, and the posteriors whose noise entered it in other ways."""

    calls: list[NoisyCall] = field(default_factory=list)
    bends: list[Bend] = field(default_factory=list)
    elsewhere: set[Posterior] = field(default_factory=set)

    def reached(self) -> list[NoisyCall]:
        """Return the calls of layers whose tensors were read by such calls alone."""
        out_of_reach = self.out_of_reach()
        return [call for call in self.calls if not sites_of(call.layer) & out_of_reach]

    def out_of_reach(self) -> set[Posterior]:
        """Return the posteriors whose noise those calls do not tell."""
        found = set(self.elsewhere)
        layers = [sites_of(call.layer) for call in self.calls]
        while more := set[Posterior]().union(*(own for own in layers if own & found)) - found:
            found |= more
        return found

    def lead_with(self, number: int) -> bool:
        """Whether the first axis of all that is noted has so many entries."""
        shifts = [each.shift for each in (*self.calls, *self.bends)]
        return all(shift.ndim > 0 and len(shift) == number for shift in shifts)

    def before(self, x: Moments) -> Moments:
        """Let an activation's slope be asked for, where nothing before it has a gradient."""
        if x.expected.requires_grad:
            return x
        twin = copy.copy(x)
        twin.expected = x.expected.detach().requires_grad_()
        return twin

    def after(self, x: Moments, result: Moments) -> Moments:
        """Note an activation."""
        mean, variance = result.pair()
        shift = torch.zeros_like(mean).requires_grad_()
        self.bends.append(Bend(*x.pair(), mean, variance, shift))
        return Moments(mean + shift, variance)

    def note(self, layer: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        """Note a layer, as its hook."""
        if not torch.is_grad_enabled():
            raise RuntimeError(
                f"a covariance needs derivatives, and the model calls {layer} without gradients: "
                "take by='moments' or by='sample'"
            )
        shift = torch.zeros_like(mean_of(output)).requires_grad_()
        given = args[0] if args else kwargs["input"]
        self.calls.append(NoisyCall(layer, mean_of(given), variance_of(given), shift))
        return output + shift


@contextmanager
def noted(model: nn.Module) -> Iterator[NoisyCalls]:
    """Note what adds noise in a pass of moments with gradients."""
    layers = layers_to_watch(model)
    found = NoisyCalls()
    sites = [site for site in posteriors(model) if site.num_random]
    with read_elsewhere(layers, sites) as elsewhere, functions_watched(found):
        # After those of `read_elsewhere`, so that a layer is at work until it has returned.
        handles = [layer.register_forward_hook(found.note, with_kwargs=True) for layer in layers]
        try:
            yield found
        finally:
            for handle in handles:
                handle.remove()
            found.elsewhere |= elsewhere
