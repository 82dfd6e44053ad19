"""A prediction from the network's derivatives: to first order, with every correlation.

At the mean weights f(x; w) is about f(x; m) + J(x) (w - m), so outputs of independent weights of
variance s have the covariance J diag(s) J'. Nothing is drawn, and nothing is taken as uncorrelated
that is not: not positions that share a kernel, nor channels that share all the layers before them,
which is what rules for means and variances (`moments`) leave out. The price is one derivative per
output. Of many classes most are out of the question: the largest few logits can have theirs, and
the others count as certain. Inputs that are uncertain add their own J diag(v) J'.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_unflatten

from bayesify.batches import at_mean, batch_size, call_model, output_tensor
from bayesify.conversion.posterior import Posterior
from bayesify.moments import Moments, precise_dtype
from bayesify.prediction.correlated_outputs import (
    CorrelatedOutputs,
    MixedExamplesError,
    check_apart,
)
from bayesify.prediction.draws import bytes_to_take
from bayesify.prediction.layer_slopes import (
    Call,
    Cost,
    Use,
    covariance,
    layers_to_watch,
    read_elsewhere,
    shared_or_dense_variance,
    sites_of,
    slopes_of_weight,
    uses_of_weights,
    watched,
)

# How far two ways to the slopes of a weight may be apart: so many roots of what numbers are
# rounded by, and in half precision, where that would be a third of them, this share.
_ROOTS_APART, _MOST_APART = 4.0, 0.05


def linearised(
    model: nn.Module,
    inputs: Any,
    memory_limit: int | None = None,
    num_outputs: int | None = None,
) -> CorrelatedOutputs:
    """Return outputs at the mean weights, and their covariances.

    Args:
        model: The model, in evaluation mode, its weights at their means.
        inputs: Inputs, as the model takes them, or moments in the place of what is uncertain.
        memory_limit: Bytes that the derivatives of some examples may take together.
        num_outputs: How many outputs of each example, the largest, have a derivative; None for
            all.
    """
    with derivable_attention(), _DerivablePReLU(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop")
        number = batch_size(inputs)
        if isinstance(inputs, Mapping):
            inputs = dict(inputs)  # torch.func looks into no other
        noisy, variances = _uncertain(inputs)
        inputs = at_mean(inputs)
        leaves, layout = tree_flatten(inputs)
        # What has no row for each example belongs to all.
        places = [
            place
            for place, leaf in enumerate(leaves)
            if isinstance(leaf, Tensor) and leaf.ndim and len(leaf) == number
        ]

        def whole(tensors: Sequence[Tensor]) -> Any:
            given = list(leaves)
            for place, tensor in zip(places, tensors, strict=True):
                given[place] = tensor[None]
            return tree_unflatten(given, layout)

        tensors = [leaves[place] for place in places]
        if number == 0:
            outputs = _Calling(model)(inputs)
            size = outputs.shape[1:].numel()
            taken = size if num_outputs is None else min(num_outputs, size)
            none = outputs.new_zeros(0, taken, dtype=torch.long) if taken < size else None
            outputs = outputs.to(precise_dtype(outputs.dtype))
            return CorrelatedOutputs(outputs, outputs.new_zeros(0, taken, taken), none)
        first = whole([tensor[0] for tensor in tensors])
        variances = [
            each if each.ndim and len(each) == number else each.expand(number, *each.shape)
            for each in variances
        ]
        batch = _Calling(model)(inputs)  # what the model itself has to say against such inputs
        limit = bytes_to_take(model, memory_limit)

        def found_by(network: _Linearised) -> CorrelatedOutputs:
            def example(
                tensors: list[Tensor], variances: list[Tensor]
            ) -> tuple[Tensor, Tensor, Tensor]:
                return network(whole(tensors), variances)

            chunk = max(1, min(number, limit // network.bytes_per_example))
            mean, covariances, taken = torch.vmap(example, chunk_size=chunk)(tensors, variances)
            check_apart(mean, batch, "linearised")
            is_all = taken.shape[1] == mean[0].numel()
            return CorrelatedOutputs(mean, covariances, None if is_all else taken)

        try:
            network = _Linearised(model, first, layers_to_watch(model), num_outputs, noisy)
            if network.bytes_per_example <= limit:
                return found_by(network)
        except (torch.OutOfMemoryError, MixedExamplesError):
            raise
        except Exception:
            # Layers that cannot be watched, as those called under a transform of the model's own;
            # without watching any the model has its chance, or its own error.
            network = None
        try:
            other = _Linearised(model, first, [], num_outputs, noisy)
            if network is None or other.bytes_per_example < network.bytes_per_example:
                network = other
            return found_by(network)
        except (torch.OutOfMemoryError, MixedExamplesError):
            raise
        except RuntimeError as error:
            raise RuntimeError(
                f"by='linearised' needs a model that torch.func can differentiate example by "
                f"example, and this one cannot be: {error}; take by='sample'"
            ) from error


class _Linearised:
    """A network that gives the covariance of its outputs beside them, for one example.

    Random weights of watched layers are reached through what these layers are given and return
    (`layer_slopes`), which never takes a network of weights per example; all others, and weights
    that are read in other ways too, by a slope for each weight. That the two ways agree is made
    sure of with one example.
    """

    def __init__(
        self,
        model: nn.Module,
        example: Any,
        layers: Sequence[nn.Module],
        num_outputs: int | None = None,
        noisy: Sequence[Sequence[int]] = (),
    ) -> None:
        self.calling = _Calling(model)
        self.noisy = noisy
        self.sites = {
            f"model.{path}.{site.family.parameter_names[0]}": site
            for path, site in model.named_modules()
            if isinstance(site, Posterior) and site.num_random
        }
        self.means: dict[str, Tensor] = {
            name: self.calling.get_parameter(name) for name in self.sites
        }
        with (
            read_elsewhere(layers, self.sites.values()) as elsewhere,
            watched(layers) as calls,
        ):
            size = self.calling(example).numel()
        self.num_outputs = size if num_outputs is None else min(num_outputs, size)
        self._watch(calls)
        leaves = tree_flatten(example)[0]
        self.num_noisy = sum(leaves[places[0]].numel() for places in noisy)
        with torch.no_grad():
            uses = self._agreeing(example, size) if layers else {}
        uses = {site: use for site, use in uses.items() if site not in elsewhere}
        # Their derivatives are made on the way, whether or not any weight of theirs is wanted.
        self.num_between = sum(call.given.numel() + call.output.numel() for call in calls)
        self._watch([call for call in calls if uses.keys() & sites_of(call.layer)])
        self.variances = {
            name: shared_or_dense_variance(site)
            for name, site in self.sites.items()
            if site in uses
        }
        self.slow = {
            name: site.stored_variance().flatten()
            for name, site in self.sites.items()
            if site not in uses
        }
        self.bytes_per_example = self._bytes(uses, self.num_outputs)

    def _watch(self, calls: Sequence[Call]) -> None:
        self.calls = calls
        self.layers = list({call.layer: None for call in calls})
        self.zeros = [torch.zeros_like(call.output) for call in calls]

    def __call__(
        self, example: Any, variances: Sequence[Tensor] = ()
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the outputs of an example, the covariance of the chosen, and which those are.

        Args:
            example: The inputs of one example.
            variances: Those of its uncertain inputs.
        """
        means = {name: self.means[name] for name in self.slow}
        output, backward, given = self._vjp(example, means)
        number = self.num_outputs
        directions = torch.eye(output.numel(), dtype=output.dtype, device=output.device)
        places = torch.arange(number, device=output.device)
        if number < output.numel():
            places = output.flatten().topk(number).indices
            directions = directions[places]
        slopes, of_means, of_inputs = torch.vmap(backward)(directions.view(-1, *output.shape))
        covariances = output.new_zeros(number, number)
        # In half precision sums over weights would have no root.
        with torch.autocast(output.device.type, enabled=False):
            uses = self._uses(given, slopes)
            for name, variance in self.variances.items():
                covariances = covariances + covariance(uses[self.sites[name]], variance)
            by_entry = [(slope, self.slow[name]) for name, slope in of_means.items()]
            by_entry += zip(of_inputs, variances, strict=True)
            for slope, variance in by_entry:
                rows = slope.reshape(len(slope), -1).to(covariances.dtype)
                covariances = covariances + (rows * variance.flatten().to(rows.dtype)) @ rows.T
        return output, covariances, places

    def _vjp(self, example: Any, means: dict[str, Tensor]) -> tuple[Tensor, Any, list[Tensor]]:
        leaves, layout = tree_flatten(example)

        def outputs(
            added: list[Tensor], weights: dict[str, Tensor], shifts: list[Tensor]
        ) -> tuple[Tensor, list[Tensor]]:
            moved = list(leaves)
            for places, shift in zip(self.noisy, shifts, strict=True):
                for place in places:
                    moved[place] = leaves[place] + shift
            with watched(self.layers, added) as calls:
                # Told to find other names itself, it would not put back a module that has two.
                arguments = (self.calling, weights, (tree_unflatten(moved, layout),))
                found = torch.func.functional_call(*arguments, tie_weights=False)[0]
            return found.to(precise_dtype(found.dtype)), [call.given for call in calls]

        shifts = [torch.zeros_like(leaves[places[0]]) for places in self.noisy]
        found: Any = torch.func.vjp(outputs, self.zeros, means, shifts, has_aux=True)
        return found

    def _uses(self, given: Sequence[Tensor], slopes: Sequence[Tensor]) -> dict[Posterior, Use]:
        precise = [[x.to(precise_dtype(x.dtype)) for x in each] for each in (given, slopes)]
        return uses_of_weights([call.layer for call in self.calls], *precise)

    def _agreeing(self, example: Any, num_outputs: int) -> dict[Posterior, Use]:
        """Return the uses of those weights whose slopes, added up over them, are right."""
        output, backward, given = self._vjp(example, self.means)
        # A direction that is no symmetry of the outputs, as (1, 1, ...) is of probabilities.
        direction = torch.randn(num_outputs, generator=torch.Generator().manual_seed(0))
        slopes, of_means, _ = backward(direction.to(output).view(output.shape))
        uses = self._uses(given, [slope[None] for slope in slopes])
        right: dict[Posterior, Use] = {}
        for name, site in self.sites.items():
            if site in uses:
                found, wanted = slopes_of_weight(uses[site])[0], of_means[name].flatten()
                if site.index is not None:
                    found = found[site.index.long()]
                limit = min(_ROOTS_APART * torch.finfo(wanted.dtype).eps ** 0.5, _MOST_APART)
                wanted = wanted.to(found.dtype)
                if (found - wanted).norm() <= limit * wanted.norm():
                    right[site] = uses[site]
        return right

    def _bytes(self, uses: dict[Posterior, Use], num_outputs: int) -> int:
        # What layers are given and return, and the slopes of it, with as much that lies between;
        # and what kernels see.
        seen = sum(use.given.numel() for use in uses.values())
        costs = [Cost(uses[self.sites[name]], v, num_outputs) for name, v in self.variances.items()]
        most = max((cost.num_written for cost in costs), default=0)
        # A slope for every weight, and it once more times its variance; of noisy inputs too.
        slow = sum(each.numel() for each in self.slow.values()) + self.num_noisy
        slow = 2 * num_outputs * slow
        return 4 * (2 * (1 + num_outputs) * self.num_between + seen + most + slow) + 1


