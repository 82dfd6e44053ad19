"""A small tensor that compiled code is to write down once.

The compiler (torch's inductor) computes what is made of one number where it is read, however often.
The standard deviation of a unit's weights, softplus(rho), has a logarithm and an exponential in
it, and every entry that the unit makes, in every kernel that looks at one, reads it: together they
took longer than all else in some of these kernels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class _Setting:
    """A plain attribute, as the choice of rules is: the compiler guards it."""

    is_on = False


_setting = _Setting()


class scales_written_down:  # noqa: N801 (used as a phrase: `with scales_written_down():`)
    """Open a context in which compiled code writes down what `written_down` is given.

    Not the default: `torch.func.vmap` inside of compiled code cannot take the view.
    """

    def __enter__(self) -> None:
        self.before, _setting.is_on = _setting.is_on, True

    def __exit__(self, *_: object) -> None:
        _setting.is_on = self.before


def written_down(tensor: Tensor) -> Tensor:
    """Return the tensor, in compiled code as one that lies in memory."""
    is_wanted = _setting.is_on and torch.compiler.is_dynamo_compiling()
    return _WrittenDown.apply(tensor) if is_wanted else tensor


class _WrittenDown(torch.autograd.Function):
    """A view by strides, before which the compiler must have the entries; it has no other word."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        del ctx
        # A tensor of its own, which begins where its memory does, as such a view is taken to.
        own = tensor.clone(memory_format=torch.contiguous_format)
        return own.as_strided(own.size(), own.stride())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        del ctx
        return gradient
