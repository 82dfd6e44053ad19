"""What positions share: the variance of averages over them, against sampled weights."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bayesify as bf
from bayesify.conversion.scope import forward_by
from bayesify.moments import Moments, moment_rules
from moments.sampling import normal_moments

NUM_SAMPLES = 3000


def images(size=12, channels=3, num=12):
    torch.manual_seed(1)
    return torch.randn(num, channels, size, size).cumsum(-1) / 3


def by(model, x, rules):
    with torch.no_grad(), forward_by(model, "moments"), moment_rules(rules):
        return model(x)


def sampled_variance(model, x):
    total, squares = torch.zeros(()), torch.zeros(())
    with torch.no_grad(), forward_by(model, "mean"):
        centre = model(x)
    with torch.no_grad(), forward_by(model, "sample"):
        for _ in range(NUM_SAMPLES):
            off = model(x) - centre
            total, squares = total + off, squares + off.square()
    return squares / NUM_SAMPLES - (total / NUM_SAMPLES).square()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"padding": 1},
        {"padding": 2, "stride": 2},
        {"padding": 2, "dilation": 2},
        {"padding": (0, 1), "stride": (2, 1), "groups": 3},
    ],
    ids=str,
)
def test_average_over_a_convolution_is_exact(options):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 6, 3, **options), nn.AdaptiveAvgPool2d(1))
    model = bf.convert(net, bf.MeanField(initial_std=0.1)).eval()
    x = images()
    found, truth = by(model, x, "shared").variance, sampled_variance(model, x)
    # The log of a variance of so many draws has a standard error of sqrt(2 / n); 72 of them.
    ratio = (found / truth).log()
    assert ratio.abs().max() < 5 * math.sqrt(2 / NUM_SAMPLES)
    assert by(model, x, "exact").variance.median() < 0.6 * truth.median()


@pytest.mark.parametrize("sides", [1, 3])
def test_other_numbers_of_sides_have_the_rule_too(sides):
    torch.manual_seed(0)
    layer = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[sides - 1](2, 4, 3, padding=1)
    pool = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)[sides - 1](1)
    model = bf.convert(nn.Sequential(layer, pool), bf.MeanField(initial_std=0.1)).eval()
    x = torch.randn(4, 2, *[6] * sides) + 0.5
    ratio = (by(model, x, "shared").variance / sampled_variance(model, x)).log()
    assert ratio.abs().max() < 5 * math.sqrt(2 / NUM_SAMPLES)


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.second = nn.Conv2d(16, 16, 3, padding=1)
        self.third = nn.Conv2d(16, 16, 3, stride=2, padding=1)

    def forward(self, x):
        x = F.relu(self.norm(self.first(x)))
        x = F.relu(x + self.second(x))
        return self.third(x).mean((2, 3))


def test_deep_network_is_near_sampling_where_exact_rules_are_far():
    torch.manual_seed(0)
    model = bf.convert(Residual(), bf.MeanField(initial_std=0.03))
    x = images()
    bf.refresh_norms(model, [(x, torch.zeros(len(x)))], by="mean")
    model.eval()
    truth = sampled_variance(model, x).sqrt()
    shared, exact = (by(model, x, rules).variance.sqrt() for rules in ("shared", "exact"))
    assert 0.85 < float((shared / truth).median()) < 1.15
    assert float((exact / truth).median()) < 0.4


def test_uncorrelated_positions_are_as_under_the_exact_rules():
    x = normal_moments(2, 3, 6, 6)
    with moment_rules("shared"):
        shared = F.adaptive_avg_pool2d(F.relu(x), 1)
    exact = F.adaptive_avg_pool2d(F.relu(x), 1)
    torch.testing.assert_close(shared.variance, exact.variance)
    torch.testing.assert_close(F.avg_pool2d(x, 2).variance, _pooled(x).variance)


def _pooled(x):
    with moment_rules("shared"):
        return F.avg_pool2d(x, 2)


def test_equal_positions_keep_their_variance_in_any_average():
    x = Moments(torch.randn(2, 3, 4, 4), 0.5)
    x.common = torch.full((2, 3, 1, 1), 0.5)
    with moment_rules("shared"):
        for result in (F.avg_pool2d(x, 2), F.adaptive_avg_pool2d(x, 1), x.mean((2, 3))):
            torch.testing.assert_close(result.variance, torch.full_like(result.variance, 0.5))


def test_common_part_follows_slices_padding_sums_and_concatenation():
    x = Moments(torch.randn(2, 3, 4, 4), 0.5)
    x.common = torch.rand(2, 3, 1, 1) / 2
    with moment_rules("shared"):
        assert (x[:, :, ::2, ::2].common >= x.common - 1e-6).all()  # of fewer positions
        assert F.pad(x, (0, 0, 0, 0, 1, 1)).common.shape == (2, 5, 1, 1)
        assert F.pad(x, (1, 1)).common is None
        other = Moments(torch.zeros(2, 3, 4, 4), 0.16)
        torch.testing.assert_close((x + other).common, x.common + 0.01)
        both = torch.cat([x, other.expected], 1)
        assert torch.equal(both.common[:, 3:], torch.zeros(2, 3, 1, 1))
        torch.testing.assert_close(both.common[:, :3], x.common)
        assert x.flatten(1).common is None
    assert (x + other).common is None


def test_gradients_are_right():
    torch.manual_seed(0)
    weight = torch.randn(2, 2, 3, 3, dtype=torch.float64)
    x = torch.randn(1, 2, 5, 5, dtype=torch.float64) + 0.3

    def pooled(mean, variance):
        with moment_rules("shared"):
            inner = F.relu(F.conv2d(Moments(x, 0.01), Moments(mean, variance), padding=1))
            return F.adaptive_avg_pool2d(F.conv2d(inner, Moments(mean, variance)), 1).pair()

    mean = weight.requires_grad_()
    variance = torch.rand_like(weight).mul(0.1).add(0.05).detach().requires_grad_()
    assert torch.autograd.gradcheck(pooled, (mean, variance))


def test_network_predicts_and_trains_by_it():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    model = bf.convert(net, bf.MomentPropagation(rules="shared"))
    x = torch.randn(32, 1, 8, 8)
    data = torch.utils.data.TensorDataset(x, (x.mean((1, 2, 3)) > 0).long())
    loader = torch.utils.data.DataLoader(data, 16)
    history = bf.fit(model, loader, epochs=2, beta=1e-3, progress=False)
    assert math.isfinite(history.last["nll"])
    found = bf.predict(model, x)
    assert found.probs.shape == (32, 4)
    assert found.mutual_information.min() >= 0
