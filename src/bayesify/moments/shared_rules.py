"""Rules that also carry how much a channel's mean over positions varies.

One weight of a convolution serves every position of an image, so the outputs of a channel move
together. The exact rules take them as uncorrelated, and an average over positions then loses
nearly all of a variance that is really there. Beside its mean and variance an image (batch,
channels, N positions) here has `common`, of shape (batch, channels, 1...): the variance c of the
channel's mean over positions, and with it b = (c - v / N) / (1 - 1 / N), the covariance of two
positions. It costs a number per channel, and products of the size of one position:

    convolution   weights give c' the part S * t^2, t the mean that each tap of the kernel sees;
                  b passes by the squared sum of the taps, v - b as independent positions do
    element-wise  b' = b (mean over positions of the slope)^2
    average       v' = (v - b) / n + b

Channels are still taken as uncorrelated, and what has no rule here loses its common part, and is
as under the exact rules.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bayesify.moments.gaussian_functions import cumulative, standard_deviation
from bayesify.moments.moments import Moments, as_moments, mean_of, precise, rule, variance_of
from bayesify.moments.rule_table import TABLES, Rule, table_key

# Up to so many the border of an image is taken into account one position at a time.
_FEW_POSITIONS = 64


def _shared(*functions: Any) -> Callable[[Callable[..., Any]], None]:
    """Return a decorator: `carry(exact, *args)` answers the functions, `exact` their exact rule."""

    def register(carry: Callable[..., Any]) -> None:
        for function in functions:
            exact = TABLES["exact"][table_key(function)]
            rule(function, form="shared")(_bound(carry, exact))

    return register


def _bound(carry: Callable[..., Any], exact: Rule) -> Rule:
    def implementation(*args: Any, **kwargs: Any) -> Any:
        return carry(exact, *args, **kwargs)

    return implementation


def _positions(x: Moments) -> tuple[int, ...]:
    return tuple(range(2, x.ndim))


def _parts(x: Any) -> tuple[Tensor, Tensor] | None:
    """Return the covariance of two positions, and what each varies by itself; None if certain."""
    if not isinstance(x, Moments) or x.is_certain or x.ndim < 3:
        return None
    number = math.prod(x.shape[2:])
    whole = precise(x)[1].mean(_positions(x), keepdim=True)
    if x.common is None or number == 1:
        return torch.zeros_like(whole), whole
    between = (x.common - whole / number) / (1.0 - 1.0 / number)
    return between, whole - between


def _with_between(result: Moments, between: Tensor) -> Moments:
    """Give a result the common part that a covariance of two positions implies."""
    if result.is_certain:
        return result
    number = math.prod(result.shape[2:])
    whole = precise(result)[1].mean(_positions(result), keepdim=True)
    return _limited(result, between + (whole - between) / number)


def _limited(result: Moments, common: Tensor | None) -> Moments:
    """Give a result its common part, which is at most its mean variance."""
    if common is None or result.is_certain:
        return result
    most = precise(result)[1].mean(_positions(result), keepdim=True)
    result.common = torch.minimum(common, most).clamp_min(0.0)
    return result


def _convolution(num_sides: int) -> Callable[..., Any]:
    def carry(
        exact: Rule,
        input: Any,
        weight: Any,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Moments:
        result = exact(input, weight, bias, stride, padding, dilation, groups)
        x = as_moments(input)
        if result.is_certain or isinstance(padding, str) or x.ndim != num_sides + 2:
            return result
        steps = [_per_side(each, num_sides) for each in (stride, padding, dilation)]
        sizes = result.shape[2:]
        mean = mean_of(weight)
        mean = mean.to(torch.promote_types(mean.dtype, torch.float32))
        spread = variance_of(weight)
        product = (F.conv1d, F.conv2d, F.conv3d)[num_sides - 1]
        common = mean.new_zeros(())
        if spread is not None:
            taps = _taps(precise(x)[0], mean.shape[2:], sizes, *steps)
            common = common + product(taps.square(), spread.to(taps.dtype), groups=groups)
        parts = _parts(x)
        if parts is not None:
            between, own = parts
            # At the border a tap sees padding: it counts for the share of positions it is inside.
            inside = _taps(mean.new_ones(1, 1, *x.shape[2:]), mean.shape[2:], sizes, *steps)
            together = (mean * inside).sum(_positions_of(mean), keepdim=True).square()
            apart = _apart(mean, x.shape[2:], sizes, *steps)
            if spread is not None:
                seen = (spread * inside).sum(_positions_of(mean), keepdim=True)
                apart = apart + seen / math.prod(sizes)
                seen = (spread * inside.square()).sum(_positions_of(mean), keepdim=True)
                together = together + seen
            common = common + product(between.to(together.dtype), together, groups=groups)
            common = common + product(own.to(apart.dtype), apart, groups=groups)
        if spread is None and parts is None:
            return result
        added = variance_of(bias)
        if added is not None:
            common = common + added.view(-1, *[1] * num_sides)
        return _limited(result, common)

    return carry


def _apart(
    mean: Tensor,
    before: Any,
    sizes: Any,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
) -> Tensor:
    """Return by how much the variance of independent positions reaches the mean over outputs.

    A position is seen by several outputs, through taps of its own: of few positions these are
    added up one by one, of many the border is left out.
    """
    num_sides, number = len(sizes), math.prod(sizes)
    if math.prod(before) <= _FEW_POSITIONS:
        missing = [
            b - ((n - 1) * s - 2 * p + d * (k - 1) + 1)
            for b, n, s, p, d, k in zip(
                before, sizes, stride, padding, dilation, mean.shape[2:], strict=True
            )
        ]
        back = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[num_sides - 1]
        kernels = mean.reshape(1, -1, *mean.shape[2:])
        ones = mean.new_ones(1, 1, *sizes)
        reached = back(ones, kernels, None, stride, padding, missing, 1, dilation)
        total = reached.square().flatten(2).sum(2) / number**2
        return total.view(*mean.shape[:2], *[1] * num_sides)
    starts = [
        tuple(slice(at, None, step) for at, step in zip(phase, stride, strict=True))
        for phase in itertools.product(*(range(step) for step in stride))
    ]
    sums = [mean[(..., *start)].sum(_positions_of(mean), keepdim=True).square() for start in starts]
    return sum(sums[1:], start=sums[0]) / number


def _positions_of(weight: Tensor) -> tuple[int, ...]:
    return tuple(range(2, weight.ndim))


def _per_side(value: Any, num_sides: int) -> tuple[int, ...]:
    return (value,) * num_sides if isinstance(value, int) else tuple(value)


def _taps(
    x: Tensor,
    kernel: Any,
    sizes: Any,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
) -> Tensor:
    """Return the mean over output positions of what each tap sees, (batch, channels, *kernel)."""
    for side in range(len(sizes)):
        dim = side + 2
        pads = [0, 0] * (x.ndim - 1 - dim) + [padding[side]] * 2
        padded = F.pad(x, pads)
        last = (sizes[side] - 1) * stride[side] + 1
        rows = []
        for tap in range(kernel[side]):
            seen = padded.narrow(dim, tap * dilation[side], last)
            index = (slice(None),) * dim + (slice(None, None, stride[side]),)
            rows.append(seen[index].mean(dim))
        x = torch.stack(rows, dim)
    return x


for _sides, _function in enumerate((F.conv1d, F.conv2d, F.conv3d), 1):
    _shared(_function)(_convolution(_sides))


@_shared(F.batch_norm)
def _batch_norm(exact: Rule, input: Any, *args: Any, **kwargs: Any) -> Moments:
    parts = _parts(input)
    result = exact(input, *args, **kwargs)
    if parts is None:
        return result
    between, own = parts
    after = precise(result)[1].mean(_positions(result), keepdim=True)
    return _with_between(result, between * after / _positive(between + own))


@_shared(F.relu, torch.relu, torch.Tensor.relu)
def _relu(exact: Rule, x: Moments, *args: Any, **kwargs: Any) -> Moments:
    parts = _parts(x)
    if parts is None:
        return exact(x, *args, **kwargs)
    m, v = precise(x)
    # The mean slope of a ReLU is the probability of being above 0.
    slope = cumulative(m / standard_deviation(v)).mean(_positions(x), keepdim=True)
    return _with_between(exact(x, *args, **kwargs), parts[0] * slope.square())


@_shared(F.leaky_relu, F.gelu, F.silu, F.elu, F.selu, torch.sigmoid, torch.tanh, F.softplus)
def _smooth(exact: Rule, x: Moments, *args: Any, **kwargs: Any) -> Moments:
    parts = _parts(x)
    if parts is None:
        return exact(x, *args, **kwargs)
    before = precise(x)[1]
    result = exact(x, *args, **kwargs)
    slope = (precise(result)[1] / _positive(before)).sqrt().mean(_positions(x), keepdim=True)
    return _with_between(result, parts[0] * slope.square())


def _positive(x: Tensor) -> Tensor:
    return x.clamp_min(torch.finfo(x.dtype).tiny)


@_shared(torch.add, torch.Tensor.add, torch.Tensor.__add__, torch.Tensor.__radd__)
def _add(exact: Rule, left: Any, right: Any, **kwargs: Any) -> Moments:
    parts = [each for each in (_parts(left), _parts(right)) if each is not None]
    result = exact(left, right, **kwargs)
    if left is right or not parts or result.ndim < 3 or kwargs.get("alpha", 1) != 1:
        return result
    return _with_between(result, sum((each for each, _ in parts[1:]), start=parts[0][0]))


def _average(exact: Rule, input: Moments, *args: Any, **kwargs: Any) -> Moments:
    parts = _parts(input)
    if parts is None or input.common is None:
        return exact(input, *args, **kwargs)
    m, v = precise(input)
    between = parts[0].clamp_min(0.0)
    result = exact(Moments(m, (v - between).clamp_min(0.0)), *args, **kwargs)
    is_one = math.prod(result.shape[2:]) == 1
    variance = input.common if is_one else result.variance + between
    whole = Moments(result.expected.to(input.dtype), variance)
    return _limited(whole, input.common)


_shared(F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)(_average)
_shared(F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d)(_average)


@_shared(torch.mean, torch.Tensor.mean)
def _mean(exact: Rule, input: Moments, dim: Any = None, *args: Any, **kwargs: Any) -> Moments:
    dims = (dim,) if isinstance(dim, int) else dim
    is_over_positions = dims is not None and {each % input.ndim for each in dims} == set(
        _positions(input)
    )
    if input.common is None or not is_over_positions:
        return exact(input, *(() if dim is None else (dim,)), *args, **kwargs)
    plain = exact(input, dim, *args, **kwargs)
    return Moments(plain.expected, input.common.view(plain.shape))


@_shared(F.max_pool1d, F.max_pool2d, F.max_pool3d, F.interpolate)
def _same_channels(exact: Rule, input: Moments, *args: Any, **kwargs: Any) -> Moments:
    parts = _parts(input)
    result = exact(input, *args, **kwargs)
    return result if parts is None else _with_between(result, parts[0])


@_shared(torch.Tensor.__getitem__)
def _getitem(exact: Rule, x: Moments, index: Any) -> Any:
    result = exact(x, index)
    parts = index if isinstance(index, tuple) else (index,)
    is_of_positions = len(parts) > 2 and all(isinstance(each, slice) for each in parts)
    if x.common is not None and is_of_positions and parts[:2] == (slice(None), slice(None)):
        between, _ = _parts(x) or (x.common, x.common)
        return _with_between(result, between)
    return result


@_shared(F.pad)
def _pad(
    exact: Rule, input: Moments, pad: Any, mode: str = "constant", value: float | None = None
) -> Moments:
    result = exact(input, pad, mode, value)
    # Channels may be added; other positions would change the mean over them.
    if input.common is None or mode != "constant" or any(pad[: 2 * (input.ndim - 2)]):
        return result
    return _limited(result, F.pad(input.common, pad))


@_shared(torch.cat)
def _cat(exact: Rule, tensors: Any, dim: int = 0) -> Moments:
    result = exact(tensors, dim)
    if dim % result.ndim != 1 or all(_parts(each) is None for each in tensors):
        return result
    zeros = torch.zeros((), dtype=torch.float32, device=result.device)
    between = [
        zeros.expand(*each.shape[:2], *[1] * (result.ndim - 2)) if parts is None else parts[0]
        for each, parts in ((each, _parts(each)) for each in tensors)
    ]
    return _with_between(result, torch.cat(between, 1))
