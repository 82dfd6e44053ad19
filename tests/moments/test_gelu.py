"""The GELU's moments, and their derivatives in closed form."""

import numpy as np
import pytest
import torch
from scipy.stats import norm

from bayesify.moments import gelu as module
from bayesify.moments.gelu import gelu_moments

VARIANCES = (1e-6, 1e-3, 0.0041, 0.05, 0.7, 3.0, 40.0)


def grid(dtype=torch.float64):
    m = torch.linspace(-9.0, 9.0, 91, dtype=dtype)
    m[45] = 0.0
    return m.repeat(len(VARIANCES)), torch.tensor(VARIANCES, dtype=dtype).repeat_interleave(91)


def derivatives(m, v):
    m, v = m.clone().requires_grad_(), v.clone().requires_grad_()
    moments = gelu_moments(m, v)
    found = [torch.autograd.grad(part.sum(), (m, v), retain_graph=True) for part in moments]
    return [part.detach() for part in moments], [each for pair in found for each in pair]


def test_derivatives_are_those_of_the_formulas_of_the_moments(monkeypatch):
    moments, own = derivatives(*grid())
    monkeypatch.setattr(module, "takes_own_derivatives", lambda *_: False)
    again, by_autograd = derivatives(*grid())
    torch.testing.assert_close(moments, again, rtol=0.0, atol=0.0)
    # Of the variance's derivative along v the series that autograd goes through leaves out 1e-9.
    torch.testing.assert_close(own, by_autograd, rtol=1e-10, atol=1e-9)


@pytest.mark.parametrize("m", [-3.0, -0.75, 0.0, 0.75, 3.0])
@pytest.mark.parametrize("v", [1e-6, 0.0039, 0.0041, 0.5])
def test_derivatives_are_expectations(m, v):
    """dr/dm = 2 Cov(g, g') and dr/dv = E[g'^2] + Cov(g, g''), by quadrature over 12 deviations."""
    _, found = derivatives(*(torch.tensor([each], dtype=torch.float64) for each in (m, v)))
    nodes, weights = np.polynomial.legendre.leggauss(400)
    z = m + 12.0 * nodes * v**0.5
    share = weights * np.exp(-0.5 * (12.0 * nodes) ** 2)
    share = share / share.sum()
    bell, below = norm.pdf(z), norm.cdf(z)
    g, slope, bend = z * below, below + z * bell, bell * (2.0 - z * z)
    a = share @ g
    expected = [
        share @ slope,
        0.5 * (share @ bend),
        2.0 * (share @ ((g - a) * slope)),
        share @ slope**2 + share @ ((g - a) * bend),
    ]
    for each, right in zip(found, expected, strict=True):
        assert each.item() == pytest.approx(right, rel=1e-7, abs=1e-11)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
@pytest.mark.parametrize("v", [1e-6, 0.5])
def test_forms_agree_at_zero_in_every_mode(v):
    m, v = torch.zeros((), dtype=torch.float64), torch.tensor(v, dtype=torch.float64)
    own = torch.stack(derivatives(m, v)[1]).view(2, 2)

    def call(m, v):
        return torch.stack(gelu_moments(m, v))

    for mode in (torch.func.jacrev, torch.func.jacfwd):
        found = torch.stack(mode(call, argnums=(0, 1))(m, v), 1)
        torch.testing.assert_close(found, own, rtol=1e-9, atol=1e-10)


def test_derivatives_keep_their_digits_in_float32():
    _, exact = derivatives(*grid())
    _, single = derivatives(*grid(torch.float32))
    for found, expected in zip(single, exact, strict=True):
        torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=2e-6)


def test_second_derivatives():
    m = torch.tensor([-3.0, -0.4, 0.0, 0.7, 4.0], dtype=torch.float64, requires_grad=True)
    v = torch.tensor([0.5, 2.0, 1e-3, 0.1, 0.02], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(gelu_moments, (m, v))
    assert torch.autograd.gradgradcheck(gelu_moments, (m, v))


def test_far_out_everything_is_finite():
    m = torch.tensor([-1e30, -500.0, 500.0, 1e30], requires_grad=True)
    v = torch.tensor([1.0, 1e-30, 1e6, 0.0], requires_grad=True)
    mean, variance = gelu_moments(m, v)
    ((1e-30 * mean).sum() + variance.sum()).backward()
    assert m.grad is not None
    assert v.grad is not None
    assert all(part.isfinite().all() for part in (mean, variance, m.grad, v.grad))
    assert (variance >= 0.0).all()
