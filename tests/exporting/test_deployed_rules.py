"""Rules of a deployed graph give what the rules of the library give, to rounding."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bayesify as bf
from bayesify.exporting.deployed_gelu import gelu_moments
from bayesify.exporting.deployed_rules import AffineMoments, deployed_rules, maximum_moments
from bayesify.exporting.deployed_rules import rectified_moments as rectified
from bayesify.exporting.folding import FoldedNetwork, WeightMoments
from bayesify.exporting.graphs import ClassesOfMoments
from bayesify.moments import Moments, moment_rules
from bayesify.moments import rectified as reference
from bayesify.moments.rule_table import TABLES

# Of a variance: one rounding of r^2 <= 16, where erf is not 1 yet.
OF_VARIANCE = 16 * torch.finfo(torch.float32).eps


def grid() -> tuple[Tensor, Tensor]:
    """Return means up to 40 standard deviations from 0, and variances over 15 decades."""
    v = 10.0 ** torch.linspace(-11, 4, 120, dtype=torch.float64)[:, None]
    m = torch.linspace(-40, 40, 401, dtype=torch.float64) * v.sqrt()
    return m, v.expand_as(m)


def assert_close(found: tuple[Tensor, ...], expected: tuple[Tensor, ...], m: Tensor, v: Tensor):
    mean, variance = (each.double() for each in found)
    eps = torch.finfo(torch.float32).eps
    assert float(((mean - expected[0]).abs() / torch.maximum(m.abs(), v.sqrt())).max()) < 4 * eps
    assert float(((variance - expected[1]).abs() / v).max()) < OF_VARIANCE
    assert float(variance.min()) >= 0.0


def test_rectified_value_has_the_moments_of_the_rule():
    m, v = grid()
    assert_close(rectified(m.float(), v.float()), reference.rectified_moments(m, v), m, v)


def test_certain_value_is_rectified_exactly_enough():
    m = torch.tensor([-1e4, -1.0, 0.0, 1.0, 1e4])
    mean, variance = rectified(m, torch.zeros(5))
    torch.testing.assert_close(mean, m.relu(), rtol=1e-6, atol=1e-6)
    assert torch.equal(variance, torch.zeros(5))


def test_larger_of_two_has_the_moments_of_the_rule():
    m, v = grid()
    generator = torch.Generator().manual_seed(0)
    apart = 5 * torch.rand(m.shape, generator=generator, dtype=m.dtype) * v.sqrt()
    other = v * torch.rand(m.shape, generator=generator, dtype=m.dtype)
    found = maximum_moments((m.float(), v.float()), ((m - apart).float(), other.float()))
    expected = reference.maximum_moments((m, v), (m - apart, other))
    # Means rounded to float32 are apart by another step, at most 45 eps standard deviations.
    mean, variance = (each.double() for each in found)
    assert float(((mean - expected[0]).abs() / torch.maximum(m.abs(), v.sqrt())).max()) < 1e-6
    assert float(((variance - expected[1]).abs() / v).max()) < 45 * OF_VARIANCE / 16


def quadrature(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Return the moments of GELU by 20,001 points of the trapezoidal rule, in float64."""
    z = torch.linspace(-12, 12, 20_001, dtype=torch.float64)
    weight = torch.exp(-0.5 * z * z) * (z[1] - z[0]) / math.sqrt(2 * math.pi)
    values = F.gelu(m[..., None] + v.sqrt()[..., None] * z)
    mean = (values * weight).sum(-1)
    return mean, ((values - mean[..., None]).square() * weight).sum(-1)


def test_gelu_has_the_moments_of_many_points():
    v = 10.0 ** torch.linspace(-6, 4, 21, dtype=torch.float64)[:, None]
    m = torch.cat([torch.linspace(-6, 6, 25).double(), torch.linspace(-60, 60, 13).double()])
    m = m.expand(21, -1)
    v = v.expand_as(m)
    mean, variance = (each.double() for each in gelu_moments(m.float(), v.float()))
    expected = quadrature(m, v)
    scale = torch.maximum(m.abs(), v.sqrt())
    assert float(((mean - expected[0]).abs() / scale).max()) < 1e-6
    # Four nodes err by 6e-6 of v where v is 1e4, and by rounding where it is small.
    relative = (variance - expected[1]).abs() / v
    assert float(relative.max()) < 1e-5
    assert float(relative[v < 1].max()) < 2e-6
    assert float(variance.min()) >= 0.0


def test_gelu_of_a_huge_value_is_finite():
    m = torch.tensor([-1e30, 1e30, 0.0])
    mean, variance = gelu_moments(m, torch.tensor([1.0, 1.0, 0.0]))
    torch.testing.assert_close(mean, m.relu())
    torch.testing.assert_close(variance, torch.tensor([0.0, 1.0, 0.0]))


