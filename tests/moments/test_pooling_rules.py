"""Maxima: exact for two, close for a window, with padding that never wins."""

import pytest
import torch
import torch.nn.functional as F

from bayesify.moments import Moments, moment_rules
from bayesify.moments.pooling_rules import fold_maximum
from moments.sampling import assert_like_sampling, normal_moments

GEOMETRIES = [
    (F.max_pool1d, (2, 3, 9), {"kernel_size": 3, "stride": 2, "padding": 1}),
    (F.max_pool1d, (3, 9), {"kernel_size": 2, "dilation": 3}),
    (F.max_pool2d, (2, 3, 8, 8), {"kernel_size": 2}),
    (F.max_pool2d, (1, 2, 7, 9), {"kernel_size": 3, "stride": 2, "padding": 1}),
    (F.max_pool2d, (1, 2, 7, 9), {"kernel_size": (3, 2), "stride": 2, "ceil_mode": True}),
    (F.max_pool2d, (1, 2, 8, 8), {"kernel_size": 3, "stride": 3, "padding": 1, "ceil_mode": True}),
    (F.max_pool2d, (1, 2, 5, 5), {"kernel_size": 2, "stride": 3, "padding": 1, "ceil_mode": True}),
    (F.max_pool2d, (1, 2, 8, 8), {"kernel_size": 2, "dilation": (2, 3), "stride": 1}),
    (F.max_pool3d, (1, 2, 4, 6, 4), {"kernel_size": 2}),
    (F.max_pool3d, (1, 1, 5, 5, 5), {"kernel_size": 3, "padding": 1, "stride": 2}),
]


@pytest.mark.parametrize(("pool", "shape", "options"), GEOMETRIES)
@pytest.mark.parametrize("rules", ["exact", "taylor"])
def test_no_variance_gives_plain_pooling(pool, shape, options, rules):
    # Negative values: a zero of the padding would win.
    m = -3.0 - torch.rand(*shape)
    with moment_rules(rules):
        result = pool(Moments(m, 0.0), **options)
    assert torch.equal(result.expected, pool(m, **options))
    assert (result.variance == 0).all()
    assert torch.equal(pool(Moments(m), **options).expected, pool(m, **options))


@pytest.mark.parametrize(("pool", "shape", "options"), GEOMETRIES)
def test_first_order_form_takes_the_variance_of_the_largest_mean(pool, shape, options):
    m, v = torch.randn(*shape), torch.rand(*shape)
    with moment_rules("taylor"):
        result = pool(Moments(m, v), **options)
    mean, places = pool(m, **options, return_indices=True)
    sides = {F.max_pool1d: 1, F.max_pool2d: 2, F.max_pool3d: 3}[pool]
    first = m.ndim - sides
    gathered = v.flatten(first).gather(-1, places.flatten(first)).view(mean.shape)
    assert torch.equal(result.expected, mean)
    assert torch.equal(result.variance, gathered)


def test_window_of_two_is_like_sampling():
    for variance in (1e-4, 1.0):
        x = normal_moments(2, 3, 8, variance=variance)
        assert_like_sampling(lambda z: F.max_pool1d(z, 2), x, num_samples=30_000)


@pytest.mark.parametrize(
    ("options", "variance_error"),
    # Folding takes each partial maximum as normal: worst case 24 % for four, 33 % for nine.
    [({"kernel_size": 2}, 0.24), ({"kernel_size": 3, "stride": 2, "padding": 1}, 0.33)],
)
def test_window_is_near_sampling(options, variance_error):
    x = normal_moments(1, 2, 6, 6)
    assert_like_sampling(
        lambda z: F.max_pool2d(z, **options),
        x,
        num_samples=20_000,
        mean_error=0.05,
        variance_error=variance_error,
    )


def test_fold_is_much_nearer_than_the_first_order_form():
    x = normal_moments(4, 4, 16, 16, dtype=torch.float32)
    samples = x.expected + x.variance.sqrt() * torch.randn(2000, *x.shape)
    truth = F.max_pool2d(samples.flatten(0, 1), 2).unflatten(0, (2000, 4)).var(0)
    exact = (F.max_pool2d(x, 2).variance / truth - 1).abs().mean()
    with moment_rules("taylor"):
        taylor = (F.max_pool2d(x, 2).variance / truth - 1).abs().mean()
    assert exact < 0.06
    assert taylor > 0.5


@pytest.mark.parametrize("size", [1, 2, (4, 2), (None, 1)])
def test_adaptive_pooling_of_equal_windows_is_max_pooling(size):
    x = normal_moments(2, 3, 4, 4)
    result = F.adaptive_max_pool2d(x, size)
    plain = F.adaptive_max_pool2d(x.expected, size)
    assert result.shape == plain.shape
    assert torch.equal(F.adaptive_max_pool2d(Moments(x.expected), size).expected, plain)


def test_adaptive_pooling_refuses_unequal_windows():
    with pytest.raises(ValueError, match=r"must divide the sides \[5, 5\]"):
        F.adaptive_max_pool2d(normal_moments(1, 1, 5, 5), 2)


def test_indices_are_refused():
    with pytest.raises(ValueError, match="return_indices must be False"):
        F.max_pool2d(normal_moments(1, 1, 4, 4), 2, return_indices=True)


def test_gradients_are_right_and_finite():
    m, v = (part.requires_grad_() for part in normal_moments(1, 1, 5, 5).pair())

    def call(m, v):
        return F.max_pool2d(Moments(m, v), 3, 2, 1).pair()

    assert torch.autograd.gradcheck(call, (m, v))
    m, v = torch.zeros(1, 1, 4, 4, requires_grad=True), torch.zeros(1, 1, 4, 4, requires_grad=True)
    sum(part.sum() for part in F.max_pool2d(Moments(m, v), 2, padding=1).pair()).backward()
    assert m.grad.isfinite().all()
    assert v.grad.isfinite().all()


def test_extremes_stay_finite_and_at_least_zero():
    m = torch.tensor([-1e4, -1e4, 0.0, 1e4]).view(1, 1, 2, 2)
    for variance in (0.0, 1e-30, 1.0, 1e6):
        result = F.max_pool2d(Moments(m, variance), 2)
        assert result.expected.item() >= 1e4
        assert 0 <= result.variance.item() <= variance * (1 + 1e-6)


@pytest.mark.parametrize("kernel", [(1, 2), (3, 1), (2, 2), (1, 1)])
@pytest.mark.parametrize("stride", [None, 1])
def test_small_windows_are_folded_as_large_ones_are(kernel, stride):
    torch.manual_seed(0)
    mean = torch.randn(2, 3, 6, 6, dtype=torch.float64, requires_grad=True)
    variance = torch.rand(2, 3, 6, 6, dtype=torch.float64, requires_grad=True)
    quick = F.max_pool2d(Moments(mean, variance), kernel, stride)
    height, width = kernel
    down, across = (height, width) if stride is None else (stride, stride)
    windows = [
        part.unfold(2, height, down).unfold(3, width, across).flatten(4)
        for part in (mean, variance)
    ]
    slow = fold_maximum(*windows)
    for found, expected in zip(quick.pair(), slow, strict=True):
        torch.testing.assert_close(found, expected)
    gradients = [
        torch.autograd.grad((pair[0] + 2 * pair[1]).sum(), (mean, variance))
        for pair in (quick.pair(), slow)
    ]
    for found, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(found, expected)
