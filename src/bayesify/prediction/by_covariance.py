"""A prediction from one pass of means and variances, and from its derivatives.

Rules for means and variances (`moments`) are right about the noise that each layer adds, and lose
what becomes of it: positions share a kernel, and channels all the layers before them. Derivatives
keep that. A unit o of a layer adds to its outputs at positions p and q noise of the covariance

    sum_i S_oi (x_pi x_qi + [p = q] v_pi),

of inputs with means x and variances v and weights of variance S, and the outputs' covariance is the
sum over layers of G noise G', where G are the derivatives of the outputs' means in what the layer
returns. They are taken through the pass of moments: as d E f(z) / d E z = E f'(z), an activation
passes on what it does on average over its noise, where the network at its mean weights
(`by_linearisation`) knows one point only. A ReLU that is shut there may be open half of the time.
Of the variance that an activation has by its rule E f'(z)^2 Var z is passed on noise, and the rest,
the part that is no multiple of z, is noise of its own.

What is left out: that positions share their noise where it is multiplied by noise, and in what an
activation adds; and what maxima and norms do to it beyond first order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from bayesify.conversion.layer_class import posterior_of
from bayesify.conversion.posterior import Posterior, posteriors
from bayesify.conversion.scope import forward_by
from bayesify.moments import Moments, precise, precise_dtype
from bayesify.moments.moments import mean_of, variance_of
from bayesify.moments.watched_functions import functions_watched
from bayesify.prediction.by_linearisation import linearised
from bayesify.prediction.correlated_outputs import (
    CorrelatedOutputs,
    check_num_outputs,
    of_correlated,
)
from bayesify.prediction.draws import bytes_to_take
from bayesify.prediction.layer_slopes import (
    Cost,
    covariance,
    layers_to_watch,
    read_elsewhere,
    shared_or_dense_variance,
    sites_of,
    uses_of_weights,
)
from bayesify.prediction.predictive import Predictive
from bayesify.training.likelihood import Likelihood
from bayesify.types import batch_size, call_model, output_tensor


class NoisyCall(NamedTuple):
    """One call of a layer that adds noise: what it was given, and a 0 added to what it returned."""

    layer: nn.Module
    given: Any
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
        """Return the calls of layers whose weights were read nowhere else."""
        return [call for call in self.calls if not sites_of(call.layer) & self.elsewhere]

    def out_of_reach(self) -> set[Posterior]:
        """Return the posteriors whose noise those calls do not tell."""
        reached = set[Posterior]().union(*(sites_of(call.layer) for call in self.reached()))
        every = set[Posterior]().union(*(sites_of(call.layer) for call in self.calls))
        return (every | self.elsewhere) - reached


@torch.no_grad()
def predict_covariance(
    model: nn.Module,
    inputs: Any,
    likelihood: Likelihood,
    made_by: str,
    memory_limit: int | None = None,
    num_outputs: int | None = None,
) -> Predictive:
    """Predict a batch with a model whose posteriors give moments now.

    Args:
        model: The model, in evaluation mode: examples do not see each other.
        inputs: Inputs, as the model takes them.
        likelihood: What its outputs mean.
        made_by: How it is made, in words.
        memory_limit: Bytes that the derivatives of some examples may take together.
        num_outputs: How many logits of each example have a derivative; None takes all.
    """
    check_num_outputs(num_outputs, likelihood)
    outputs = covariant_outputs(model, inputs, memory_limit, num_outputs)
    return of_correlated(outputs, likelihood, "covariance", made_by)


def covariant_outputs(
    model: nn.Module, inputs: Any, memory_limit: int | None = None, num_outputs: int | None = None
) -> CorrelatedOutputs:
    """Return means of outputs and their covariances.

    Weights that are no linear layer's and no convolution's are taken to first order, at the mean
    weights (`by_linearisation`).
    """
    number = batch_size(inputs)
    limit = bytes_to_take(model, memory_limit)
    at_once = max(1, min(number, limit // _bytes_per_example(model, inputs, num_outputs)))
    parts: list[CorrelatedOutputs] = []
    rest: set[Posterior] = set()
    for start in range(0, max(number, 1), at_once):
        some = _cut(inputs, start, start + at_once)
        with torch.enable_grad(), noted(model) as found:
            output = output_tensor(call_model(model, some), (Tensor, Moments))
        rest |= found.out_of_reach()
        parts.append(covariance_of(output, found, num_outputs))
    whole = [None if kind[0] is None else torch.cat(kind) for kind in zip(*parts, strict=True)]
    mean, spread, places = whole
    assert mean is not None
    assert spread is not None
    if rest:
        number_taken = None if places is None else places.shape[1]
        with forward_by(model, "mean"):
            more = linearised(model, inputs, memory_limit, number_taken, chosen=places, only=rest)
        spread = spread + more.covariance.to(spread.dtype)
    return CorrelatedOutputs(mean, spread, places)


@contextmanager
def noted(model: nn.Module) -> Iterator[NoisyCalls]:
    """Note the calls of layers that add noise, in a pass of moments with gradients."""
    layers = layers_to_watch(model)
    found = NoisyCalls()

    def note(layer: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        shift = torch.zeros_like(mean_of(output)).requires_grad_()
        found.calls.append(NoisyCall(layer, args[0] if args else kwargs["input"], shift))
        return output + shift

    def note_bend(x: Moments, result: Moments) -> Moments:
        mean, variance = result.pair()
        shift = torch.zeros_like(mean).requires_grad_()
        found.bends.append(Bend(*x.pair(), mean, variance, shift))
        return Moments(mean + shift, variance)

    sites = [site for site in posteriors(model) if site.num_random]
    with read_elsewhere(layers, sites) as elsewhere, functions_watched(note_bend):
        # After those of `read_elsewhere`, so that a layer is at work until it has returned.
        handles = [layer.register_forward_hook(note, with_kwargs=True) for layer in layers]
        try:
            yield found
        finally:
            for handle in handles:
                handle.remove()
            found.elsewhere |= elsewhere


def covariance_of(
    output: Any, found: NoisyCalls, num_outputs: int | None = None, *, create_graph: bool = False
) -> CorrelatedOutputs:
    """Return the outputs of a pass with the covariance of what its layers added.

    Args:
        output: What the model returned, moments or numbers that are certain.
        found: The calls of its layers.
        num_outputs: How many outputs of each example, the largest, have a derivative.
        create_graph: Whether the covariance is to have derivatives itself.
    """
    with torch.enable_grad():
        mean = precise(output)[0] if isinstance(output, Moments) else output
        flat = mean.to(precise_dtype(mean.dtype)).flatten(1)
        size = flat.shape[1]
        number = size if num_outputs is None else min(num_outputs, size)
        places = flat.detach().topk(number, 1).indices if number < size else None
        rows = flat if places is None else flat.gather(1, places)
    calls = found.reached()
    shifts = [each.shift for each in (*calls, *found.bends)]
    slopes = _slopes(rows, shifts, create_graph=create_graph)
    spread = flat.new_zeros(len(flat), number, number)
    own = [_own_noise(bend, create_graph=create_graph) for bend in found.bends if slopes]
    with torch.set_grad_enabled(create_graph):
        for group in _sharing(calls) if slopes else []:
            spread = spread + _added([calls[i] for i in group], [slopes[i] for i in group])
        for noise, g in zip(own, slopes[len(calls) :], strict=True):
            spread = spread + _of_apart(g, noise)
    mean = flat.view(mean.shape)
    if create_graph:
        return CorrelatedOutputs(mean, spread, places)
    return CorrelatedOutputs(mean.detach(), spread.detach(), places)


def _slopes(rows: Tensor, shifts: Sequence[Tensor], *, create_graph: bool) -> list[Tensor]:
    """Return the derivatives of each example's outputs in each shift, (batch, D, ...)."""
    if not (shifts and len(rows) and rows.requires_grad):
        return []
    options: dict[str, Any] = {"allow_unused": True, "materialize_grads": True}
    # Examples do not see each other, so that one derivative of all of them is one of each.
    of_rows = [
        torch.autograd.grad(
            rows, shifts, way.expand_as(rows), True, create_graph=create_graph, **options
        )
        for way in torch.eye(rows.shape[1], dtype=rows.dtype, device=rows.device)
    ]
    return [torch.stack(each, 1).to(rows.dtype) for each in zip(*of_rows, strict=True)]


