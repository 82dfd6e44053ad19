"""The positive scale of a posterior: std = softplus(rho), stable at both ends."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

# Above this softplus(rho) equals rho even in float64; torch's own 20 leaves an error of 2e-9.
_LINEAR_ABOVE = 40.0


def softplus(rho: Tensor) -> Tensor:
    """Return std = log(1 + exp(rho)); rho = -inf is exactly 0."""
    return F.softplus(rho, threshold=_LINEAR_ABOVE)


def inverse_softplus(std: Tensor) -> Tensor:
    """Return the rho whose softplus is std; 0 gives -inf."""
    return std + torch.log(-torch.expm1(-std))


def log_softplus(rho: Tensor) -> Tensor:
    """Return log(softplus(rho)) with a finite value and gradient for every finite rho.

    It lies below rho, and meets it before softplus(rho) underflows: the smaller of the two is right
    on both sides.
    """
    return torch.minimum(softplus(rho).clamp_min(torch.finfo(rho.dtype).tiny).log(), rho)
