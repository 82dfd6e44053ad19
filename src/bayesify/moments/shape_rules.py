"""Operations that move, copy, join or add entries: the same is done to mean and variance.

Exact, except that copies of one entry (`expand`, `repeat`) are later taken as independent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bayesify.moments.moments import Moments, as_moments, mean_of, rule, variance_dtype, variance_of
from bayesify.moments.watched_functions import detached

# Each entry of the result is an entry of the input, or a sum of some of them.
_SAME_FOR_BOTH = (
    ("reshape", "reshape_as", "flatten", "unflatten", "unsqueeze", "squeeze"),
    ("permute", "transpose", "t", "adjoint", "movedim", "moveaxis", "swapaxes", "swapdims"),
    ("expand", "expand_as", "broadcast_to", "repeat", "repeat_interleave", "tile"),
    ("narrow", "select", "index_select", "gather", "take_along_dim", "__getitem__", "unfold"),
    ("flip", "fliplr", "flipud", "rot90", "roll", "diagonal", "diag_embed", "tril", "triu"),
    ("sum", "cumsum", "contiguous", "clone"),
)
_SAME_FOR_BOTH_FUNCTIONAL = (F.pixel_shuffle, F.pixel_unshuffle, F.channel_shuffle)
_SEVERAL = ("chunk", "split", "unbind", "tensor_split", "split_with_sizes")


def same_for_both(function: Any, of_variance: Any = None) -> Any:
    """Return the rule that applies a function to the mean and to the variance alike.

    Args:
        function: What is applied to the mean.
        of_variance: What gives the same of the variance, where that is another function.
    """
    of_variance = of_variance or function

    def implementation(x: Moments, *args: Any, **kwargs: Any) -> Moments:
        # `view_as` and its like take moments as a second argument too, for their shape.
        args = tuple(map(mean_of, args))
        variance = variance_of(x)
        moved = None if variance is None else of_variance(variance, *args, **kwargs)
        return Moments(function(mean_of(x), *args, **kwargs), moved)

    return implementation


def _several(function: Any) -> Any:
    def implementation(x: Moments, *args: Any, **kwargs: Any) -> tuple[Moments, ...]:
        means = function(x.expected, *args, **kwargs)
        if x.variance_or_none is None:
            return tuple(Moments(mean) for mean in means)
        variances = function(x.variance_or_none, *args, **kwargs)
        return tuple(Moments(m, v) for m, v in zip(means, variances, strict=True))

    return implementation


def _register(names: Iterable[str], make: Any) -> None:
    for name in names:
        if hasattr(torch, name):
            rule(getattr(torch, name))(make(getattr(torch, name)))
        if hasattr(Tensor, name):
            rule(getattr(Tensor, name))(make(_by_name(name)))


def _by_name(name: str) -> Any:
    """Return the method as a function; some cannot be compiled when called by their class."""

    def call(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        return getattr(tensor, name)(*args, **kwargs)

    return call


_register(chain(*_SAME_FOR_BOTH), same_for_both)
_register(_SEVERAL, _several)
rule(torch.detach, Tensor.detach)(detached)
# A variance may be a smaller tensor, expanded, of which there is no view in every shape.
rule(Tensor.view)(same_for_both(_by_name("view"), _by_name("reshape")))
rule(Tensor.view_as)(same_for_both(_by_name("view_as"), _by_name("reshape_as")))
for _function in (*_SAME_FOR_BOTH_FUNCTIONAL, F.unfold, F.fold):
    rule(_function)(same_for_both(_function))


@rule(torch.mean, Tensor.mean)
def _mean(x: Moments, *args: Any, **kwargs: Any) -> Moments:
    mean = torch.mean(x.expected, *args, **kwargs)
    if x.variance_or_none is None:
        return Moments(mean)
    total = torch.mean(x.variance_or_none, *args, **{**kwargs, "dtype": None})
    # Averaged over n entries: sum(v) / n^2 is the average over n.
    return Moments(mean, total * (max(mean.numel(), 1) / max(x.expected.numel(), 1)))


def _join(function: Any) -> Any:
    def implementation(tensors: Sequence[Any], *args: Any, **kwargs: Any) -> Moments:
        parts = [as_moments(part) for part in tensors]
        mean = function([part.expected for part in parts], *args, **kwargs)
        if all(part.is_certain for part in parts):
            return Moments(mean)
        return Moments(mean, function([part.variance for part in parts], *args, **kwargs))

    return implementation


for _function in (torch.cat, torch.concat, torch.concatenate, torch.stack, torch.hstack):
    rule(_function)(_join(_function))
for _function in (torch.vstack, torch.dstack):
    rule(_function)(_join(_function))


@rule(F.pad)
def _pad(
    x: Moments, pad: Sequence[int], mode: str = "constant", value: float | None = None
) -> Moments:
    variance = x.variance_or_none
    # Padded constants are certain; reflected and repeated entries bring their variance along.
    moved = None if variance is None else F.pad(variance, pad, mode)
    return Moments(F.pad(x.expected, pad, mode, value), moved)


@rule(torch.masked_fill, Tensor.masked_fill)
def _masked_fill(x: Moments, mask: Tensor, value: Any) -> Moments:
    variance = x.variance_or_none
    moved = None if variance is None else variance.masked_fill(mask, 0.0)
    return Moments(x.expected.masked_fill(mask, value), moved)


@rule(torch.where, Tensor.where)
def _where(condition: Any, x: Any, y: Any) -> Moments:
    if isinstance(condition, Moments):  # Tensor.where(x, condition, y)
        condition, x = x, condition
    mean = torch.where(condition, mean_of(x), mean_of(y))
    first, second = variance_of(x), variance_of(y)
    if first is None and second is None:
        return Moments(mean)
    none = torch.zeros((), dtype=variance_dtype(mean.dtype), device=mean.device)
    first, second = none if first is None else first, none if second is None else second
    return Moments(mean, torch.where(condition, first, second))


@rule(Tensor.to)
def _to(x: Moments, *args: Any, **kwargs: Any) -> Moments:
    args = tuple(map(mean_of, args))
    mean, variance = x.expected.to(*args, **kwargs), x.variance_or_none
    if variance is not None:
        variance = variance.to(mean.device, variance_dtype(mean.dtype))
    return Moments(mean, variance)


def _cast(function: Any) -> Any:
    def implementation(x: Moments, *args: Any, **kwargs: Any) -> Moments:
        return _to(x, function(x.expected, *map(mean_of, args), **kwargs))

    return implementation


for _name in ("float", "double", "half", "bfloat16", "cpu", "cuda", "type_as"):
    rule(getattr(Tensor, _name))(_cast(getattr(Tensor, _name)))


def _of_mean(function: Any) -> Any:
    """Return the rule of a function that asks for shape, type or place alone."""

    def implementation(x: Moments, *args: Any, **kwargs: Any) -> Any:
        return function(x.expected, *args, **kwargs)

    return implementation


_QUESTIONS = (
    ("size", "dim", "ndimension", "numel", "nelement", "stride", "is_contiguous", "element_size"),
    ("is_floating_point", "is_complex", "get_device", "result_type"),
    ("new_zeros", "new_ones", "new_full", "new_empty", "new_tensor"),
    ("zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like"),
)
_register(chain(*_QUESTIONS), _of_mean)


def _matrix_transposed(x: Moments) -> Moments:
    return x.transpose(-2, -1)


def _reversed(x: Moments) -> Moments:
    return x.permute(*reversed(range(x.ndim)))


Moments.mT = property(_matrix_transposed)  # pyright: ignore[reportAttributeAccessIssue]
Moments.T = property(_reversed)  # pyright: ignore[reportAttributeAccessIssue]
