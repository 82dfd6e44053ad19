"""Networks with gradient checkpoints, and one training step on a copy of one."""

import copy

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from bayesify.conversion import convert
from bayesify.methods import MeanField


class Net(nn.Module):
    """Two layers; the first one, or whatever `block` says, under a checkpoint."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 4)
        self.dropout = nn.Dropout(dropout)
        self.reentrant = None

    def block(self, x):
        return self.dropout(torch.tanh(self.a(x)))

    def through(self, function, x):
        if self.reentrant is None:
            return function(x)
        return checkpoint(function, x, use_reentrant=self.reentrant)

    def forward(self, x):
        return self.b(self.through(self.block, x))


class InsideAndOutside(Net):
    def forward(self, x):
        return self.b(self.a(self.through(self.block, self.a(x))))


class TwoRegions(Net):
    def forward(self, x):
        return self.b(self.through(self.block, self.through(self.block, x)))


class ReadsInside(Net):
    """Asks a layer for its weight's type: under "local" that draws inside the checkpoint."""

    def block(self, x):
        assert self.a.weight.dtype == torch.float64
        return self.dropout(torch.tanh(self.a(x) + x @ self.a.weight))

    def forward(self, x):
        return self.b(self.through(self.block, x)) @ self.a.weight


class Nested(Net):
    def block(self, x):
        return self.through(super().block, torch.tanh(self.b(x)))


NETS = (Net, InsideAndOutside, TwoRegions, ReadsInside, Nested)


def build(kind=Net, how="sample", dropout=0.0, **options):
    torch.manual_seed(2)
    net = kind(dropout).double()
    return convert(net, MeanField(how=how, initial_std=0.5, **options))


def inputs(seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(3, 4, dtype=torch.float64, generator=generator)
    return x.requires_grad_()  # a reentrant checkpoint wants an input with a gradient


def gradients(model, *extra):
    parameters = [*extra, *model.parameters()]
    return [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in parameters]


def trained(model, reentrant, forward=None, seed=7):
    """Return the gradients of one forward and backward on a copy of a model."""
    model, x = copy.deepcopy(model), inputs()
    model.reentrant = reentrant
    torch.manual_seed(seed)
    output = (forward or nn.Module.__call__)(model, x)
    output.square().sum().backward()
    return gradients(model, x)


def assert_same(left, right):
    assert len(left) == len(right)
    for a, b in zip(left, right, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)
