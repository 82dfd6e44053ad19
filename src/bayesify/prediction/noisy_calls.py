"""What adds noise in a pass: layers of random weights, and activations, each with a 0 behind it.

Derivatives in these zeros say what becomes of noise that enters there (`by_covariance`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bayesify.conversion.posterior import Posterior, posteriors
from bayesify.moments import Moments, precise_dtype
from bayesify.moments.moments import mean_of, variance_of
from bayesify.moments.watched_functions import functions_watched
from bayesify.prediction.by_linearisation import derivable_attention
from bayesify.prediction.layer_slopes import layers_to_watch, read_elsewhere, sites_of


class NoisyCall(NamedTuple):
    """One call of a layer that adds noise: what it was given, and a 0 added to what it returned."""

    layer: nn.Module
    given: Tensor
    given_variance: Tensor | None
    shift: Tensor


class Bend(NamedTuple):
    """One call of an activation: the variance behind it that is no multiple of what came, and a 0.

    The 0 is added to what it returned.
    """

    own_variance: Tensor
    shift: Tensor


@dataclass
class NoisyCalls:
    """What adds noise in a pass, and the posteriors whose noise entered it in other ways.

    Unless what is found is to have derivatives itself, variances are held: what noise does to
    means is told by the graph that is left, and that is one of means alone, as cheap to go back
    through as the plain network's. That noise also changes later variances, and they the means
    after them, moves a variance of outputs by about 0.1 % in trained networks.
    """

    has_derivatives: bool = False
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

    def around(self, x: Moments, function: Callable[[Moments], Moments]) -> Moments:
        """Note an activation, which passes on what it does on average over its noise."""
        given = copy.copy(x)
        if not self.has_derivatives:
            given.variance_or_none = x.variance.detach()
        if not (self.has_derivatives and x.expected.requires_grad):
            given.expected = x.expected.detach().requires_grad_()
        with torch.enable_grad():
            mean, variance = function(given).pair()
            (gain,) = torch.autograd.grad(
                mean.sum(), given.expected, create_graph=self.has_derivatives
            )
            dtype = precise_dtype(variance.dtype)
            passed_on = gain.to(dtype).square() * given.variance.to(dtype)
            own = (variance.to(dtype) - passed_on).clamp_min(0.0)
        shift = torch.zeros_like(mean).requires_grad_()
        self.bends.append(Bend(own, shift))
        if self.has_derivatives:
            return Moments(mean + shift, variance)
        mean = _PassedOn.apply(x.expected, mean.detach(), gain)
        return Moments(mean + shift, variance.detach())

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
        if self.has_derivatives or not isinstance(output, Moments):
            return output + shift
        variance = output.variance_or_none
        return Moments(output.expected + shift, None if variance is None else variance.detach())


class _PassedOn(torch.autograd.Function):
    """What an activation returns, with the derivative that it has on average over its noise."""

    @staticmethod
    def forward(ctx: Any, given: Tensor, mean: Tensor, gain: Tensor) -> Tensor:
        del given
        ctx.save_for_backward(gain)
        return mean.view_as(mean)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (gain,) = ctx.saved_tensors
        return gradient * gain, None, None


@contextmanager
def noted(model: nn.Module, *, has_derivatives: bool = False) -> Iterator[NoisyCalls]:
    """Note what adds noise in a pass of moments with gradients.

    Args:
        model: The model.
        has_derivatives: Whether what is found is to have derivatives itself.
    """
    layers = layers_to_watch(model)
    found = NoisyCalls(has_derivatives)
    sites = [site for site in posteriors(model) if site.num_random]
    with (
        derivable_attention(),
        read_elsewhere(layers, sites) as elsewhere,
        functions_watched(found),
    ):
        # After those of `read_elsewhere`, so that a layer is at work until it has returned.
        handles = [layer.register_forward_hook(found.note, with_kwargs=True) for layer in layers]
        try:
            yield found
        finally:
            for handle in handles:
                handle.remove()
            found.elsewhere |= elsewhere
