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


def written_down(tensor: Tensor) -> Tensor:
    """Return the tensor, in compiled code as one that lies in memory."""
    # Not where a graph is made to be exported, whose readers may not know the view.
    return _WrittenDown.apply(tensor) if torch.compiler.is_dynamo_compiling() else tensor


class _WrittenDown(torch.autograd.Function):
    """A view by strides, before which the compiler must have the entries; it has no other word."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        del ctx
        return tensor.as_strided(tensor.size(), tensor.stride())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        del ctx
        return gradient
