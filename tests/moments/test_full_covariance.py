"""The full covariance: exact where the diagonal rules lose what is shared."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bayesify.moments import Moments
from bayesify.moments.full_covariance import FullMoments
from moments.sampling import draw, normal_moments

NUM_SAMPLES = 20_000


def covariance_of(samples):
    return torch.cov(samples.flatten(1).T)


def assert_same_covariance(result, samples):
    truth = covariance_of(samples)
    deviation = truth.diagonal().sqrt()
    # A correlation has a standard error of about 1 / sqrt(n), more where the tails are heavy.
    error = (result.covariance - truth) / (deviation[:, None] * deviation)
    assert error.abs().max() < 16.0 * NUM_SAMPLES**-0.5


def test_linear_layer_with_random_weights_is_exact():
    weight, bias = normal_moments(4, 3), normal_moments(4)
    x = normal_moments(1, 3)
    result = F.linear(FullMoments.from_moments(x), weight, bias)
    x, w, b = (draw(item, NUM_SAMPLES) for item in (x, weight, bias))
    assert_same_covariance(result, x @ w.mT + b[:, None])


@pytest.mark.parametrize("options", [{}, {"padding": 1, "stride": 2}, {"dilation": (1, 2)}])
def test_convolution_with_random_weights_is_exact(options):
    weight, bias = normal_moments(2, 2, 2, 2), normal_moments(2)
    x = normal_moments(1, 2, 4, 4)
    result = F.conv2d(FullMoments.from_moments(x), weight, bias, **options)
    inputs = (draw(item, NUM_SAMPLES) for item in (x, weight, bias))
    samples = torch.vmap(lambda x, w, b: F.conv2d(x, w, b, **options))(*inputs)
    torch.testing.assert_close(
        result.expected, F.conv2d(x.expected, weight.expected, bias.expected, **options)
    )
    assert_same_covariance(result, samples)


def network(x, weights):
    x = F.avg_pool2d(torch.tanh(F.conv2d(x, *weights[:2], padding=1)), 2)
    x = F.conv2d(x, *weights[2:4], padding=1)
    return F.softmax(x.mean((2, 3)), -1)


def test_network_with_shared_kernels_is_near_sampling_where_the_diagonal_is_not():
    shapes = ((3, 1, 3, 3), (3,), (3, 3, 3, 3), (3,))
    weights = [Moments(0.4 * torch.randn(*shape).double(), 2e-3) for shape in shapes]
    x = torch.randn(1, 1, 8, 8).double() + 1.0
    full = network(FullMoments(x), weights)
    diagonal = network(Moments(x), weights)
    drawn = (draw(weight, NUM_SAMPLES) for weight in weights)
    truth = torch.vmap(lambda *w: network(x, w))(*drawn).var(0)
    assert (full.variance / truth - 1).abs().max() < 0.15
    assert (truth / diagonal.variance).min() > 1.5


def test_diagonal_rules_agree_where_nothing_is_shared():
    model = nn.Linear(3, 4).double()
    x = normal_moments(1, 3)
    full = model(FullMoments.from_moments(x))
    torch.testing.assert_close(full.variance, model(x).variance)


def test_what_cannot_be_kept_is_refused():
    x = FullMoments(torch.ones(1, 2))
    with pytest.raises(NotImplementedError, match="one uncertain operand"):
        torch.add(x, x)
    with pytest.raises(NotImplementedError, match="takes one row"):
        F.linear(FullMoments(torch.ones(2, 3)), Moments(torch.ones(4, 3), 1.0))
    with pytest.raises(NotImplementedError, match="groups=2"):
        F.conv2d(
            FullMoments(torch.ones(1, 2, 3, 3)), Moments(torch.ones(2, 1, 1, 1), 1.0), groups=2
        )
    with pytest.raises(ValueError, match=r"shape \(2, 2\)"):
        FullMoments(torch.ones(2), torch.ones(3))
    with pytest.raises(AttributeError):
        _ = x.nonsense
