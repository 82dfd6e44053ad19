"""Average pooling and interpolation: fixed linear operations, with squared weights."""

import pytest
import torch
import torch.nn.functional as F

from bayesify.moments import Moments
from moments.sampling import normal_moments

AVERAGES = [
    (F.avg_pool1d, (2, 3, 9), (3, 2, 1)),
    (F.avg_pool1d, (2, 3, 9), (4, 3, 2, True, False)),
    (F.avg_pool2d, (2, 3, 8, 8), (2,)),
    (F.avg_pool2d, (1, 2, 7, 9), (3, 2, 1)),
    (F.avg_pool2d, (1, 2, 7, 9), ((3, 2), 2, (1, 0), True)),
    (F.avg_pool2d, (1, 2, 7, 9), (3, 2, 1, True, False)),
    (F.avg_pool2d, (1, 2, 7, 9), (3, 2, 1, False, True, 5)),
    (F.avg_pool3d, (1, 2, 5, 5, 5), (2, 2, 1)),
    (F.avg_pool3d, (1, 2, 5, 5, 5), (3, 2, 1, True, False)),
    (F.adaptive_avg_pool1d, (2, 3, 7), (3,)),
    (F.adaptive_avg_pool2d, (2, 3, 7, 5), (1,)),
    (F.adaptive_avg_pool2d, (2, 3, 7, 5), ((3, 4),)),
    (F.adaptive_avg_pool2d, (2, 3, 7, 5), ((None, 2),)),
    (F.adaptive_avg_pool3d, (1, 2, 4, 5, 6), ((2, 2, 5),)),
]
INTERPOLATIONS = [
    ((1, 2, 5), {"scale_factor": 2.0, "mode": "linear"}),
    ((1, 2, 5), {"size": 8, "mode": "nearest"}),
    ((1, 2, 4, 5), {"size": (7, 3), "mode": "bilinear"}),
    ((1, 2, 4, 5), {"scale_factor": 1.7, "mode": "bilinear"}),
    ((1, 2, 4, 5), {"scale_factor": (2.0, 3.0), "mode": "bilinear", "align_corners": True}),
    ((1, 2, 4, 5), {"scale_factor": 1.7, "mode": "bilinear", "recompute_scale_factor": True}),
    ((1, 2, 4, 5), {"size": 9, "mode": "bicubic"}),
    ((1, 2, 6, 6), {"size": (3, 4), "mode": "bilinear", "antialias": True}),
    ((1, 2, 4, 5), {"scale_factor": 2, "mode": "nearest"}),
    ((1, 2, 4, 5), {"size": (3, 7), "mode": "nearest-exact"}),
    ((1, 2, 6, 5), {"size": (3, 2), "mode": "area"}),
    ((1, 1, 3, 4, 3), {"scale_factor": 2.0, "mode": "trilinear"}),
]


def squared_operation(operation, x):
    """Return (L o L) v, with L read off as a Jacobian."""
    jacobian = torch.autograd.functional.jacobian(operation, x.expected)
    return (jacobian**2 * x.variance).flatten(-x.ndim).sum(-1)


@pytest.mark.parametrize(("pool", "shape", "options"), AVERAGES)
def test_average_has_squared_weights(pool, shape, options):
    x = normal_moments(*shape)
    result = pool(x, *options)
    assert torch.equal(result.expected, pool(x.expected, *options))
    torch.testing.assert_close(result.variance, squared_operation(lambda m: pool(m, *options), x))
    assert pool(Moments(x.expected), *options).is_certain


@pytest.mark.parametrize(("shape", "options"), INTERPOLATIONS)
def test_interpolation_has_squared_weights(shape, options):
    x = normal_moments(*shape)
    result = F.interpolate(x, **options)
    assert torch.equal(result.expected, F.interpolate(x.expected, **options))
    expected = squared_operation(lambda m: F.interpolate(m, **options), x)
    torch.testing.assert_close(result.variance, expected)
    assert F.interpolate(Moments(x.expected), **options).is_certain
