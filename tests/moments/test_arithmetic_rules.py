"""Sums, products and quotients of independent operands, and of one operand twice."""

import pytest
import torch
import torch.nn.functional as F

from bayesify.moments import Moments
from moments.sampling import assert_like_sampling, normal_moments

OPERATIONS = [
    torch.add,
    torch.sub,
    torch.mul,
    lambda a, b: a + b,
    lambda a, b: a - b,
    lambda a, b: a * b,
    lambda a, b: torch.add(a, b, alpha=0.3),
    lambda a, b: a.sub(b, alpha=2.0),
]


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("shape", [(3, 4), (4,), (3, 1)])
def test_operation_is_like_sampling(operation, shape):
    a, b = normal_moments(3, 4), normal_moments(*shape)
    assert_like_sampling(operation, a, b, num_samples=20_000)
    assert_like_sampling(operation, b, a, num_samples=20_000)
    assert_like_sampling(operation, a.expected, b, num_samples=20_000)
    assert_like_sampling(operation, b, a.expected, num_samples=20_000)


@pytest.mark.parametrize(
    ("operation", "mean", "factor"),
    [
        (lambda x: x + 2, 4.0, 1.0),
        (lambda x: 2 + x, 4.0, 1.0),
        (lambda x: 3 - x, 1.0, 1.0),
        (lambda x: x - 3, -1.0, 1.0),
        (lambda x: x * 4, 8.0, 16.0),
        (lambda x: 4 * x, 8.0, 16.0),
        (lambda x: x / 4, 0.5, 1 / 16),
        (lambda x: -x, -2.0, 1.0),
        (lambda x: +x, 2.0, 1.0),
        (lambda x: torch.rsub(x, 5), 3.0, 1.0),
        (lambda x: x + x, 4.0, 4.0),
        (lambda x: x - x, 0.0, 0.0),
        (lambda x: x.add(x, alpha=2), 6.0, 9.0),
        (lambda x: x / torch.tensor(4.0), 0.5, 1 / 16),
    ],
)
def test_linear_operation_of_numbers_and_of_itself(operation, mean, factor):
    x = Moments(torch.tensor([2.0]), 0.7)
    result = operation(x)
    assert result.expected.item() == pytest.approx(mean)
    assert result.variance.item() == pytest.approx(0.7 * factor)


def test_product_with_itself_is_the_square():
    x = normal_moments(3)
    assert torch.equal((x * x).expected, x.square().expected)
    assert torch.equal((x * x).variance, x.square().variance)


def test_quotient_by_a_tensor_is_exact():
    x, y = normal_moments(3), torch.tensor([1e-3, 2.0, -3.0], dtype=torch.float64)
    assert_like_sampling(torch.div, x, y)


def test_quotient_by_moments_is_near_samples_for_a_narrow_divisor():
    x, y = normal_moments(3), Moments(torch.full((3,), 4.0, dtype=torch.float64), 1e-3)
    assert_like_sampling(torch.div, x, y, mean_error=1e-3, variance_error=1e-2)
    assert_like_sampling(lambda z: 1.0 / z, y, mean_error=0.01, variance_error=0.01)


def test_gated_unit_multiplies_its_halves():
    x = normal_moments(3, 8)
    assert_like_sampling(F.glu, x)


def test_in_place_operators_change_the_object():
    x, y = normal_moments(3), normal_moments(3)
    alias, before = x, Moments(*x.pair())
    x += y
    assert x is alias
    torch.testing.assert_close(x.variance, before.variance + y.variance)
    x.mul_(2.0)
    torch.testing.assert_close(alias.variance, 4 * (before.variance + y.variance))
    x -= y
    x /= 2.0
    x *= 3.0
    assert x is alias


def test_tensor_takes_moments_in_place_by_a_new_name():
    x = torch.ones(3, dtype=torch.float64)
    y = normal_moments(3)
    x += y
    assert isinstance(x, Moments)
    assert torch.equal(x.variance, y.variance)


def test_no_variance_stays_none():
    x = Moments(torch.ones(3))
    for result in (x + 1, x + x, x * torch.ones(3), x / 2, 1 - x, x * x):
        assert result.is_certain


def test_gradients_are_right():
    parts = [
        p.clone().requires_grad_() for x in (normal_moments(3), normal_moments(3)) for p in x.pair()
    ]

    def call(m1, v1, m2, v2):
        a, b = Moments(m1, v1), Moments(m2, v2)
        return ((a * b - a) * 2 + b).pair()

    assert torch.autograd.gradcheck(call, parts)
