"""Softmax: the squared Jacobian, also where one class is all but certain."""

import pytest
import torch
import torch.nn.functional as F

from bayesify.moments import Moments, moment_rules
from moments.sampling import assert_like_sampling, normal_moments

FUNCTIONS = [torch.softmax, torch.log_softmax]


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("dim", [-1, 0, 1])
@pytest.mark.parametrize("rules", ["exact", "taylor"])
def test_variance_is_the_squared_jacobian(function, dim, rules):
    x = normal_moments(3, 4, 2)
    with moment_rules(rules):
        result = function(x, dim)
    jacobian = torch.autograd.functional.jacobian(lambda m: function(m, dim), x.expected)
    torch.testing.assert_close(result.expected, function(x.expected, dim))
    torch.testing.assert_close(result.variance, (jacobian**2 * x.variance).sum((-1, -2, -3)))


def test_two_equal_classes_have_twice_the_variance_of_the_diagonal():
    x = Moments(torch.zeros(2), 1.0)
    diagonal = (0.5 * 0.5) ** 2
    torch.testing.assert_close(torch.softmax(x, 0).variance, torch.full((2,), 2 * diagonal))


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("gap", [3.0, 8.0, 15.0, 40.0])
def test_float32_keeps_its_digits_when_one_class_is_certain(function, gap):
    m = torch.tensor([gap, 0.0, -1.0, 0.5])
    v = torch.tensor([1.0, 0.3, 2.0, 0.1])
    coarse = function(Moments(m, v), 0).variance.double()
    precise = function(Moments(m.double(), v.double()), 0).variance
    torch.testing.assert_close(coarse, precise, rtol=2e-5, atol=1e-40)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_small_variance_is_like_sampling(function):
    x = normal_moments(2, 5, variance=1e-4)
    call = lambda z: function(z, -1)  # noqa: E731
    assert_like_sampling(call, x, mean_error=0.05, variance_error=0.01)


@pytest.mark.parametrize("call", [F.softmax, F.log_softmax])
def test_functional_form_takes_the_same_dimension(call):
    x = normal_moments(2, 5)
    plain = call(x.expected, dim=1)
    assert torch.equal(call(x, dim=1).expected, plain)
    assert torch.equal(call(Moments(x.expected), dim=1).expected, plain)


def test_hidden_classes_have_no_variance():
    x = Moments(torch.tensor([1.0, -torch.inf, 0.0]), 1.0)
    result = torch.softmax(x, -1)
    assert result.variance[1] == 0
    assert result.variance.isfinite().all()


@pytest.mark.parametrize("function", FUNCTIONS)
def test_huge_logits_stay_finite_with_finite_gradients(function):
    m = torch.tensor([[1e4, -1e4, 0.0], [0.0, 0.0, 0.0]], requires_grad=True)
    v = torch.tensor([[1.0, 0.0, 1e6], [0.0, 0.0, 0.0]], requires_grad=True)
    result = function(Moments(m, v), -1)
    assert result.expected.isfinite().all()
    assert (result.variance >= 0).all()
    (result.expected.sum() + result.variance.sum()).backward()
    assert m.grad.isfinite().all()
    assert v.grad.isfinite().all()


@pytest.mark.parametrize("function", FUNCTIONS)
def test_gradients_are_right(function):
    m, v = (part.requires_grad_() for part in normal_moments(2, 4).pair())
    assert torch.autograd.gradcheck(lambda m, v: function(Moments(m, v), -1).pair(), (m, v))
