"""A slow reference that keeps the whole covariance of one example.

The diagonal rules forget that neighbouring outputs share inputs and weights. `FullMoments` carries
a mean and a full covariance matrix through the same unmodified forward: operations with fixed
weights by their Jacobian (exact where they are linear, else to first order), linear layers and
two-dimensional convolutions with uncertain weights exactly, the sharing of a kernel by all
positions included. Memory grows with the square of the number of features: it is for networks of
the size of LeNet, for tests, and for measuring what the diagonal rules lose.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bayesify.moments.moments import Moments, mean_of, variance_of

# Few enough for the images of a convolution's rows to fit in memory beside the covariance.
_ROWS_AT_ONCE = 256


class FullMoments:
    """The mean of one example and the covariance of all its entries.

    Args:
        mean: The mean, of any shape; one example, so a first dimension of batch is 1.
        covariance: A matrix over the flattened entries, or None for a certain value.
    """

    def __init__(self, mean: Tensor, covariance: Tensor | None = None) -> None:
        size = mean.numel()
        if covariance is None:
            covariance = torch.zeros(size, size, dtype=mean.dtype, device=mean.device)
        if covariance.shape != (size, size):
            raise ValueError(
                f"covariance must have shape ({size}, {size}) for a mean of {size} entries, got "
                f"{tuple(covariance.shape)}"
            )
        self.expected = mean
        self.covariance = covariance

    @classmethod
    def from_moments(cls, moments: Moments) -> FullMoments:
        """Return uncorrelated entries with the variances of moments."""
        mean, variance = moments.pair()
        return cls(mean, torch.diag(variance.flatten().to(mean.dtype)))

    @property
    def variance(self) -> Tensor:
        """The variance of each entry."""
        return self.covariance.diagonal().view(self.expected.shape)

    @property
    def shape(self) -> torch.Size:
        """The shape of the mean."""
        return self.expected.shape

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return self.expected.ndim

    def dim(self) -> int:
        """Return the number of dimensions."""
        return self.expected.ndim

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not hasattr(Tensor, name):
            raise AttributeError(f"'FullMoments' object has no attribute {name!r}")

        def method(*args: Any, **kwargs: Any) -> FullMoments:
            return _by_jacobian(getattr(Tensor, name), (self, *args), kwargs)

        return method

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Answer a torch function exactly where weights are uncertain, else by its Jacobian."""
        del types
        kwargs = kwargs or {}
        if func is F.linear:
            return _linear(*args, **kwargs)
        if func is F.conv2d:
            return _conv2d(*args, **kwargs)
        return _by_jacobian(func, args, kwargs)


def _by_jacobian(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> FullMoments:
    others = [*args[1:], *kwargs.values()]
    if not isinstance(args[0], FullMoments) or any(
        isinstance(item, (FullMoments, Moments)) for item in others
    ):
        raise NotImplementedError(
            f"the full covariance takes one uncertain operand, its first, in {function.__name__}; "
            "how two operands vary together is not kept"
        )
    x = args[0]

    def of_mean(mean: Tensor) -> Tensor:
        return function(mean, *args[1:], **kwargs)

    def pushed(rows: Tensor) -> Tensor:
        """Return each row times the Jacobian, which is not formed."""

        def along(row: Tensor) -> Tensor:
            tangent = row.view(x.shape)
            return torch.func.jvp(of_mean, (x.expected,), (tangent,))[1].flatten()

        return torch.vmap(along, chunk_size=_ROWS_AT_ONCE)(rows)

    with warnings.catch_warnings():
        # Of torch's own, about how it loads what forward-mode derivatives need.
        warnings.filterwarnings("ignore", message="`torch.jit.script` is deprecated")
        return FullMoments(of_mean(x.expected), pushed(pushed(x.covariance).T))


def _linear(input: Any, weight: Any, bias: Any = None) -> FullMoments:
    w, b = mean_of(weight), mean_of(bias)
    result = _by_jacobian(F.linear, (_full(input), w, b), {})
    x = _full(input)
    extra = torch.zeros_like(result.expected)
    spread = variance_of(weight)
    if spread is not None:
        extra = extra + F.linear(x.expected.square() + x.variance, spread)
        if x.expected.numel() != x.shape[-1]:
            raise NotImplementedError(
                "a linear layer with uncertain weights takes one row in the full covariance, got "
                f"an input of shape {tuple(x.shape)}"
            )
    added = variance_of(bias)
    if added is not None:
        extra = extra + added
    return FullMoments(result.expected, result.covariance + torch.diag(extra.flatten()))


def _conv2d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> FullMoments:
    x, spread, added = _full(input), variance_of(weight), variance_of(bias)
    plain = (mean_of(weight), mean_of(bias), stride, padding, dilation, groups)
    result = _by_jacobian(F.conv2d, (x, *plain), {})
    if spread is None and added is None:
        return result
    channels = result.shape[1]
    # One block of positions by positions for each output channel, whose weights are its own.
    blocks = x.expected.new_zeros(channels, *[result.expected[0, 0].numel()] * 2)
    if spread is not None:
        if groups != 1 or isinstance(padding, str):
            raise NotImplementedError(
                "a convolution with uncertain weights takes one group and a padding in numbers in "
                f"the full covariance, got groups={groups}, padding={padding!r}"
            )
        blocks = blocks + _shared_kernel(x, spread, (dilation, padding, stride))
    if added is not None:
        blocks = blocks + added.view(-1, 1, 1)
    return FullMoments(result.expected, result.covariance + torch.block_diag(*blocks))


def _shared_kernel(x: FullMoments, spread: Tensor, geometry: tuple[Any, Any, Any]) -> Tensor:
    """Return sum_k S_ck E[x_kp x_kp'] for channels c and positions p and p'."""
    # Places are counted from 1: the zero that `unfold` pads with is a place of its own, certain.
    places = torch.arange(1.0, x.expected.numel() + 1, dtype=torch.float64).view(x.shape)
    columns = F.unfold(places, spread.shape[2:], *geometry)[0].long().to(spread.device)
    values = F.pad(x.expected.flatten(), (1, 0))
    covariance = F.pad(x.covariance, (1, 0, 1, 0))
    total = x.expected.new_zeros(len(spread), *[columns.shape[1]] * 2)
    for row, weights in zip(columns, spread.flatten(1).T, strict=True):
        second = torch.outer(values[row], values[row]) + covariance[row][:, row]
        total = total + weights.view(-1, 1, 1) * second
    return total


def _full(value: Any) -> FullMoments:
    return value if isinstance(value, FullMoments) else FullMoments(value)
