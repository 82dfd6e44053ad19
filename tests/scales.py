"""Standard deviations of random weights, for tests that need them to differ."""

import torch
from torch import nn

from bayesify.conversion.posterior import posteriors


def set_stds(model: nn.Module, std: float) -> nn.Module:
    """Give every random weight a standard deviation of its own, around this one."""
    generator = torch.Generator().manual_seed(1)
    for site in posteriors(model):
        wanted = std * (0.5 + torch.rand(site.rho.shape, generator=generator, dtype=site.rho.dtype))
        site.rho.data.copy_(torch.log(torch.expm1(wanted)))
    return model
