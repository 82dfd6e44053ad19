"""Choices without branches against `torch.where`: the same numbers, the same gradients."""

import pytest
import torch
import torch.nn.functional as F

import bayesify as bf
from bayesify.moments.choices import chosen, or_zero, where_positive
from bayesify.moments.rectified import maximum_moments, ordered

SIDES = [0.0, -0.0, 1e-38, -1e-38, 1e-30, 3.0, -3.0, 1e30, -1e30]


def some(number, dtype=torch.float32):
    torch.manual_seed(0)
    return [torch.randn(200, dtype=dtype, requires_grad=True) for _ in range(number)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_number_that_is_chosen_is_unchanged(dtype):
    x, first, second = some(3, dtype)
    condition = where_positive(x)
    assert condition.dtype == dtype
    assert not condition.requires_grad
    assert torch.equal(condition, (x > 0).to(dtype))
    assert torch.equal(chosen(condition, first, second), torch.where(x > 0, first, second))
    assert torch.equal(or_zero(condition, first), torch.where(x > 0, first, 0.0))


def test_sides_of_0_and_huge_numbers():
    x = torch.tensor(SIDES)
    assert where_positive(x).tolist() == [float(each > 0) for each in SIDES]
    huge = torch.full_like(x, 1e37)
    assert torch.equal(chosen(where_positive(x), huge, -huge), torch.where(x > 0, huge, -huge))


def test_gradients_and_theirs_are_those_of_where():
    x, first, second = some(3)

    def gradients(result):
        once = torch.autograd.grad(result.pow(3).sum(), (first, second), create_graph=True)
        return [*once, *torch.autograd.grad(sum(each.pow(2).sum() for each in once), first)]

    condition = where_positive(x)
    found = gradients(chosen(condition, first, second) + or_zero(condition, first * second))
    expected = gradients(torch.where(x > 0, first, second) + torch.where(x > 0, first * second, 0))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_compiled_code_has_truth_values():
    def call(x, first, second):
        condition = where_positive(x)
        assert condition.dtype == torch.bool
        return chosen(condition, first, second)

    x, first, second = some(3)
    found = torch.compile(call, backend="eager", fullgraph=True)(x, first, second)
    assert torch.equal(found, torch.where(x > 0, first, second))


def by_where(first, second):
    stays = (first[0] >= second[0]).detach()
    pairs = [(first[0], second[0]), (first[1], second[1])]
    larger = [torch.where(stays, one, other) for one, other in pairs]
    return [*larger, *(torch.where(stays, other, one) for one, other in pairs)]


def test_pairs_are_ordered_by_their_means_with_gradients():
    m1, v1, m2, v2 = (each.detach() for each in some(4))
    m2[::7] = m1[::7]  # Equal means stay, with the variances and gradients that are theirs.
    m1[3], m2[4] = -torch.inf, -torch.inf
    inputs = [each.requires_grad_() for each in (m1, v1, m2, v2)]
    found, expected = ordered((m1, v1), (m2, v2)), by_where((m1, v1), (m2, v2))
    given = [torch.randn(200) for _ in range(4)]
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)
    for one, other in zip(
        torch.autograd.grad(found, inputs, given),
        torch.autograd.grad(expected, inputs, given),
        strict=True,
    ):
        assert torch.equal(one, other)
    with torch.no_grad():
        for one, other in zip(ordered((m1, v1), (m2, v2)), expected, strict=True):
            assert torch.equal(one, other)


def test_pairs_are_ordered_under_vmap():
    m1, v1, m2, v2 = (each.detach().unflatten(0, (4, 50)) for each in some(4))
    found = torch.vmap(lambda *of: ordered(of[:2], of[2:]))(m1, v1, m2, v2)
    for one, other in zip(found, by_where((m1, v1), (m2, v2)), strict=True):
        assert torch.equal(one, other)


