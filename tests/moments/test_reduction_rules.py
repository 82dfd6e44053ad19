"""Empirical variances, norms and log-sum-exp."""

import pytest
import torch

from bayesify.moments import Moments
from moments.sampling import assert_like_sampling, normal_moments

FORMS = [
    lambda z: torch.var(z, 1),
    lambda z: z.var(1, keepdim=True),
    lambda z: z.var(-1, False),
    lambda z: torch.var(z, dim=(0, 1), correction=0),
    lambda z: torch.var_mean(z, 1, correction=0)[0],
    lambda z: z.var(),
    lambda z: z.var(unbiased=False),
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("variance", [0.01, 1.0])
def test_empirical_variance_is_exact(form, variance):
    x = normal_moments(3, 5, variance=variance)
    assert_like_sampling(form, x, num_samples=100_000)
    for certain in (Moments(x.expected), Moments(x.expected, 0.0)):
        torch.testing.assert_close(form(certain).expected, form(x.expected))
        assert float(form(certain).variance.abs().max()) == 0.0


def test_means_beside_it():
    x = normal_moments(3, 5)
    for pair in (torch.var_mean(x, 1), torch.std_mean(x, 1)):
        torch.testing.assert_close(pair[1].pair(), x.mean(1).pair())


def test_one_entry_has_no_variance_as_in_torch():
    assert normal_moments(3, 1).var(1).expected.isnan().all()
    assert (normal_moments(3, 1).var(1, correction=0).expected == 0).all()


ROOTS = [
    lambda z: z.std(1),
    lambda z: torch.std(z, (0, 1), keepdim=True),
    lambda z: z.norm(dim=1),
    lambda z: z.norm(),
    lambda z: torch.norm(z, dim=1),
    lambda z: torch.linalg.vector_norm(z, dim=-1, keepdim=True),
]


@pytest.mark.parametrize("form", ROOTS)
def test_roots_are_right_to_first_order(form):
    x = normal_moments(3, 5, variance=1e-4)
    assert_like_sampling(form, x, mean_error=0.05, variance_error=5e-3)
    certain = form(Moments(x.expected))
    torch.testing.assert_close(certain.expected, form(x.expected))
    assert certain.is_certain


def test_norm_of_order_one_is_exact_and_others_are_refused():
    x = normal_moments(3, 5)
    assert_like_sampling(lambda z: z.norm(1, dim=1), x)
    with pytest.raises(ValueError, match="order 1 or 2, got 3"):
        x.norm(3, dim=1)


def test_log_sum_exp():
    x = normal_moments(3, 5, variance=0.02)
    assert_like_sampling(lambda z: torch.logsumexp(z, 1), x, mean_error=0.01, variance_error=0.02)
    assert_like_sampling(
        lambda z: z.logsumexp((0, 1), True), x, mean_error=0.02, variance_error=0.02
    )
    assert torch.logsumexp(Moments(x.expected), 1).is_certain
    huge = torch.logsumexp(Moments(torch.tensor([[1e4, -1e4]]), 1.0), 1)
    assert huge.expected.item() == 1e4
    assert huge.variance.item() == 1.0


def test_gradients_are_right():
    m, v = (part.requires_grad_() for part in normal_moments(2, 3).pair())
    for form in (lambda z: z.var(1), lambda z: z.norm(dim=1), lambda z: z.logsumexp(1)):
        assert torch.autograd.gradcheck(lambda m, v, form=form: form(Moments(m, v)).pair(), (m, v))


@pytest.mark.parametrize("form", [lambda z: torch.norm(z, dim=1), lambda z: z.std(1)])
def test_rows_that_are_certainly_zero_stay_so_with_gradients_of_zero(form):
    m, v = torch.randn(3, 4), torch.rand(3, 4)
    m[0], v[0] = 0.0, 0.0
    m.requires_grad_()
    v.requires_grad_()
    mean, variance = form(Moments(m, v)).pair()
    assert mean[0] == 0
    assert variance[0] == 0
    (mean.sum() + variance.sum()).backward()
    assert (m.grad[0] == 0).all()
    assert (v.grad[0] == 0).all()
    assert m.grad[1:].isfinite().all()
    assert (m.grad[1:] != 0).all()


def test_half_precision_has_room_for_roots_of_squares():
    h = 100.0 * torch.tensor([[1.0, -5.0] * 8], dtype=torch.float16)
    for form in (lambda z: z.norm(dim=1), lambda z: z.std(1), lambda z: z.norm(1, dim=1)):
        found = form(Moments(h, 0.01))
        assert found.dtype == torch.float16
        torch.testing.assert_close(found.expected, form(h))
        assert found.variance > 0


def test_edges_are_those_of_torch():
    nothing = Moments(torch.zeros(0, 3), 1.0)
    assert nothing.var(0).expected.isnan().all()
    assert nothing.var(0).shape == (3,)
    assert nothing.std().expected.isnan()
    lone = Moments(torch.tensor(2.0), 0.0)
    for form in (
        lambda z: z.logsumexp(0),
        lambda z: z.norm(dim=0),
        lambda z: z.var(0, correction=0),
        lambda z: z.max(0).values,
        lambda z: z.amax(),
    ):
        torch.testing.assert_close(form(lone).expected, form(lone.expected))
    x = normal_moments(2, 3)
    for wrong in (lambda z: z.var(5), lambda z: z.logsumexp(3), lambda z: z.amax(-3)):
        with pytest.raises(IndexError, match="dim must be in -2 to 1"):
            wrong(x)


def test_log_sum_exp_of_hidden_entries():
    m = torch.tensor([[0.0, -torch.inf], [-torch.inf, -torch.inf]])
    found = torch.logsumexp(Moments(m, 1.0), 1)
    assert found.expected.tolist() == [0.0, -torch.inf]
    assert found.variance.tolist() == [1.0, 0.0]
