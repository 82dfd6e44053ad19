"""What adds noise in a pass: random weights, activations, uncertain inputs; and a 0 behind each.

Derivatives in these zeros say what becomes of noise that enters there (`by_covariance`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bayesify.batches import map_moments
from bayesify.conversion.posterior import Posterior, posteriors
from bayesify.moments import Moments, precise_dtype
from bayesify.moments.moments import mean_of, variance_of
from bayesify.moments.watched_functions import functions_watched, without_gradient
from bayesify.prediction.by_linearisation import derivable_attention
from bayesify.prediction.layer_slopes import layers_to_watch, read_elsewhere, sites_of


class NoisyCall(NamedTuple):
    """One call of a layer that adds noise: what it was given, and a 0 added to what it returned."""

    layer: nn.Module
    given: Tensor
    given_variance: Tensor | None
    shift: Tensor


class Bend(NamedTuple):
    """Noise of which each entry has its own, and a 0 that is added where it enters.

    The part of the variance behind an activation that is no multiple of what came, and the variance
    of uncertain inputs.
    """

    own_variance: Tensor
    shift: Tensor


@dataclass
class NoisyCalls:
    """What adds noise in a pass, and the posteriors whose noise entered it in other ways.

    Attributes:
        has_derivatives: Whether what is found is to have derivatives itself.
        paths: Names of the model's modules, for errors.
        shifts: Tensors that had a 0 added whenever they were read, and that 0.
        calls: The layers that added noise.
        bends: The activations and the uncertain inputs.
        elsewhere: Posteriors that were read by other functions.
        has_inputs: Whether the model's inputs are noted: it may call itself.
    """

    has_derivatives: bool = False
    paths: Mapping[nn.Module, str] = field(default_factory=dict)
    shifts: dict[Posterior, Tensor] = field(default_factory=dict)
    calls: list[NoisyCall] = field(default_factory=list)
    bends: list[Bend] = field(default_factory=list)
    elsewhere: set[Posterior] = field(default_factory=set)
    has_inputs: bool = False
    versions: list[int] = field(default_factory=list)

    def reached(self) -> list[NoisyCall]:
        """Return the calls of layers whose tensors were read by such calls alone."""
        out_of_reach = self.out_of_reach()
        return [call for call in self.calls if not sites_of(call.layer) & out_of_reach]

    def out_of_reach(self) -> set[Posterior]:
        """Return the posteriors whose noise those calls do not tell."""
        found = set(self.elsewhere) | set(self.shifts)
        layers = [sites_of(call.layer) for call in self.calls]
        while more := set[Posterior]().union(*(own for own in layers if own & found)) - found:
            found |= more
        return found

    def lead_with(self, number: int) -> bool:
        """Whether the first axis of all that is noted has so many entries."""
        shifts = [each.shift for each in (*self.calls, *self.bends)]
        return all(shift.ndim > 0 and len(shift) == number for shift in shifts)

    def around(self, x: Moments, function: Callable[[Moments], Moments]) -> Moments:
        """Note an activation, and find what part of its variance is noise of its own."""
        _check_gradients("an activation")
        given = x
        if not x.expected.requires_grad:
            given = copy.copy(x)
            given.expected = x.expected.detach().requires_grad_()
        mean, variance = function(given).pair()
        gain = torch.zeros_like(mean)
        if mean.requires_grad:  # else it is the same whatever comes, as what is dropped for certain
            (gain,) = torch.autograd.grad(
                mean.sum(), given.expected, retain_graph=True, create_graph=self.has_derivatives
            )
        dtype = precise_dtype(variance.dtype)
        with torch.set_grad_enabled(self.has_derivatives):
            passed_on = gain.to(dtype).square() * given.variance.to(dtype)
            own = (variance.to(dtype) - passed_on).clamp_min(0.0)
        shift = torch.zeros_like(mean).requires_grad_()
        self.bends.append(Bend(own, shift))
        return Moments(mean + shift, variance)

    def detached(self, x: Moments) -> Moments:
        """Follow noise through what is detached, unless gradients of weights are wanted."""
        return without_gradient(x) if self.has_derivatives else x

    def note_inputs(self, model: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Note the variance of uncertain inputs, as a hook of the first call in a pass."""
        del model
        if self.has_inputs:
            return args, kwargs
        self.has_inputs = True
        return map_moments((args, kwargs), self._note_input)

    def _note_input(self, x: Moments) -> Moments:
        if x.variance_or_none is None:
            return x
        shift = torch.zeros_like(x.expected).requires_grad_()
        self.bends.append(Bend(x.variance, shift))
        return Moments(x.expected + shift, x.variance)

    def note(self, layer: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        """Note a layer, as its hook."""
        _check_gradients(f"its layer {self.paths.get(layer, '')!r}")
        shift = torch.zeros_like(mean_of(output)).requires_grad_()
        given = args[0] if args else kwargs["input"]
        self.calls.append(NoisyCall(layer, mean_of(given), variance_of(given), shift))
        self.versions.append(mean_of(given)._version)
        return output + shift

    def check_unchanged(self) -> None:
        """Raise a RuntimeError where what a layer was given was written over since."""
        for call, version in zip(self.calls, self.versions, strict=True):
            if call.given._version != version:
                raise RuntimeError(
                    "by='covariance' needs what layers were given, and what "
                    f"{self.paths.get(call.layer, '')!r} was given is written over later in the "
                    "forward: take by='moments' or by='sample'"
                )


def _check_gradients(who: str) -> None:
    if not torch.is_grad_enabled():
        raise RuntimeError(
            f"a covariance needs derivatives, and the model calls {who} without gradients: "
            "take by='moments' or by='sample'"
        )


@contextmanager
def noted(
    model: nn.Module, *, has_derivatives: bool = False, shifted: Collection[Posterior] = ()
) -> Iterator[NoisyCalls]:
    """Note what adds noise in a pass of moments with gradients.

    Args:
        model: The model.
        has_derivatives: Whether what is found is to have derivatives itself.
        shifted: Posteriors to have a 0 added wherever they are read, in the place of one behind
            the layers that read them.
    """
    layers = layers_to_watch(model)
    found = NoisyCalls(has_derivatives, {each: path for path, each in model.named_modules()})
    sites = [site for site in posteriors(model) if site.num_random]
    with (
        derivable_attention(),
        # Compiled code cannot be looked at.
        torch.compiler.set_stance("force_eager"),
        shifted_reads(shifted) as found.shifts,
        read_elsewhere(layers, sites) as elsewhere,
        functions_watched(found),
    ):
        # Before hooks of the user's, which may change what a layer returned.
        handles = [
            layer.register_forward_hook(found.note, with_kwargs=True, prepend=True)
            for layer in layers
        ]
        # Before hooks of the user's, which may mix what the model is given.
        handles.append(
            model.register_forward_pre_hook(found.note_inputs, with_kwargs=True, prepend=True)
        )
        try:
            yield found
        finally:
            for handle in handles:
                handle.remove()
            found.elsewhere |= elsewhere


@contextmanager
def shifted_reads(sites: Collection[Posterior]) -> Iterator[dict[Posterior, Tensor]]:
    """Add a 0 to some tensors wherever they are read."""
    shifts: dict[Posterior, Tensor] = {}

    def shifted(site: Posterior, read: Callable[[], Tensor]) -> Callable[[], Tensor]:
        def value() -> Tensor:
            found = read()
            if site not in shifts:
                shifts[site] = torch.zeros_like(mean_of(found)).requires_grad_()
            return found + shifts[site]

        return value

    try:
        for site in sites:
            vars(site)["value"] = shifted(site, site.value)
        yield shifts
    finally:
        for site in sites:
            vars(site).pop("value", None)


@contextmanager
def without_checkpoints() -> Iterator[None]:
    """Refuse models that compute again what derivatives need: nothing would be noted then."""
    words = (
        "a covariance cannot be taken through gradient checkpoints: switch them off, or take "
        "by='moments' or by='sample'"
    )
    with torch.autograd.graph.disable_saved_tensors_hooks(words):
        yield
