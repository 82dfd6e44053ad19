"""Functions of the normal law against scipy and exact integrals."""

import math

import numpy as np
import pytest
import torch
from scipy import special

from bayesify.moments.gaussian_functions import (
    coarse_tail,
    coarse_tail_mean,
    cumulative,
    density,
    hermite_moments,
    owen_t,
    tail_mean,
)


def test_cumulative_keeps_its_digits_in_the_lower_tail():
    x = torch.tensor([-12.0, -6.0, -1.0, 0.0, 3.0])
    expected = torch.tensor(special.ndtr(x.double().numpy()))
    assert ((cumulative(x).double() - expected) / expected).abs().max() < 2e-5
    assert cumulative(x)[0] > 0


def test_coarse_tails_are_near_themselves():
    x = torch.linspace(0.0, 30.0, 3001, dtype=torch.float64)
    exact = torch.special.log_ndtr(-x).exp()
    assert ((coarse_tail(x, density(x)) - exact) / exact).abs().max() < 4e-5
    # Far out the difference that the mean of a tail is has no digits left.
    x = x[:600]
    exact = density(x) - x * torch.special.log_ndtr(-x).exp()
    assert ((coarse_tail_mean(x, density(x)) - exact) / exact).abs().max() < 1e-4


def test_density_integrates_to_one():
    x = torch.linspace(-10, 10, 2001, dtype=torch.float64)
    assert abs(float(torch.trapezoid(density(x), x)) - 1.0) < 1e-12


def test_tail_mean_is_never_negative():
    x = torch.linspace(0, 50, 5001)
    assert (tail_mean(x) >= 0).all()


def test_owen_t_is_that_of_scipy():
    h = torch.linspace(-8, 8, 41, dtype=torch.float64)[:, None].expand(41, 11).contiguous()
    a = torch.linspace(0, 1, 11, dtype=torch.float64).expand(41, 11).contiguous()
    expected = torch.tensor(special.owens_t(h.numpy(), a.numpy()))
    assert (owen_t(h, a) - expected).abs().max() < 1e-13


def test_owen_t_has_first_and_second_derivatives():
    h = torch.linspace(-3, 3, 7, dtype=torch.float64, requires_grad=True)
    a = torch.linspace(0.1, 1, 7, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(owen_t, (h, a))
    assert torch.autograd.gradgradcheck(owen_t, (h, a))


@pytest.mark.parametrize("power", [1, 2, 3, 7])
def test_hermite_moments_are_exact_for_powers(power):
    m = torch.linspace(-2, 2, 5, dtype=torch.float64)
    v = torch.full_like(m, 0.7)
    mean, variance = hermite_moments(lambda z: z**power, m, v)
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    z = m[:, None] + math.sqrt(0.7) * torch.tensor(nodes)
    weights = torch.tensor(weights) / math.sqrt(2 * math.pi)
    expected = (z**power * weights).sum(-1)
    spread = ((z**power - expected[:, None]) ** 2 * weights).sum(-1)
    torch.testing.assert_close(mean, expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(variance, spread, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_hermite_gradients_at_zero_variance_are_those_of_the_limit(dtype):
    m = torch.linspace(-2, 2, 9, dtype=dtype, requires_grad=True)
    v = torch.zeros(9, dtype=dtype, requires_grad=True)
    mean, variance = hermite_moments(torch.tanh, m, v)
    assert torch.equal(mean, torch.tanh(m))
    assert torch.equal(variance, torch.zeros(9, dtype=dtype))
    slope = 1 - torch.tanh(m) ** 2
    curvature = -2 * torch.tanh(m) * slope
    # The step has a floor, of variance 1e-5 or 1e-9, and rounding is divided by it.
    tolerance = 2e-2 if dtype == torch.float32 else 1e-6
    (along_v,) = torch.autograd.grad(mean.sum(), v, retain_graph=True)
    torch.testing.assert_close(along_v, 0.5 * curvature, atol=tolerance, rtol=tolerance)
    (along_v,) = torch.autograd.grad(variance.sum(), v, retain_graph=True)
    torch.testing.assert_close(along_v, slope**2, atol=2e-4, rtol=2e-4)
    (along_m,) = torch.autograd.grad(mean.sum(), m)
    torch.testing.assert_close(along_m, slope)