def _sharing(calls: Sequence[NoisyCall]) -> list[list[int]]:
    """Return the calls, by number, in groups that have no posterior in common."""
    groups: list[tuple[set[Posterior], list[int]]] = []
    for index, call in enumerate(calls):
        sites, members = set(sites_of(call.layer)), [index]
        for own, others in [group for group in groups if group[0] & sites]:
            sites, members = sites | own, others + members
            groups.remove((own, others))
        groups.append((sites, members))
    return [members for _, members in groups]


def _added(calls: Sequence[NoisyCall], slopes: Sequence[Tensor]) -> Tensor:
    """Return the covariances that come from the layers of some calls, (batch, D, D)."""
    layers = [call.layer for call in calls]
    given = [mean_of(call.given).to(g.dtype) for call, g in zip(calls, slopes, strict=True)]

    def example(given: Sequence[Tensor], slopes: Sequence[Tensor]) -> Tensor:
        uses = uses_of_weights(layers, given, slopes)
        each = [covariance(use, shared_or_dense_variance(site)) for site, use in uses.items()]
        return torch.stack(each).sum(0)

    total = torch.vmap(example)(given, slopes)
    for call, g in zip(calls, slopes, strict=True):
        noise = _noise_of_noise(call, g)
        if noise is not None:
            total = total + _of_apart(g, noise)
    return total


