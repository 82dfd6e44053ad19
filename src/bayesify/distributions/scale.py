"""The positive scale of a posterior: std = softplus(rho), stable at both ends."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

# Below this softplus(rho) equals exp(rho) in float32, and log(softplus(rho)) has an infinite
# gradient once exp(rho) underflows.
_LINEAR_BELOW = -15.0


def softplus(rho: Tensor) -> Tensor:
    """Return std = log(1 + exp(rho)); rho = -inf is exactly 0."""
    return F.softplus(rho)


def inverse_softplus(std: Tensor) -> Tensor:
    """Return the rho whose softplus is std; 0 gives -inf."""
    return std + torch.log(-torch.expm1(-std))


def log_softplus(rho: Tensor) -> Tensor:
    """Return log(softplus(rho)) with a finite value and gradient for every finite rho."""
    safe = rho.clamp_min(_LINEAR_BELOW)
    return torch.where(rho < _LINEAR_BELOW, rho, torch.log(F.softplus(safe)))
