"""What the random weights of linear and convolutional layers do to the covariance of outputs.

The slope of output d in the weight W[o, i] of such a layer is a sum over positions p of what the
layer was given, x, times the slope of its own output, g: sum_p g[d, p, o] x[p, i]. Wanted are only
sums over all weights of products of two slopes and a variance S,

    covariance[d, e] = sum_{o, i} S[o, i] (sum_p g[d, p, o] x[p, i]) (sum_q g[e, q, o] x[q, i]),

and where a layer has few positions and many weights, as late layers have, the sum over i is taken
first, for every pair of positions: slopes, one for each output and weight, are then never written
down. Which order costs less is known from the shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesify.conversion.layer_class import plain_class, posterior_of
from bayesify.conversion.local import functional_form
from bayesify.conversion.posterior import Posterior

# Multiplications in the time that a number takes to be written to memory and read again.
_COST_OF_MEMORY = 30


class Call(NamedTuple):
    """One call of a layer: what it was given, and what it returned."""

    layer: nn.Module
    given: Tensor
    output: Tensor


class Use(NamedTuple):
    """What a weight was used for: x (groups, P, I) and g (groups, outputs, P, O)."""

    given: Tensor
    slopes: Tensor


def layers_to_watch(model: nn.Module) -> list[nn.Module]:
    """Return the layers with random weights whose slopes can be told from inputs and outputs."""
    return [module for module in model.modules() if _is_known(module)]


@contextmanager
def watched(layers: Sequence[nn.Module], added: Sequence[Tensor] = ()) -> Iterator[list[Call]]:
    """Note every call of these layers; the first returns `added[0]` more, and so on."""
    calls: list[Call] = []

    def note(layer: nn.Module, args: Any, kwargs: Any, output: Tensor) -> Tensor:
        output = output + added[len(calls)] if added else output
        calls.append(Call(layer, args[0] if args else kwargs["input"], output))
        return output

    # Before hooks of the user's, which may change what a layer returned.
    handles = [
        layer.register_forward_hook(note, with_kwargs=True, prepend=True) for layer in layers
    ]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def read_elsewhere(
    layers: Sequence[nn.Module], sites: Iterable[Posterior]
) -> Iterator[set[Posterior]]:
    """Note which posteriors are read while none of these layers is at work."""
    found: set[Posterior] = set()
    at_work: list[nn.Module] = []

    def noted(site: Posterior, read: Callable[[], Tensor]) -> Callable[[], Tensor]:
        def value() -> Tensor:
            if not at_work:
                found.add(site)
            return read()

        return value

    sites = list(sites)
    handles = [
        layer.register_forward_pre_hook(lambda own, _: at_work.append(own)) for layer in layers
    ]
    handles += [
        layer.register_forward_hook(lambda *_: at_work.clear(), always_call=True, prepend=True)
        for layer in layers
    ]
    try:
        for site in sites:
            vars(site)["value"] = noted(site, site.value)
        yield found
    finally:
        for site in sites:
            vars(site).pop("value", None)
        for handle in handles:
            handle.remove()


def uses_of_weights(
    layers: Sequence[nn.Module], given: Sequence[Tensor], slopes: Sequence[Tensor]
) -> dict[Posterior, Use]:
    """Return what every random weight was used for, all calls taken together.

    Args:
        layers: The layer of each call.
        given: What it was given.
        slopes: Slopes of what it returned, (outputs, *shape).
    """
    found: dict[Posterior, list[Use]] = {}
    for layer, x, g in zip(layers, given, slopes, strict=True):
        use = _of_linear(x, g) if isinstance(layer, nn.Linear) else _of_convolution(layer, x, g)
        if (weight := posterior_of(layer, "weight")) is not None:
            found.setdefault(weight, []).append(use)
        if (bias := posterior_of(layer, "bias")) is not None:
            # The weight of an input that is 1.
            units = use.slopes.permute(1, 2, 0, 3).flatten(2)[None]
            one = use.given.new_ones(1, units.shape[2], 1)
            found.setdefault(bias, []).append(Use(one, units))
    return {site: _joined(each) for site, each in found.items()}


def covariance(use: Use, variance: Tensor) -> Tensor:
    """Return what weights of these variances add to the covariance of outputs.

    Args:
        use: What the weights were used for.
        variance: Of the weight's shape, or (units, 1, ...) where the weights of a unit share one.
    """
    groups, num_units = use.slopes.shape[0], use.slopes.shape[-1]
    variance = variance.to(use.given.dtype).reshape(groups, num_units, -1)
    cost = Cost(use, variance, use.slopes.shape[1])
    each = _by_pairs if cost.is_least_by_pairs else _by_slopes
    if groups == 1:
        return each(use.given[0], use.slopes[0], variance[0])
    return torch.vmap(each)(use.given, use.slopes, variance).sum(0)


def slopes_of_weight(use: Use) -> Tensor:
    """Return the slope of every output in every weight, (outputs, weights)."""
    return torch.einsum("gdpo,gpi->dgoi", use.slopes, use.given).flatten(1)


def sites_of(layer: nn.Module) -> set[Posterior]:
    """Return the posteriors of a layer's own tensors."""
    return {child for child in layer.children() if isinstance(child, Posterior)}