def _of_apart(slopes: Tensor, noise: Tensor) -> Tensor:
    """Return the covariances that come from noise of these variances, each entry's its own."""
    g = slopes.flatten(2)
    return (g * noise.to(g.dtype).flatten(1)[:, None]) @ g.mT


def _own_noise(bend: Bend, *, create_graph: bool) -> Tensor:
    """Return the variance behind an activation that is no multiple of what came."""
    if not bend.mean.requires_grad or not bend.given.requires_grad:
        return bend.variance
    with torch.enable_grad():
        (gain,) = torch.autograd.grad(
            bend.mean.sum(), bend.given, retain_graph=True, create_graph=create_graph
        )
    dtype = precise_dtype(bend.variance.dtype)
    passed_on = gain.to(dtype).square() * bend.given_variance.to(dtype)
    return (bend.variance.to(dtype) - passed_on).clamp_min(0.0)


def _noise_of_noise(call: NoisyCall, slopes: Tensor) -> Tensor | None:
    """Return the variances that uncertain weights have from uncertain inputs, (batch, outputs)."""
    variance, weight = variance_of(call.given), posterior_of(call.layer, "weight")
    if variance is None or weight is None or not weight.num_random:
        return None
    layer: Any = call.layer
    variance = variance.to(slopes.dtype).expand(mean_of(call.given).shape)
    spread = weight.dense_variance().to(slopes.dtype)
    if isinstance(layer, nn.Linear):
        return F.linear(variance, spread).flatten(1)
    return layer._conv_forward(variance, spread, None).flatten(1)


@torch.no_grad()
def _bytes_per_example(model: nn.Module, inputs: Any, num_outputs: int | None) -> int:
    """Return what the derivatives of one example take, as far as can be told beforehand."""
    if not batch_size(inputs):
        return 1
    with noted(model) as found:
        output = output_tensor(call_model(model, _cut(inputs, 0, 1)), (Tensor, Moments))
    size = output.shape[1:].numel()
    number = size if num_outputs is None else min(num_outputs, size)
    most, between, seen = 0, 0, 0
    between += sum(3 * bend.shift.numel() for bend in found.bends)
    for call in found.reached():
        given, shift = mean_of(call.given), call.shift
        between += given.numel() + shift.numel()
        slopes = shift[0].to(precise_dtype(shift.dtype)).expand(number, *shift.shape[1:])
        uses = uses_of_weights([call.layer], [given[0].to(slopes.dtype)], [slopes])
        for site, use in uses.items():
            seen = max(seen, use.given.numel())
            cost = Cost(use, shared_or_dense_variance(site), number)
            most = max(most, cost.num_written)
    # What a pass keeps of moments for its gradients is some ten numbers for each there is.
    return 4 * ((10 + 2 * number) * between + seen + most) + 1


def _cut(inputs: Any, start: int, end: int) -> Any:
    return tree_map(lambda leaf: leaf[start:end] if isinstance(leaf, Tensor) else leaf, inputs)
