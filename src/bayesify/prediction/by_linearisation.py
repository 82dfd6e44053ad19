"""A prediction from the network's derivatives: to first order, with every correlation.

At the mean weights f(x; w) is about f(x; m) + J(x) (w - m), so outputs of independent weights of
variance s have the covariance J diag(s) J'. Nothing is drawn, and nothing is taken as uncorrelated
that is not: not positions that share a kernel, nor channels that share all the layers before them,
which is what rules for means and variances (`moments`) leave out. The price is one derivative per
output.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_flatten, tree_unflatten

from bayesify.conversion.posterior import Posterior
from bayesify.moments import precise_dtype
from bayesify.prediction.by_moments import of_logits, of_values
from bayesify.prediction.draws import bytes_to_take
from bayesify.prediction.predictive import Predictive
from bayesify.training.likelihood import Classification, Likelihood
from bayesify.types import batch_size, call_model, output_tensor

# Of a covariance's largest entry: what rounding may take from it before its root is asked for.
_ROUNDING = 1e-5


@torch.no_grad()
def predict_linearised(
    model: nn.Module,
    inputs: Any,
    likelihood: Likelihood,
    made_by: str,
    memory_limit: int | None = None,
) -> Predictive:
    """Predict a batch with a model whose weights are at their means now.

    Args:
        model: The model, in evaluation mode: examples do not see each other.
        inputs: Inputs, as the model takes them.
        likelihood: What its outputs mean.
        made_by: How it is made, in words.
        memory_limit: Bytes that the derivatives of some examples may take together.
    """
    mean, covariance = linearised_outputs(model, inputs, memory_limit)
    if isinstance(likelihood, Classification):
        if mean.ndim != 2 or likelihood.class_axis not in (None, 1, -1):
            raise ValueError(
                f"by='linearised' reads classes off outputs of shape (batch, classes), got "
                f"{tuple(mean.shape)}; take by='sample' or by='moments'"
            )
        root = _root(covariance)
        # Points are (number, 1, classes): each example mixes them by a root of its own.
        return of_logits(
            mean, 1, lambda points: torch.einsum("pic,bkc->pbk", points, root), made_by
        )
    variance = covariance.diagonal(dim1=1, dim2=2).view(mean.shape)
    return of_values(mean, variance, likelihood, made_by)


def linearised_outputs(
    model: nn.Module, inputs: Any, memory_limit: int | None = None
) -> tuple[Tensor, Tensor]:
    """Return outputs at the mean weights, and the covariance (batch, D, D) of each example's D."""
    calling = _Calling(model)
    means, variances = _random_weights(model)
    leaves, layout = tree_flatten(inputs)
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]

    def output(weights: dict[str, Tensor], *tensors: Tensor) -> Tensor:
        given = list(leaves)
        for place, tensor in zip(places, tensors, strict=True):
            given[place] = tensor[None]
        named = {f"model.{name}": tensor for name, tensor in weights.items()}
        whole = (tree_unflatten(given, layout),)
        # Told to find other names itself, it would not put back a module that has two.
        found = torch.func.functional_call(calling, named, whole, tie_weights=False)
        return found[0].to(precise_dtype(found.dtype))

    def example(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        found, backward, *_ = torch.func.vjp(lambda weights: output(weights, *tensors), means)
        directions = torch.eye(found.numel(), dtype=found.dtype, device=found.device)
        (slopes,) = torch.vmap(backward)(directions.view(-1, *found.shape))
        covariance = torch.zeros_like(directions)
        for name, slope in slopes.items():
            rows = slope.flatten(1).to(covariance.dtype)
            covariance = covariance + (rows * variances[name].to(rows.dtype)) @ rows.T
        return found, covariance

    tensors = [leaves[place] for place in places]
    with derivable_attention(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop")
        outputs, number = calling(inputs), batch_size(inputs)
        if number == 0:
            size = outputs.shape[1:].numel()
            return outputs.to(precise_dtype(outputs.dtype)), outputs.new_zeros(0, size, size)
        # A weight's slope of every output, and it once more times its variance.
        num_weights = sum(mean.numel() for mean in means.values())
        each = 8 * (outputs.numel() // number) * max(num_weights, 1)
        chunk = max(1, min(number, bytes_to_take(model, memory_limit) // each))
        try:
            return torch.vmap(example, chunk_size=chunk)(*tensors)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise RuntimeError(
                f"by='linearised' needs a model that torch.func can differentiate example by "
                f"example, and this one cannot be: {error}; take by='sample' or by='moments'"
            ) from error


def _random_weights(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the means of random weights by their names in the model, and flat variances."""
    means, variances = {}, {}
    for path, site in model.named_modules():
        if isinstance(site, Posterior) and site.num_random:
            location = site.family.parameter_names[0]
            name = f"{path}.{location}"
            means[name] = site.get_parameter(location).detach()
            variances[name] = site.stored_variance().flatten()
    return means, variances


class _Calling(nn.Module):
    """A model that takes its inputs as one thing, whatever its own forward takes."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Any) -> Tensor:
        return output_tensor(call_model(self.model, inputs))


def _root(covariance: Tensor) -> Tensor:
    """Return a root of covariances that rounding may have made indefinite."""
    largest = covariance.diagonal(dim1=1, dim2=2).amax(1)
    least = torch.finfo(covariance.dtype).tiny * 1e6
    shift = (_ROUNDING * largest + least)[:, None].expand(-1, covariance.shape[-1])
    return torch.linalg.cholesky(covariance + torch.diag_embed(shift))


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