def shared_or_dense_variance(site: Posterior) -> Tensor:
    """Return variances of a whole tensor, or those that its units share."""
    if site.is_tied_scale:
        variance = site.family.variance(site.random_parameters())
        if variance.shape == (site.shape[0], *[1] * (len(site.shape) - 1)):
            return variance
    return site.dense_variance()


class Cost:
    """What a covariance takes, of a given number of outputs: products, and numbers written.

    Args:
        use: What the weights were used for.
        variance: Their variances, (units, ...).
        num_outputs: How many outputs.
    """

    def __init__(self, use: Use, variance: Tensor, num_outputs: int) -> None:
        (groups, positions, inputs), units = use.given.shape, use.slopes.shape[-1]
        pairs, is_shared = positions**2, variance.numel() == groups * units
        slopes, common = num_outputs * inputs * units, num_outputs * positions * units
        if is_shared:
            first, kept = pairs * inputs, common + pairs
        else:
            first, kept = pairs * inputs * units // 2, common + pairs * (inputs + 3 * units) // 2
        again = positions + num_outputs
        by_pairs = first + common * again + _COST_OF_MEMORY * kept
        by_slopes = slopes * again + _COST_OF_MEMORY * 2 * slopes
        self.is_least_by_pairs = by_pairs < by_slopes
        self.num_written = groups * (kept if self.is_least_by_pairs else 2 * slopes)


def _by_slopes(x: Tensor, g: Tensor, variance: Tensor) -> Tensor:
    slopes = torch.einsum("dpo,pi->doi", g, x)
    return (slopes * variance).flatten(1) @ slopes.flatten(1).T


def _by_pairs(x: Tensor, g: Tensor, variance: Tensor) -> Tensor:
    x, g = _centred(x, g)
    if variance.shape[1] == 1:
        # One variance per unit: what pairs of positions have in common is the same for all units.
        common = (x @ x.T) @ g * variance[:, 0]
        return common.flatten(1) @ g.flatten(1).T
    number = len(x)
    first, second = torch.tril_indices(number, number, device=x.device)
    of_pairs = (x[first] * x[second]) @ variance.T
    place = torch.zeros(number, number, dtype=torch.long, device=x.device)
    place[first, second] = place[second, first] = torch.arange(len(first), device=x.device)
    common = torch.einsum("pqo,dqo->dpo", of_pairs[place], g)
    return common.flatten(1) @ g.flatten(1).T


def _centred(x: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Take what all positions have in common as one more position, with the sum of all slopes.

    Positions may well cancel, as slopes that sum to 0 where a norm follows: in a sum over pairs
    that would leave rounding alone, and variances below 0.
    """
    if len(x) == 1:
        return x, g
    middle = x.mean(0, keepdim=True)
    return torch.cat([x - middle, middle]), torch.cat([g, g.sum(1, keepdim=True)], 1)


def _of_linear(x: Tensor, g: Tensor) -> Use:
    return Use(x.reshape(-1, x.shape[-1])[None], g.reshape(len(g), -1, g.shape[-1])[None])


def _of_convolution(layer: Any, x: Tensor, g: Tensor) -> Use:
    """Take a convolution as a linear layer on what its kernel sees at each position."""
    sides = len(layer.kernel_size)
    x = x.reshape(-1, *x.shape[-1 - sides :])  # examples may come without their dimension
    g = g.reshape(len(g), -1, *g.shape[-1 - sides :])
    geometry = [layer.kernel_size, layer.dilation, _padding(layer), layer.stride]
    if sides == 1:
        x = x.unsqueeze(2)
        geometry = [(none, *one) for one, none in zip(geometry, (1, 1, 0, 1), strict=True)]
    seen = F.unfold(x, *geometry)
    groups = layer.groups
    seen = seen.unflatten(1, (groups, -1)).permute(1, 0, 3, 2).flatten(1, 2)
    units = g.flatten(3).unflatten(2, (groups, -1)).permute(2, 0, 1, 4, 3).flatten(2, 3)
    return Use(seen, units)


def _joined(each: list[Use]) -> Use:
    if len(each) == 1:
        return each[0]
    given, slopes = zip(*each, strict=True)
    return Use(torch.cat(given, 1), torch.cat(slopes, 2))


def _is_known(module: nn.Module) -> bool:
    sites = posterior_of(module, "weight"), posterior_of(module, "bias")
    if not any(site is not None and site.num_random for site in sites):
        return False
    if functional_form(plain_class(type(module))) is None or "forward" in vars(module):
        return False
    if isinstance(module, (nn.Conv1d, nn.Conv2d)):
        return module.padding_mode == "zeros" and _padding(module) is not None
    return isinstance(module, nn.Linear)


def _padding(layer: Any) -> tuple[int, ...] | None:
    """Return the zeros on both sides, or None where there are more on one."""
    if layer.padding == "valid":
        return (0,) * len(layer.kernel_size)
    if layer.padding != "same":
        return layer.padding
    whole = [d * (k - 1) for d, k in zip(layer.dilation, layer.kernel_size, strict=True)]
    return None if any(each % 2 for each in whole) else tuple(each // 2 for each in whole)