def test_double_gradients_of_an_order():
    inputs = [each[:6].detach().double().requires_grad_() for each in some(4)]
    assert torch.autograd.gradgradcheck(lambda *of: ordered(of[:2], of[2:]), inputs)


FAR = [torch.inf, -torch.inf, 3e38, -3e38, 2e38, -2e38, 1e30, -1e30]


@pytest.mark.parametrize("variance", [0.0, 1.0, 1e4, 1e20])
@pytest.mark.parametrize(
    ("function", "left"),
    [(F.relu, 0.0), (F.gelu, 0.0), (lambda x: F.leaky_relu(x, 0.1), 0.1)],
)
def test_means_as_far_out_as_there_are_pass_or_stop(function, left, variance):
    mean = torch.tensor(FAR)
    found = function(bf.Moments(mean, variance))
    is_right = torch.tensor([each > 0 for each in FAR])
    kept = torch.tensor([1.0 if each > 0 or left else 0.0 for each in FAR])
    expected = torch.where(is_right, mean, left * mean if left else torch.zeros(8))
    torch.testing.assert_close(found.mean, expected)
    shares = torch.where(is_right, 1.0, left**2) * kept * variance
    torch.testing.assert_close(found.variance, shares, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("variance", [0.0, 1.0])
def test_the_larger_of_two_that_are_far_out(variance):
    mean = torch.tensor([FAR])
    found = F.max_pool1d(bf.Moments(mean, variance), 2)
    assert found.mean.tolist() == F.max_pool1d(mean, 2).tolist()
    torch.testing.assert_close(found.variance, torch.full((1, 4), variance))


def test_a_gelu_of_a_huge_variance_has_its_moments_and_gradients():
    mean = torch.tensor([0.0, 1e10, -1e10], requires_grad=True)
    variance = torch.tensor([1e20, 1e17, 1e17])
    found = F.gelu(bf.Moments(mean, variance))
    # Far out a GELU is a ReLU.
    same = F.relu(bf.Moments(mean, variance))
    torch.testing.assert_close(found.variance, same.variance, rtol=1e-3, atol=0.0)
    (slope,) = torch.autograd.grad(found.variance.sum(), mean)
    assert slope.isfinite().all()


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_derivatives_of_a_maximum_of_equal_means_are_those_of_its_formula():
    variance = torch.tensor([[1.0, 4.0, 0.5, 2.0]], dtype=torch.float64)
    mean = torch.zeros(1, 4, dtype=torch.float64)
    way = torch.tensor([[1.0, 0.0, 0.0, 1.0]], dtype=torch.float64)

    def means(mean):
        return F.max_pool1d(bf.Moments(mean, variance), 2).expected

    known = torch.full((1, 2), 0.5, dtype=torch.float64)
    for mode in (torch.no_grad, torch.enable_grad):
        with mode():
            torch.testing.assert_close(torch.func.jvp(means, (mean,), (way,))[1], known)
            slopes = torch.func.vjp(means, mean)[1](torch.ones_like(known))[0]
            torch.testing.assert_close(slopes, torch.full_like(mean, 0.5))
    leaf = mean.clone().requires_grad_()
    (slopes,) = torch.autograd.grad(means(leaf).sum(), leaf)
    torch.testing.assert_close(slopes, torch.full_like(mean, 0.5))
    open_form = torch.func.hessian(lambda mean: means(mean).sum())(mean)
    of_function = torch.autograd.functional.hessian(lambda mean: means(mean).sum(), mean)
    torch.testing.assert_close(of_function, open_form)


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_a_maximum_is_traced():
    def call(m1, v1, m2, v2):
        return maximum_moments((m1, v1), (m2, v2))

    inputs = tuple(torch.rand(2, 8) for _ in range(4))
    traced = torch.jit.trace(call, inputs)
    for one, other in zip(traced(*inputs), call(*inputs), strict=True):
        assert torch.equal(one, other)