def networks() -> dict[str, tuple[nn.Module, tuple[int, ...]]]:
    torch.manual_seed(0)
    convolutional = nn.Sequential(
        nn.Conv2d(2, 6, 3, groups=2),
        nn.BatchNorm2d(6),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 4, 3, padding=1, bias=False),
        nn.BatchNorm2d(4, affine=False),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2, padding=1),
        nn.Flatten(),
        nn.Linear(16, 3),
    )
    dense = nn.Sequential(
        nn.Linear(5, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 3)
    )
    sequence = nn.Sequential(nn.Conv1d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 3))
    wide = nn.Sequential(nn.Conv2d(1, 2, 1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    return {
        "convolutional": (convolutional, (2, 10, 9)),
        "dense": (dense, (5,)),
        "dense on tokens": (nn.Sequential(nn.Linear(5, 4), nn.GELU(), nn.Linear(4, 3)), (6, 5)),
        "sequence": (sequence, (2, 6)),
        "wide": (wide, (1, 5, 50)),
    }


@pytest.mark.parametrize("rules", ["exact", "taylor"])
@pytest.mark.parametrize("scale", ["element", "out"])
@pytest.mark.parametrize("name", networks())
@torch.no_grad()
def test_network_has_the_moments_of_the_rules(name, scale, rules):
    net, shape = networks()[name]
    for module in net.modules():
        if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2.0)
    options = {} if scale == "element" else {"scale": scale}
    model = bf.convert(net, bf.MeanField(initial_std=0.3, biases=True, **options)).eval()
    folded = FoldedNetwork(model, WeightMoments, None)
    inputs = torch.randn(4, *shape)
    before = dict(TABLES["exact"])
    with moment_rules(rules):
        expected = folded(inputs)
        with deployed_rules():
            assert TABLES["exact"] != before
            found = folded(inputs)
    assert TABLES["exact"] == before
    for one, other in zip(found.pair(), expected.pair(), strict=True):
        assert float((one - other).abs().max()) < 1e-5 * float(other.abs().max())


def test_batch_norm_is_folded_and_a_shared_scale_stays_narrow():
    weight = Moments(torch.randn(4, 3), torch.rand(4, 1))
    inputs = torch.randn(2, 3)
    with deployed_rules():
        hidden = F.linear(inputs, weight, torch.zeros(4))
        assert isinstance(hidden, AffineMoments)
        normal = F.batch_norm(hidden, torch.zeros(4), torch.full((4,), 4.0), eps=0.0)
    assert normal.parts[2].shared_variance.shape == (4, 1)
    torch.testing.assert_close(normal.variance, hidden.variance / 4)
    torch.testing.assert_close(normal.expected, hidden.expected / 2)


def test_batch_norm_behind_an_in_place_step_is_not_folded():
    weight, inputs = Moments(torch.randn(4, 3), torch.rand(4, 3)), torch.randn(2, 3)
    statistics = torch.zeros(4), torch.full((4,), 4.0)
    plain = F.batch_norm(F.relu(F.linear(inputs, weight)), *statistics, eps=0.0)
    with deployed_rules():
        hidden = F.relu(F.linear(inputs, weight), inplace=True)
        normal = F.batch_norm(hidden, *statistics, eps=0.0)
    torch.testing.assert_close(normal.pair(), plain.pair())


def test_reading_of_classes_agrees_with_many_digits_and_at_huge_logits():
    mean = torch.tensor([[0.0, 1.0, -2.0], [1e4, 0.0, -1e4], [1e3, 1e3, -1e30], [0.0, 0.0, 0.0]])
    variance = torch.tensor([[1.0, 0.1, 4.0], [1.0, 1.0, 1.0], [1e4, 1e4, 0.0], [0.0, 0.0, 0.0]])
    reading = ClassesOfMoments(1, mean)
    found = reading(mean, variance)
    points = reading.points.double()
    logits = mean.double()[..., None] + variance.double().sqrt()[..., None] * points
    probs = logits.softmax(1)
    entropy = -(probs * logits.log_softmax(1).clamp_min(-1e30)).sum(1).mean(-1)
    torch.testing.assert_close(found["probs"].double(), probs.mean(-1), rtol=0, atol=1e-5)
    torch.testing.assert_close(found["expected_entropy"].double(), entropy, rtol=0, atol=1e-5)
    assert float(found["mutual_information"].min()) >= 0.0
    assert float(found["expected_entropy"][3]) == pytest.approx(math.log(3), abs=1e-6)


def test_reading_in_parts_is_the_reading_at_once():
    mean, variance = torch.randn(2, 3, 40, 20), torch.rand(2, 3, 40, 20)
    parts, whole = ClassesOfMoments(1, mean), ClassesOfMoments(1, mean)
    assert parts.part < whole.points.shape[-1]
    whole.part = whole.points.shape[-1]
    for name, value in parts(mean, variance).items():
        torch.testing.assert_close(value, whole(mean, variance)[name], rtol=0, atol=1e-6)


def test_moments_that_are_certain_stay_so():
    with deployed_rules():
        assert F.relu(Moments(torch.ones(2))).is_certain
        assert F.gelu(Moments(torch.ones(2))).is_certain
        assert F.max_pool2d(Moments(torch.ones(1, 1, 2, 2)), 2).is_certain
