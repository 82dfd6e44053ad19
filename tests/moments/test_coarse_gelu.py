"""The GELU's moments for half precision, against the exact ones and against quadrature."""

import math

import pytest
import torch
import torch.nn.functional as F

from bayesify.moments import Moments, fused_gelu
from bayesify.moments import coarse_gelu as module
from bayesify.moments.coarse_gelu import coarse_gelu_moments
from bayesify.moments.gelu import gelu_moments


def derivatives(m, v, moments_of=coarse_gelu_moments):
    m, v = m.clone().requires_grad_(), v.clone().requires_grad_()
    moments = moments_of(m, v)
    found = [torch.autograd.grad(part.sum(), (m, v), retain_graph=True) for part in moments]
    return [*(part.detach() for part in moments), *(each for pair in found for each in pair)]


@pytest.mark.parametrize(
    ("v", "rtol"), [(1e-9, 2e-4), (1e-2, 2e-4), (0.2, 2e-4), (1.0, 5e-4), (3.0, 2e-3), (1e3, 2e-2)]
)
def test_moments_and_derivatives_are_near_the_exact_ones(v, rtol):
    """To 2e-4, for the tail that is a polynomial; large variances for want of nodes."""
    m = (1.0 + v) ** 0.5 * torch.linspace(-4.0, 6.0, 51, dtype=torch.float64)
    v = torch.full_like(m, v)
    for coarse, exact in zip(derivatives(m, v), derivatives(m, v, gelu_moments), strict=True):
        # Where a moment crosses 0 no digit is sure.
        size = exact.abs() + 0.01 * exact.abs().max()
        assert float(((coarse - exact).abs() / size).max()) < rtol
    quiet = coarse_gelu_moments(m, v)
    assert all(part.grad_fn is None for part in quiet)
    torch.testing.assert_close(list(quiet), derivatives(m, v)[:2])


def test_derivatives_are_those_of_the_formulas_of_the_moments(monkeypatch):
    m = torch.linspace(-6.0, 6.0, 61, dtype=torch.float64).repeat(3)
    m[30] = 0.0
    v = torch.tensor([1e-6, 0.05, 0.5], dtype=torch.float64).repeat_interleave(61)
    own = derivatives(m, v)
    monkeypatch.setattr(module, "takes_own_derivatives", lambda *_: False)
    # Autograd differentiates the sum over nodes, and the polynomial in the place of a tail.
    torch.testing.assert_close(own, derivatives(m, v), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("v", [1e-3, 0.1, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_variance_keeps_its_digits_where_the_slope_is_0(v, dtype, monkeypatch):
    """At the minimum of the GELU, where moments that are subtracted leave none in float32."""
    monkeypatch.setattr(module, "coarse_tail", lambda x, bell: torch.special.ndtr(-x))
    m = torch.linspace(-0.85, -0.65, 21, dtype=torch.float64) * (1.0 + v) ** 0.5
    z = torch.linspace(-9.0, 9.0, 20_001, dtype=torch.float64)
    weight = torch.exp(-0.5 * z * z)
    weight = weight / weight.sum()
    values = F.gelu(m[:, None] + v**0.5 * z) - F.gelu(m)[:, None]
    expected = (values - (values @ weight)[:, None]).square() @ weight
    found = coarse_gelu_moments(m.to(dtype), torch.full_like(m, v).to(dtype))[1]
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=0.0)


def test_nodes_are_those_of_gauss_and_jacobi():
    """Exact for int_0^1 x^k x dx up to k = 7, and not further."""
    for power in range(9):
        total = sum(weight * node**power for node, weight in module.NODES)
        assert math.isclose(total, 1.0 / (power + 2), rel_tol=1e-12) == (power < 8)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_goes_in_and_comes_out(dtype):
    m = torch.linspace(-4.0, 6.0, 41).to(dtype).requires_grad_()
    v = torch.full((41,), 0.3).to(dtype).requires_grad_()
    result = F.gelu(Moments(m, v))
    assert result.expected.dtype == dtype
    sum(part.float().sum() for part in result.pair()).backward()
    exact = gelu_moments(m.detach().double(), v.detach().double())
    step = torch.finfo(dtype).eps
    for found, expected in zip(result.pair(), exact, strict=True):
        torch.testing.assert_close(found.double(), expected, rtol=step, atol=1e-5)
    if dtype == torch.bfloat16:
        assert result.variance.dtype == dtype
    exact = derivatives(m.detach().double(), v.detach().double(), gelu_moments)[2:]
    for part, expected in ((m, exact[0] + exact[2]), (v, exact[1] + exact[3])):
        assert part.grad is not None
        assert part.grad.dtype == dtype
        torch.testing.assert_close(part.grad.double(), expected, rtol=2 * step, atol=2 * step)


@pytest.mark.parametrize(
    ("dtype", "is_coarse"), [(torch.bfloat16, True), (torch.float32, False), (torch.float64, False)]
)
def test_half_precision_alone_is_coarse(dtype, is_coarse, monkeypatch):
    asked = []
    monkeypatch.setattr(
        fused_gelu, "coarse_gelu_moments", lambda *given: asked.append(1) or gelu_moments(*given)
    )
    F.gelu(Moments(torch.randn(3).to(dtype), torch.ones(3).to(dtype)))
    assert bool(asked) == is_coarse


def test_only_bfloat16_on_a_gpu_is_fused(monkeypatch):
    asked = []
    monkeypatch.setattr(fused_gelu, "_gelu", lambda m, v: asked.append(1) or (m, v))
    monkeypatch.setattr(fused_gelu, "HAS_TRITON", True)
    m = torch.ones(3, 4, dtype=torch.bfloat16)
    F.gelu(Moments(m, m))
    assert not asked
    monkeypatch.setattr(fused_gelu, "DEVICES", ("cpu",))
    half = m.half()
    for given in ((half, half), (m[:0], m[:0]), (m, m.float())):
        fused_gelu.half_precision_gelu_moments(*given)
    with torch.autograd.forward_ad.dual_level():
        fused_gelu.half_precision_gelu_moments(m, m)
    assert not asked
    F.gelu(Moments(m, m))
    assert asked == [1]


def test_far_out_everything_is_finite():
    m = torch.tensor([-1e30, -500.0, 500.0, 1e30], requires_grad=True)
    v = torch.tensor([1.0, 1e-30, 1e6, 0.0], requires_grad=True)
    mean, variance = coarse_gelu_moments(m, v)
    ((1e-30 * mean).sum() + variance.sum()).backward()
    assert m.grad is not None
    assert v.grad is not None
    assert all(part.isfinite().all() for part in (mean, variance, m.grad, v.grad))
    assert (variance >= 0.0).all()
