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
activation adds; the product of two noises, as in gates and attention; and what maxima, norms and
softmax do to noise beyond first order. Factors of `correct_moments` are not applied.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Collection, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesify.batches import batch_size, call_model, cut, map_tensors, output_tensor
from bayesify.conversion.layer_class import posterior_of
from bayesify.conversion.posterior import Posterior, posteriors
from bayesify.moments import Moments, precise, precise_dtype
from bayesify.moments.moments import mean_of
from bayesify.prediction.correlated_outputs import CorrelatedOutputs, check_apart
from bayesify.prediction.draws import bytes_to_take
from bayesify.prediction.layer_slopes import (
    Cost,
    covariance,
    shared_or_dense_variance,
    sites_of,
    uses_of_weights,
)
from bayesify.prediction.noisy_calls import NoisyCall, NoisyCalls, noted, without_checkpoints

# How many numbers tell examples apart, and by how much of the largest derivative they may seem to
# see each other: rounding differs where examples are taken in another order.
_NUM_POWERS, _MOST_APART = 16, 1e-3


@torch.inference_mode(mode=False)
@torch.no_grad()  # inside: leaving inference mode switches gradients on
def covariant_outputs(
    model: nn.Module, inputs: Any, memory_limit: int | None = None, num_outputs: int | None = None
) -> CorrelatedOutputs:
    """Return means of outputs and their covariances.

    Where random tensors are read by anything but nn.Linear, nn.Conv1d and nn.Conv2d padded with
    zeros, as tokens and embeddings are, examples are taken one at a time, since only then is the
    derivative in such a tensor that of one example.

    Args:
        model: The model, in evaluation mode, its posteriors read as moments.
        inputs: Inputs, as the model takes them.
        memory_limit: Bytes that the derivatives of some examples may take together.
        num_outputs: How many outputs of each example, the largest, have a derivative; None for
            all.
    """
    inputs = map_tensors(inputs, lambda leaf: leaf.clone() if leaf.is_inference() else leaf)
    number = batch_size(inputs)
    at_once = number
    if number > 1:
        limit = bytes_to_take(model, memory_limit)
        at_once = max(1, min(number, limit // _bytes_per_example(model, inputs, num_outputs)))
    parts = _parts(model, inputs, at_once, num_outputs)
    if parts is None:
        at_once = 1
        parts = _parts(model, inputs, at_once, num_outputs) or []
    mean = torch.cat([part.mean for part in parts])
    if at_once < number:
        whole = mean_of(output_tensor(call_model(model, inputs), (Tensor, Moments)))
        check_apart(mean, whole, "covariance")
    spread = torch.cat([part.covariance for part in parts])
    each = [part.places for part in parts if part.places is not None]
    return CorrelatedOutputs(mean, spread, torch.cat(each) if each else None)


def _parts(
    model: nn.Module, inputs: Any, at_once: int, num_outputs: int | None
) -> list[CorrelatedOutputs] | None:
    """Return outputs of so many examples at a time.

    None where only one at a time can be taken: where positions come first inside, where examples
    are cut into windows, where they see each other, and where something that all share is noisy.
    """
    number = batch_size(inputs)
    parts: list[CorrelatedOutputs] = []
    shifted = set[Posterior]()
    for start in range(0, max(number, 1), max(at_once, 1)):
        some = cut(inputs, number, start, start + at_once)
        output, found = _noted_pass(model, some, shifted)
        while more := found.out_of_reach() - shifted:
            if at_once > 1:
                return None
            # Of one example everything there is belongs to it, tensors of the model too.
            shifted |= more
            output, found = _noted_pass(model, some, shifted)
        if at_once > 1 and not found.lead_with(len(output)):
            return None
        if at_once > 1 and start == 0 and _see_each_other(output, found):
            return None
        parts.append(covariance_of(output, found, num_outputs, is_whole=at_once == 1))
    return parts


def _noted_pass(
    model: nn.Module, inputs: Any, shifted: Collection[Posterior]
) -> tuple[Any, NoisyCalls]:
    with torch.enable_grad(), without_checkpoints(), noted(model, shifted=shifted) as found:
        output = output_tensor(call_model(model, inputs), (Tensor, Moments))
    number = batch_size(inputs)
    if output.ndim == 0 or len(output) != number:
        raise ValueError(
            "by='covariance' reads outputs with a row for each example, got outputs of shape "
            f"{tuple(output.shape)} for {number} examples: take by='moments' or by='sample'"
        )
    return output, found


def _see_each_other(output: Any, found: NoisyCalls) -> bool:
    """Whether the outputs of some examples depend on what was noted of others.

    Where they do not, an example's outputs times a number have its own derivatives times that.
    Numbers are powers of two, by which nothing is rounded, and differ between any neighbours.
    """
    shifts = [each.shift for each in (*found.calls, *found.bends)]
    mean = mean_of(output)
    if not (shifts and mean.requires_grad):
        return False
    generator = torch.Generator().manual_seed(0)
    ways = torch.randn(mean.shape, generator=generator, dtype=torch.float64).to(mean)
    powers = torch.arange(len(mean)) % _NUM_POWERS
    weights = 2.0 ** powers[torch.randperm(len(mean), generator=generator)].to(mean)

    def of_each(tensor: Tensor, weights: Tensor) -> Tensor:
        return tensor * weights.to(tensor).view(-1, *[1] * (tensor.ndim - 1))

    options: dict[str, Any] = {"allow_unused": True, "materialize_grads": True}
    alone = torch.autograd.grad(mean, shifts, ways, True, **options)
    weighted = torch.autograd.grad(mean, shifts, of_each(ways, weights), True, **options)
    for slope, other in zip(alone, weighted, strict=True):
        difference = of_each(other, 1.0 / weights) - slope
        if (difference.abs() > _MOST_APART * slope.abs().amax()).any():
            return True
    return False


def covariance_of(
    output: Any,
    found: NoisyCalls,
    num_outputs: int | None = None,
    *,
    is_whole: bool = False,
) -> CorrelatedOutputs:
    """Return the outputs of a pass with the covariance of what it added.

    Args:
        output: What the model returned, moments or numbers that are certain.
        found: What adds noise.
        num_outputs: How many outputs of each example, the largest, have a derivative.
        is_whole: Whether the pass was of one example, to which all belongs that is noted; else the
            first axis of it is that of examples.

    Returns:
        The outputs, with derivatives if what adds noise has them.
    """
    create_graph = found.has_derivatives
    with torch.enable_grad():
        mean = precise(output)[0] if isinstance(output, Moments) else output
        mean = mean.to(precise_dtype(mean.dtype))
        flat = mean[:, None] if mean.ndim == 1 else mean.flatten(1)
        size = flat.shape[1]
        number = size if num_outputs is None else min(num_outputs, size)
        places = flat.detach().topk(number, 1).indices if number < size else None
        rows = flat if places is None else flat.gather(1, places)
    found.check_unchanged()
    calls = found.reached()
    read = list(found.shifts.items())
    shifts = [each.shift for each in (*calls, *found.bends)] + [shift for _, shift in read]
    if shifts and not rows.requires_grad:
        raise RuntimeError(
            "a covariance needs derivatives of the model's output, and it has none: something "
            "behind its layers is done without gradients; take by='moments' or by='sample'"
        )
    slopes = _slopes(rows, shifts, create_graph=create_graph)
    own = [bend.own_variance for bend in found.bends if slopes]
    # In half precision sums over weights would have no root.
    with torch.set_grad_enabled(create_graph), torch.autocast(flat.device.type, enabled=False):
        if is_whole:
            calls = [_of_one_example(call) for call in calls]
            own = [noise[None] for noise in own]
        # (batch, D, ...), by the first axis or by a new one.
        slopes = [each[None] if is_whole else each.movedim(0, 1).contiguous() for each in slopes]
        spread = flat.new_zeros(len(flat), number, number)
        for group in _sharing(calls) if slopes else []:
            spread = spread + _added([calls[i] for i in group], [slopes[i] for i in group])
        of_reads = [site.dense_variance()[None] for site, _ in read if slopes]
        for noise, g in zip([*own, *of_reads], slopes[len(calls) :], strict=True):
            spread = spread + _of_apart(g, noise)
    if create_graph:
        return CorrelatedOutputs(mean, spread, places)
    return CorrelatedOutputs(mean.detach(), spread.detach(), places)


def _of_one_example(call: NoisyCall) -> NoisyCall:
    variance = call.given_variance
    variance = None if variance is None else variance.expand(call.given.shape)[None]
    return call._replace(given=call.given[None], given_variance=variance, shift=call.shift[None])


def _slopes(rows: Tensor, shifts: Sequence[Tensor], *, create_graph: bool) -> list[Tensor]:
    """Return the derivatives of outputs in each shift, (D, *its shape)."""
    if not (shifts and len(rows)):
        return []
    options: dict[str, Any] = {"allow_unused": True, "materialize_grads": True}

    def back(way: Tensor) -> tuple[Tensor, ...]:
        # Examples do not see each other, so that one derivative of all of them is one of each.
        ways = way.expand_as(rows)
        return torch.autograd.grad(rows, shifts, ways, True, create_graph=create_graph, **options)

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop")
        # All ways at once: what a rule's derivative is made of is found once for all of them.
        found = torch.vmap(back)(torch.eye(rows.shape[1], dtype=rows.dtype, device=rows.device))
    return [each.to(rows.dtype) for each in found]


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
    given = [call.given.to(g.dtype) for call, g in zip(calls, slopes, strict=True)]

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
    g = slopes.reshape(*slopes.shape[:2], math.prod(slopes.shape[2:]))
    return (g * noise.to(g.dtype).reshape(len(g), 1, -1)) @ g.mT


def _noise_of_noise(call: NoisyCall, slopes: Tensor) -> Tensor | None:
    """Return the variances that uncertain weights have from uncertain inputs, (batch, outputs)."""
    variance, weight = call.given_variance, posterior_of(call.layer, "weight")
    if variance is None or weight is None or not weight.num_random:
        return None
    layer: Any = call.layer
    variance = variance.to(slopes.dtype).expand(call.given.shape)
    spread = weight.dense_variance().to(slopes.dtype)
    if isinstance(layer, nn.Linear):
        return F.linear(variance, spread).flatten(1)
    # One example, with or without an axis of its own, has another one here.
    sides = variance.shape[-1 - len(layer.kernel_size) :]
    noise = layer._conv_forward(variance.reshape(-1, *sides), spread, None)
    return noise.reshape(len(variance), -1)


def _bytes_per_example(model: nn.Module, inputs: Any, num_outputs: int | None) -> int:
    """Return what the derivatives of one example take, or more than there is where it is no row."""
    first = cut(inputs, batch_size(inputs), 0, 1)
    weights = {site.shape.numel() for site in posteriors(model)}
    kept: list[int] = []

    def keep(tensor: Tensor) -> Tensor:
        # What is as large as a weight is taken for one: examples share those.
        if tensor.numel() not in weights:
            kept.append(tensor.numel())
        return tensor

    try:
        with (
            torch.enable_grad(),
            torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
            noted(model) as found,
        ):
            output = output_tensor(call_model(model, first), (Tensor, Moments))
    except Exception as error:
        error.add_note("This came when by='covariance' gave the model the first example alone.")
        raise
    if found.elsewhere or output.ndim == 0 or not found.lead_with(len(output)):
        return sys.maxsize
    size = output.shape[1:].numel()
    number = size if num_outputs is None else min(num_outputs, size)
    shifts = sum(each.shift.numel() for each in (*found.calls, *found.bends))
    # Gradients of all outputs on their way: a few of the largest tensor there is.
    between = sum(kept) + number * (shifts + 4 * max(kept, default=0))
    most, seen = 0, 0
    for call in found.reached():
        slopes = call.shift[0].to(precise_dtype(call.shift.dtype))
        slopes = slopes.detach().expand(number, *call.shift.shape[1:])
        given = call.given[0].detach().to(slopes.dtype)
        uses = uses_of_weights([call.layer], [given], [slopes])
        for site, use in uses.items():
            seen = max(seen, use.given.numel())
            cost = Cost(use, shared_or_dense_variance(site), number)
            most = max(most, cost.num_written)
    return precise_dtype(output.dtype).itemsize * (between + seen + most) + 1
