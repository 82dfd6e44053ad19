"""Dropout: its noise marginalised in training, nothing in evaluation."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bayesify.moments import Moments
from moments.sampling import normal_moments

LAYERS = [nn.Dropout, nn.Dropout1d, nn.AlphaDropout]


@pytest.mark.parametrize("build", LAYERS)
def test_training_is_like_sampling(build):
    x = normal_moments(2, 3, 4)
    layer = build(0.3)
    result = layer(x)
    count = 200_000
    noise = torch.randn(count, 2, 3, 4, dtype=torch.float64)
    drawn = layer((x.expected + x.variance.sqrt() * noise).flatten(0, 1)).view(count, 2, 3, 4)
    mean, variance = drawn.mean(0), drawn.var(0)
    fourth = ((drawn - mean) ** 4).mean(0)
    assert ((result.expected - mean).abs() < 5 * (variance / count).sqrt()).all()
    error = ((fourth - variance**2) / count).sqrt()
    assert ((result.variance - variance).abs() < 5 * error).all()


@pytest.mark.parametrize("build", [*LAYERS, nn.Dropout2d, nn.Dropout3d, nn.FeatureAlphaDropout])
def test_evaluation_changes_nothing(build):
    x = normal_moments(2, 3, 4)
    assert build(0.3).eval()(x) is x


def test_formula_and_its_ends():
    x = Moments(torch.tensor([2.0]), 0.5)
    assert F.dropout(x, 0.2).variance.item() == pytest.approx((0.5 + 0.2 * 4) / 0.8)
    assert torch.equal(F.dropout(x, 0.0).variance, x.variance)
    assert F.dropout(x, 1.0).expected.item() == 0
    assert F.dropout(Moments(torch.tensor([2.0])), 0.5).variance.item() == pytest.approx(4.0)


def test_in_place_dropout_changes_its_argument():
    x = normal_moments(3)
    assert F.dropout(x, 0.5, inplace=True) is x
