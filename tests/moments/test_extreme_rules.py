"""The largest and the smallest of several entries."""

import pytest
import torch

from bayesify.moments import Moments
from moments.sampling import assert_like_sampling, normal_moments


def test_two_are_exact():
    x, y = normal_moments(3, 2), normal_moments(3, 2)
    assert_like_sampling(lambda z: z.amax(1), x)
    assert_like_sampling(lambda z: torch.amin(z, 1, keepdim=True), x)
    assert_like_sampling(lambda z: z.max(1)[0], x)
    assert_like_sampling(lambda z: torch.min(z, dim=-1, keepdim=True).values, x)
    for function in (torch.maximum, torch.minimum, torch.max, torch.min):
        assert_like_sampling(function, x, y)
        assert_like_sampling(function, x, torch.zeros((), dtype=torch.float64))
        assert_like_sampling(function, torch.zeros(3, 2, dtype=torch.float64), x)


@pytest.mark.parametrize("name", ["max", "min", "amax", "amin"])
def test_all_entries(name):
    x = normal_moments(2, 2, variance=0.1)
    # Folding takes each partial maximum as normal: 24 % at worst of four.
    assert_like_sampling(lambda z: getattr(z, name)(), x, mean_error=0.1, variance_error=0.24)
    certain = Moments(x.expected)
    assert torch.equal(getattr(certain, name)().expected, getattr(x.expected, name)())
    assert getattr(certain, name)().is_certain


def test_indices_are_those_of_the_means():
    x = normal_moments(4, 5)
    for which in ("max", "min"):
        values, indices = getattr(x, which)(1)
        assert torch.equal(indices, getattr(x.expected, which)(1).indices)
        assert values.shape == (4,)
        assert getattr(x, which)(0, keepdim=True).indices.shape == (1, 5)


def test_gradients_are_right():
    m, v = (part.requires_grad_() for part in normal_moments(2, 3).pair())
    assert torch.autograd.gradcheck(lambda m, v: Moments(m, v).min(1).values.pair(), (m, v))


@pytest.mark.parametrize("hidden", [-torch.inf, torch.finfo(torch.float32).min])
def test_hidden_entries_are_never_the_largest(hidden):
    m, v = torch.randn(3, 4), torch.rand(3, 4)
    m.requires_grad_()
    is_hidden = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 0], [1, 1, 1, 1]]) > 0
    found = Moments(m, v).masked_fill(is_hidden, hidden).amax(1)
    torch.testing.assert_close(found[0].pair(), Moments(m, v)[0, :2].amax().pair())
    assert found.expected[1] == m[1, 3]
    assert found.variance[1] == v[1, 3]
    assert found.expected[2] == hidden
    found.expected[:2].sum().backward()
    assert m.grad.isfinite().all()
    assert m.grad[1].tolist() == [0.0, 0.0, 0.0, 1.0]


def test_what_is_no_number_stays_so():
    assert Moments(torch.tensor([torch.nan, 1.0]), 1.0).amax().expected.isnan()


def test_whole_numbers_are_taken_too():
    x = Moments(torch.randn(3), 1.0)
    found = torch.maximum(x, torch.tensor(0))
    torch.testing.assert_close(found.pair(), torch.maximum(x, torch.zeros(())).pair())


def test_many_entries_fold_in_single_precision():
    m, v = torch.randn(2, 64).bfloat16(), torch.rand(2, 64).bfloat16()
    wanted = Moments(m.float(), v.float()).amax(1)
    found = Moments(m, v).amax(1)
    torch.testing.assert_close(found.expected, wanted.expected.bfloat16())
    torch.testing.assert_close(found.variance, wanted.variance.bfloat16())
