import pytest
import torch

from bayesify.moments import Moments
from bayesify.moments.gaussian_functions import density
from bayesify.moments.rectified import maximum_moments, rectified_moments


def maximum(m1, v1, m2, v2):
    return maximum_moments((m1, v1), (m2, v2))


def test_rectified_moments_have_first_and_second_derivatives():
    m = torch.linspace(-6, 6, 13, dtype=torch.float64, requires_grad=True)
    v = torch.linspace(0.2, 3, 13, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(rectified_moments, (m, v))
    assert torch.autograd.gradgradcheck(rectified_moments, (m, v))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.filterwarnings("ignore:`torch.jit.script")
def test_closed_derivatives_of_the_relu_are_those_of_its_moments(dtype):
    ratio = torch.linspace(-9, 9, 37, dtype=dtype)
    v = torch.tensor([1e-8, 1e-3, 1.0, 50.0], dtype=dtype)[:, None].expand(4, 37).contiguous()
    m = ratio * v.sqrt()
    tangents = (torch.ones_like(m), torch.zeros_like(v)), (torch.zeros_like(m), torch.ones_like(v))
    # Forward mode differentiates the formula itself, term by term.
    along = [torch.func.jvp(rectified_moments, (m, v), tangent)[1] for tangent in tangents]
    leaves = (m.clone().requires_grad_(), v.clone().requires_grad_())
    for index, result in enumerate(rectified_moments(*leaves)):
        found = torch.autograd.grad(result.sum(), leaves, retain_graph=True)
        for gradient, direction in zip(found, along, strict=True):
            largest = direction[index].abs().amax(1, keepdim=True)
            # The open form's own rounding grows with the square of m / s.
            assert (
                (gradient - direction[index]).abs() <= 300 * torch.finfo(dtype).eps * largest
            ).all()


@pytest.mark.parametrize("variance", [1e-6, 1.0, 100.0])
def test_coarse_moments_are_those_of_the_relu_to_the_digits_of_half_precision(variance):
    ratio = torch.linspace(-12, 12, 4801, dtype=torch.float64)
    v = torch.full_like(ratio, variance).requires_grad_()
    m = (ratio * variance**0.5).requires_grad_()
    exact, coarse = rectified_moments(m, v), rectified_moments(m, v, is_coarse=True)
    torch.testing.assert_close(coarse[0], exact[0], rtol=2e-4, atol=0.0)
    # Far in the lower tail it is a small difference of two larger numbers.
    torch.testing.assert_close(coarse[1], exact[1], rtol=6e-3, atol=0.0)
    torch.testing.assert_close(coarse[1][2000:], exact[1][2000:], rtol=3e-4, atol=0.0)
    for index in (0, 1):
        found, wanted = (
            torch.autograd.grad(each[index].sum(), (m, v), retain_graph=True)
            for each in (coarse, exact)
        )
        torch.testing.assert_close(found, wanted, rtol=2e-4, atol=0.0)


def test_the_relu_of_half_precision_keeps_its_types_and_their_digits():
    m, v = torch.randn(2000) * 3, torch.rand(2000) * 4 + 0.1
    for mean, variance in ((m.bfloat16(), v.bfloat16()), (m.half(), v)):
        leaves = mean.requires_grad_(), variance.requires_grad_()
        found = torch.relu(Moments(*leaves)).pair()
        assert [each.dtype for each in found] == [each.dtype for each in leaves]
        precise = [each.detach().double().requires_grad_() for each in leaves]
        wanted = rectified_moments(*precise)
        eps = torch.finfo(mean.dtype).eps
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one.double(), other, rtol=4 * eps, atol=1e-6)
        slopes = torch.autograd.grad(sum(each.sum() for each in found), leaves)
        assert [each.dtype for each in slopes] == [each.dtype for each in leaves]
        own = torch.autograd.grad(sum(each.sum() for each in wanted), precise)
        for one, other in zip(slopes, own, strict=True):
            torch.testing.assert_close(one.double(), other, rtol=4 * eps, atol=1e-5)


def test_the_larger_of_two_has_first_and_second_derivatives():
    torch.manual_seed(0)
    means = [torch.randn(9, dtype=torch.float64) * 2 for _ in range(2)]
    variances = [torch.rand(9, dtype=torch.float64) + 0.1 for _ in range(2)]
    means[1][0] = means[0][0]
    inputs = [each.requires_grad_() for each in (means[0], variances[0], means[1], variances[1])]
    assert torch.autograd.gradcheck(maximum, inputs)
    assert torch.autograd.gradgradcheck(maximum, inputs)


