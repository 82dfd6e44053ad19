"""A prediction read off outputs whose covariance is known."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from bayesify.prediction.by_moments import of_logits, of_values
from bayesify.prediction.predictive import Predictive
from bayesify.training.likelihood import Classification, Likelihood

# Of a covariance's largest entry: what rounding may take from it before its root is asked for.
_ROUNDING = 1e-5
# How far an example may be from what it is in its batch, as a share of the largest output.
_APART, _APART_IN_HALF_PRECISION = 0.01, 0.05


class CorrelatedOutputs(NamedTuple):
    """Outputs of some examples, and the covariances of all of each one's, or of a few.

    Attributes:
        mean: Of shape (batch, ...).
        covariance: (batch, D, D), of all D outputs of an example in their order, or of those
            that `places` says.
        places: (batch, D), which outputs these are; None for all.
    """

    mean: Tensor
    covariance: Tensor
    places: Tensor | None = None


def check_num_outputs(num_outputs: int | None, likelihood: Likelihood) -> None:
    """Raise a ValueError where some outputs are to do for all, and all are wanted."""
    if num_outputs is not None and not isinstance(likelihood, Classification):
        raise ValueError(
            f"num_outputs is a number of classes: with likelihood={likelihood.task!r} every output "
            f"has a derivative, got num_outputs={num_outputs}; leave it out"
        )


class MixedExamplesError(RuntimeError):
    """What a model says of an example depends on its batch."""


def check_apart(mean: Tensor, whole: Tensor, way: str) -> None:
    """Raise an error where examples are not what they are in their batch.

    Args:
        mean: The outputs of examples that were taken a few at a time.
        whole: Those of the whole batch.
        way: What the prediction was asked for by.
    """
    is_half = whole.dtype.itemsize < 4 or torch.is_autocast_enabled(whole.device.type)
    bound = _APART_IN_HALF_PRECISION if is_half else _APART
    whole = whole.to(mean.dtype)
    largest = whole.abs().nan_to_num(posinf=0.0).amax() if whole.numel() else 0.0
    # A model that takes one example only has nothing to say of a batch.
    if mean.shape == whole.shape and not torch.allclose(
        mean, whole, bound, bound * float(largest), equal_nan=True
    ):
        raise MixedExamplesError(
            f"by={way!r} takes a few examples at a time, and this model says something else "
            "of them than in their batch: they see each other, or do not come first in the "
            "inputs; take by='sample' or by='moments'"
        )


def of_correlated(
    outputs: CorrelatedOutputs, likelihood: Likelihood, way: str, made_by: str
) -> Predictive:
    """Read off a prediction; outputs that have no covariance count as certain.

    Args:
        outputs: What the network said.
        likelihood: What it means.
        way: What the prediction was asked for by, for an error.
        made_by: How it is made, in words.
    """
    mean, covariance, places = outputs
    if not isinstance(likelihood, Classification):
        variance = covariance.diagonal(dim1=1, dim2=2).clamp_min(0.0).view(mean.shape)
        return of_values(mean, variance, likelihood, made_by)
    if mean.ndim != 2 or likelihood.class_axis not in (None, 1, -1):
        raise ValueError(
            f"by={way!r} reads classes off outputs of shape (batch, classes), got "
            f"{tuple(mean.shape)}; take by='sample' or by='moments'"
        )
    root = root_of(covariance)
    if places is not None:
        made_by = f"{made_by} of the {places.shape[1]} largest logits"

    def spread(points: Tensor) -> Tensor:
        # Points are (number, 1, classes): each example mixes them by a root of its own.
        of_chosen = torch.einsum("pic,bkc->pbk", points[..., : root.shape[-1]], root)
        if places is None:
            return of_chosen
        others = of_chosen.new_zeros(len(points), *mean.shape)
        return others.scatter(2, places.expand(len(points), -1, -1), of_chosen)

    return of_logits(mean, 1, spread, made_by)


def root_of(covariance: Tensor) -> Tensor:
    """Return a root of covariances that rounding may have made indefinite; NaN of what has none.

    In float64: rounding grows with the number of outputs, and what a thousand of them share is far
    more than what is left to each.
    """
    precise = covariance.double()
    largest = precise.diagonal(dim1=1, dim2=2).amax(1)
    least = torch.finfo(covariance.dtype).tiny * 1e6
    shift = (_ROUNDING * largest + least)[:, None].expand(-1, covariance.shape[-1])
    root, is_indefinite = torch.linalg.cholesky_ex(precise + torch.diag_embed(shift))
    return root.masked_fill((is_indefinite != 0)[:, None, None], torch.nan).to(covariance.dtype)
