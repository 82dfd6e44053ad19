"""The GELU's derivatives in closed form, and its moments in half precision."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.stats import norm

from bayesify.moments import Moments
from bayesify.moments import gelu as module
from bayesify.moments.gelu import gelu_moments

VARIANCES = (1e-6, 1e-3, 0.0041, 0.05, 0.7, 3.0, 40.0)


def grid(dtype=torch.float64):
    m = torch.linspace(-9.0, 9.0, 91, dtype=dtype)
    m[45] = 0.0
    return m.repeat(len(VARIANCES)), torch.tensor(VARIANCES, dtype=dtype).repeat_interleave(91)


def derivatives(m, v, is_coarse=False):
    m, v = m.clone().requires_grad_(), v.clone().requires_grad_()
    moments = gelu_moments(m, v, is_coarse=is_coarse)
    found = [torch.autograd.grad(part.sum(), (m, v), retain_graph=True) for part in moments]
    return [part.detach() for part in moments], [each for pair in found for each in pair]


def test_derivatives_are_those_of_the_formulas_of_the_moments(monkeypatch):
    moments, own = derivatives(*grid())
    monkeypatch.setattr(module, "takes_own_derivatives", lambda *_: False)
    again, by_autograd = derivatives(*grid())
    torch.testing.assert_close(moments, again, rtol=0.0, atol=0.0)
    # Autograd differentiates the sum over nodes, which is near the integral but not the same.
    torch.testing.assert_close(own, by_autograd, rtol=1e-6, atol=1e-8)


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


@pytest.mark.parametrize(
    ("v", "rtol"), [(1e-9, 2e-4), (1e-2, 2e-4), (0.2, 2e-4), (1.0, 5e-4), (3.0, 2e-3), (1e3, 2e-2)]
)
def test_coarse_moments_and_derivatives_are_near(v, rtol):
    """To 2e-4, for the tail that is a polynomial; large variances for want of nodes."""
    m = (1.0 + v) ** 0.5 * torch.linspace(-4.0, 6.0, 51, dtype=torch.float64)
    v = torch.full_like(m, v)
    coarsely, exactly = derivatives(m, v, is_coarse=True), derivatives(m, v)
    pairs = zip(coarsely[0] + coarsely[1], exactly[0] + exactly[1], strict=True)
    for coarse, exact in pairs:
        # Where a moment crosses 0 no digit is sure.
        size = exact.abs() + 0.01 * exact.abs().max()
        assert float(((coarse - exact).abs() / size).max()) < rtol
    with torch.no_grad():
        quiet = gelu_moments(m, v, is_coarse=True)
    assert all(part.grad_fn is None for part in quiet)
    torch.testing.assert_close(list(quiet), coarsely[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("v", [1e-8, 1e-3, 0.1, 1.0, 10.0, 1e4])
def test_variance_keeps_its_digits(v, dtype):
    """Also at the minimum of the GELU, where its slope is 0, and far below."""
    m = torch.cat([torch.linspace(-3.5, 3.5, 29), torch.tensor([-0.7518])]).double()
    m = m * (1.0 + v) ** 0.5
    # The difference to the value at the mean is taken by a series where it would cancel.
    z = torch.linspace(-9.0, 9.0, 400_001 if v > 100.0 else 20_001, dtype=torch.float64)
    weight = torch.exp(-0.5 * z * z)
    weight = weight / weight.sum()
    step = v**0.5 * z
    values = F.gelu(m[:, None] + step) - F.gelu(m)[:, None]
    if v < 1e-6:
        below = torch.special.ndtr(m)[:, None]
        bell = torch.exp(-0.5 * m * m)[:, None] / (2.0 * np.pi) ** 0.5
        slope, bend = below + m[:, None] * bell, bell * (2.0 - m[:, None] ** 2)
        values = step * slope + 0.5 * step**2 * bend
    mean = values @ weight
    expected = (values - mean[:, None]).square() @ weight
    found = gelu_moments(m.to(dtype), torch.full_like(m, v).to(dtype))[1].double()
    # In float32 the slope has its digits from a sum of two terms.
    slack = 1e-9 * v if dtype == torch.float32 else 0.0
    # The series ends with the second derivative, which is all there is at the minimum.
    rtol = 2e-4 if dtype == torch.float32 or v < 1e-6 else 1e-6
    torch.testing.assert_close(found, expected, rtol=rtol, atol=slack)


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
    _, exact = derivatives(m.detach().double(), v.detach().double())
    for part, expected in ((m, exact[0] + exact[2]), (v, exact[1] + exact[3])):
        assert part.grad is not None
        assert part.grad.dtype == dtype
        torch.testing.assert_close(part.grad.double(), expected, rtol=2 * step, atol=2 * step)


@pytest.mark.parametrize(
    ("dtype", "num_nodes"), [(torch.bfloat16, 4), (torch.float32, 10), (torch.float64, 14)]
)
def test_half_precision_takes_fewer_nodes(dtype, num_nodes, monkeypatch):
    asked = []
    term = module._term
    monkeypatch.setattr(module, "_term", lambda *given: asked.append(given) or term(*given))
    F.gelu(Moments(torch.randn(3).to(dtype), torch.ones(3).to(dtype)))
    assert len(asked) == num_nodes


def test_far_out_everything_is_finite():
    m = torch.tensor([-1e30, -500.0, 500.0, 1e30], requires_grad=True)
    v = torch.tensor([1.0, 1e-30, 1e6, 0.0], requires_grad=True)
    mean, variance = gelu_moments(m, v)
    ((1e-30 * mean).sum() + variance.sum()).backward()
    assert m.grad is not None
    assert v.grad is not None
    assert all(part.isfinite().all() for part in (mean, variance, m.grad, v.grad))
    assert (variance >= 0.0).all()