def test_the_larger_of_two_is_symmetric_and_broadcasts():
    m1, m2 = torch.randn(3, 1, requires_grad=True), torch.randn(4, requires_grad=True)
    v1, v2 = torch.rand(3, 1, requires_grad=True), torch.rand(4, requires_grad=True)
    one, other = maximum(m1, v1, m2, v2), maximum(m2, v2, m1, v1)
    torch.testing.assert_close(one, other)
    left = torch.autograd.grad(sum(each.sum() for each in one), (m1, v1, m2, v2))
    right = torch.autograd.grad(sum(each.sum() for each in other), (m1, v1, m2, v2))
    torch.testing.assert_close(left, right)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("variance", [0.0, 1e-30, 1e-12, 1.0, 1e20, 1e30])
def test_extremes_are_finite_and_so_are_their_derivatives(dtype, variance):
    values = [0.0, -0.0, 1e30, -1e30, 1e20, 3.0, -3.0, 1e-20, -40.0, 40.0, 1e5, -1e5]
    m = torch.tensor(values, dtype=dtype, requires_grad=True)
    v = torch.full_like(m, variance).detach().requires_grad_()
    coarse = rectified_moments(m, v, is_coarse=True)
    for mean, spread in (rectified_moments(m, v), coarse, maximum(m, v, m.flip(0), v.flip(0))):
        assert mean.isfinite().all()
        assert spread.isfinite().all()
        assert (spread >= 0).all()
        for gradient in torch.autograd.grad(mean.sum() + spread.sum(), (m, v)):
            assert gradient.isfinite().all()


def test_relu_of_certain_values_has_the_derivatives_of_the_relu():
    m = torch.tensor([-2.0, -1e-3, 0.0, 1e-3, 2.0], requires_grad=True)
    v = torch.zeros(5, requires_grad=True)
    mean, variance = rectified_moments(m, v)
    assert torch.equal(mean, torch.relu(m))
    assert torch.equal(variance, v)
    (along_m,) = torch.autograd.grad(mean.sum(), m, retain_graph=True)
    assert torch.equal(along_m, torch.tensor([0.0, 0.0, 0.5, 1.0, 1.0]))
    of_m, of_v = torch.autograd.grad(variance.sum(), (m, v))
    assert torch.equal(of_m, torch.zeros(5))
    assert torch.equal(of_v[[0, 1, 3, 4]], torch.tensor([0.0, 0.0, 1.0, 1.0]))


def test_maximum_of_two_is_exact():
    m1 = torch.tensor([0.0, 1.0, -3.0, 2.0], dtype=torch.float64)
    m2 = torch.tensor([0.0, 0.5, 3.0, 2.1], dtype=torch.float64)
    v1 = torch.tensor([1.0, 0.1, 2.0, 1e-4], dtype=torch.float64)
    v2 = torch.tensor([1.0, 2.0, 0.3, 0.0], dtype=torch.float64)
    mean, variance = maximum_moments((m1, v1), (m2, v2))
    # max(a, b) = b + relu(a - b), integrated over both by a fine grid.
    grid = torch.linspace(-9, 9, 1801, dtype=torch.float64)
    mass = density(grid) * (grid[1] - grid[0])
    first = m1[:, None, None] + v1.sqrt()[:, None, None] * grid[:, None]
    second = m2[:, None, None] + v2.sqrt()[:, None, None] * grid
    largest = torch.maximum(first, second)
    joint = mass[:, None] * mass
    expected = (largest * joint).sum((1, 2))
    spread = ((largest - expected[:, None, None]) ** 2 * joint).sum((1, 2))
    torch.testing.assert_close(mean, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(variance, spread, rtol=1e-4, atol=1e-5)


def test_maximum_of_certain_values_is_the_larger():
    m1, m2 = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 5.0, -3.0])
    none = torch.zeros(3)
    mean, variance = maximum_moments((m1, none), (m2, none))
    assert torch.equal(mean, torch.maximum(m1, m2))
    assert torch.equal(variance, none)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, while it traces
@pytest.mark.parametrize("way", ["compiled", "exported"])
def test_traced_relu_has_its_derivatives_at_zero(way):
    class Rectified(torch.nn.Module):
        def forward(self, m, v):
            return rectified_moments(m, v)

    given = torch.zeros(3, requires_grad=True), torch.full((3,), 0.64)
    if way == "compiled":
        traced = torch.compile(Rectified(), backend="aot_eager", fullgraph=True)
    else:
        traced = torch.export.export(Rectified(), given).module()
    for index in range(2):
        (expected,) = torch.autograd.grad(rectified_moments(*given)[index].sum(), given[0])
        (found,) = torch.autograd.grad(traced(*given)[index].sum(), given[0])
        torch.testing.assert_close(found, expected)
        assert (found > 0.1).all()
    torch._dynamo.reset()