def _uncertain(inputs: Any) -> tuple[list[list[int]], list[Tensor]]:
    """Return the places of each uncertain input among all, and its variance.

    Moments that are there twice are one uncertain value.
    """
    leaves = tree_flatten(inputs, is_leaf=lambda leaf: isinstance(leaf, Moments))[0]
    found = {id(leaf): leaf for leaf in leaves if isinstance(leaf, Moments) and not leaf.is_certain}
    places = [[at for at, leaf in enumerate(leaves) if id(leaf) == each] for each in found]
    return places, [each.variance for each in found.values()]


class _Calling(nn.Module):
    """A model that takes its inputs as one thing, whatever its own forward takes."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Any) -> Tensor:
        return output_tensor(call_model(self.model, inputs))


class _DerivablePReLU(TorchFunctionMode):
    """Write a PReLU out: torch.func fails at the derivative of torch's own."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        if func not in (torch.prelu, Tensor.prelu):
            return func(*args, **(kwargs or {}))
        x, slope = (*args, *(kwargs or {}).values())
        if slope.numel() > 1 and x.ndim > 1:
            slope = slope.view(-1, *[1] * (x.ndim - 2))
        return torch.where(x > 0, x, slope * x)


@contextmanager
def derivable_attention() -> Iterator[None]:
    """Keep attention from fused kernels, which lack derivatives that torch.func needs."""
    is_fused = torch.backends.mha.get_fastpath_enabled()
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(is_fused)
