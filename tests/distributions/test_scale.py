import numpy as np
import pytest
import torch

from bayesify.distributions import inverse_softplus, log_softplus, softplus

dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)


def grid(dtype):
    return torch.linspace(-200, 50, 5001, dtype=dtype)


def gradient(function, rho):
    rho = rho.clone().requires_grad_()
    return torch.autograd.grad(function(rho).sum(), rho)[0]


def reference_softplus(rho):
    return torch.from_numpy(np.logaddexp(0.0, rho.double().numpy()))


def reference_log_softplus(rho):
    rho = rho.double()
    # log(z − z²/2 + ...) with z = exp(rho): exact in float64 below −20.
    return torch.where(rho < -20, rho - rho.exp() / 2, reference_softplus(rho).log())


def assert_close(actual, expected, dtype, factor=8.0):
    """Compare up to a few units of the last place, and up to the smallest normal number."""
    precision = torch.finfo(dtype)
    error = (actual.double() - expected).abs()
    allowed = factor * precision.eps * expected.abs() + precision.tiny
    worst = (error - allowed).argmax()
    assert (error <= allowed).all(), (actual[worst], expected[worst])


@dtypes
def test_softplus_value_and_gradient_are_exact_everywhere(dtype):
    rho = grid(dtype)
    assert_close(softplus(rho), reference_softplus(rho), dtype)
    sigmoid = torch.exp(-reference_softplus(-rho))
    # exp itself loses |rho| units of the last place: its argument is rounded.
    assert_close(gradient(softplus, rho), sigmoid, dtype, factor=200.0)


@dtypes
def test_log_softplus_value_and_gradient_are_exact_everywhere(dtype):
    rho = grid(dtype)
    expected = reference_log_softplus(rho)
    error = (log_softplus(rho).double() - expected).abs()
    assert (error <= 8 * torch.finfo(dtype).eps * expected.abs().clamp_min(1.0)).all()
    slope = torch.exp(-reference_softplus(-rho) - expected)
    assert_close(gradient(log_softplus, rho), slope, dtype, factor=300.0)


@dtypes
def test_log_softplus_is_continuous_where_its_branches_meet(dtype):
    edge = torch.tensor(torch.finfo(dtype).eps, dtype=dtype).log()
    left = torch.nextafter(edge, edge - 1)
    gap = log_softplus(edge) - log_softplus(left)
    assert gap.abs() <= 8 * torch.finfo(dtype).eps * edge.abs()


@dtypes
def test_inverse_softplus_undoes_softplus(dtype):
    least = -80.0 if dtype == torch.float32 else -200.0  # below, softplus is no normal number
    rho = torch.linspace(least, 50, 3001, dtype=dtype)
    error = (inverse_softplus(softplus(rho)) - rho).abs()
    # softplus near −80 keeps |rho| units of its argument's last place.
    assert (error <= 4 * torch.finfo(dtype).eps * rho.abs().clamp_min(1.0)).all()


@dtypes
def test_inverse_softplus_gradient_is_one_over_one_minus_exp(dtype):
    std = torch.logspace(-30, 2, 200, dtype=dtype)
    expected = -1.0 / torch.expm1(-std.double())
    assert_close(gradient(inverse_softplus, std), expected, dtype)


@dtypes
@pytest.mark.parametrize("function", [softplus, log_softplus])
def test_extreme_rho_gives_finite_values_and_gradients(function, dtype):
    rho = torch.tensor([-1e30, -1e4, -104.0, -88.0, 88.0, 1e4, 1e30], dtype=dtype)
    assert torch.isfinite(function(rho)).all()
    assert torch.isfinite(gradient(function, rho)).all()


def test_minus_infinity_is_exactly_zero_scale():
    rho = torch.tensor([-torch.inf])
    assert softplus(rho) == 0
    assert gradient(softplus, rho) == 0
    assert inverse_softplus(torch.zeros(1)) == -torch.inf


def test_half_precision_scales_are_finite():
    rho = torch.linspace(-30, 20, 101, dtype=torch.bfloat16)
    assert torch.isfinite(softplus(rho)).all()
    assert torch.isfinite(log_softplus(rho)).all()
    error = (log_softplus(rho).double() - reference_log_softplus(rho)).abs()
    assert (error <= 2 * torch.finfo(torch.bfloat16).eps * (1 + rho.double().abs())).all()
