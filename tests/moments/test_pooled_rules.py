"""Pooled rules: exact over all units, or for equal variances, and nearly so in wide layers."""

import math
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bayesify as bf
from bayesify.conversion.scope import forward_by
from bayesify.moments import Moments, moment_rules, pooled_rules
from moments.sampling import assert_like_sampling, normal_moments

KINDS = ["none", "unit", "weight"]


@pytest.fixture(autouse=True)
def _narrow_layers_too(monkeypatch):
    monkeypatch.setattr(pooled_rules, "FEWEST", 1)


def test_narrow_layers_are_by_exact_rules(monkeypatch):
    monkeypatch.setattr(pooled_rules, "FEWEST", 5)
    for operation, x, shape, is_exact in (
        (F.linear, normal_moments(2, 5), (5, 5), False),
        (F.linear, normal_moments(2, 5), (4, 5), True),
        (F.linear, normal_moments(2, 4), (5, 4), True),
        (F.conv1d, normal_moments(2, 5, 6), (5, 5, 3), False),
        (F.conv1d, normal_moments(2, 4, 6), (5, 4, 3), True),
        (F.conv1d, normal_moments(2, 5, 6), (4, 5, 3), True),
    ):
        weight = normal_moments(*shape)
        exact, pooled = (by(rules, operation, x, weight).variance for rules in ("exact", "pooled"))
        assert torch.allclose(exact, pooled, rtol=1e-6) == is_exact


def by(rules, function, *args, **kwargs):
    with moment_rules(rules):
        return function(*args, **kwargs)


def random_weight(kind, *shape):
    mean = torch.randn(*shape, dtype=torch.float64)
    if kind == "none":
        return mean
    size = shape if kind == "weight" else (shape[0], *[1] * (len(shape) - 1))
    return Moments(mean, 0.1 + torch.rand(*size, dtype=torch.float64))


@pytest.mark.parametrize("kind", KINDS)
def test_linear_is_exact_where_inputs_are_equally_uncertain(kind):
    weight, bias = random_weight(kind, 6, 5), normal_moments(6)
    mean = torch.randn(4, 5, dtype=torch.float64)
    if kind == "weight":
        # Of second moments, that is.
        mean = mean.sign()
    x = Moments(mean, 0.7)
    exact, pooled = (by(rules, F.linear, x, weight, bias) for rules in ("exact", "pooled"))
    torch.testing.assert_close(pooled.expected, exact.expected)
    torch.testing.assert_close(pooled.variance, exact.variance)


@pytest.mark.parametrize("kind", KINDS)
def test_linear_is_exact_over_all_units_whatever_the_variances(kind):
    weight, x = random_weight(kind, 6, 5), normal_moments(4, 5)
    exact, pooled = (by(rules, F.linear, x, weight) for rules in ("exact", "pooled"))
    torch.testing.assert_close(pooled.variance.sum(-1), exact.variance.sum(-1))
    # And is not exact for each, or it would not be this rule.
    assert (pooled.variance / exact.variance - 1).abs().max() > 0.01


def test_linear_is_exact_where_squares_are_of_rank_one():
    factor = torch.rand(6, 1, dtype=torch.float64) * torch.rand(5, dtype=torch.float64)
    signs = torch.randn(6, 5, dtype=torch.float64).sign()
    weight = Moments(factor.sqrt() * signs, 0.3 * factor)
    assert_like_sampling(
        lambda *parts: by("pooled", F.linear, *parts), normal_moments(3, 5), weight
    )


@pytest.mark.parametrize("kind", KINDS)
def test_certain_inputs_are_by_exact_rules(kind):
    for operation, x, shape in (
        (F.linear, torch.randn(4, 5, dtype=torch.float64), (6, 5)),
        (F.conv2d, torch.randn(2, 3, 6, 6, dtype=torch.float64), (4, 3, 3, 3)),
    ):
        weight = random_weight(kind, *shape)
        for given in (x, Moments(x)) if kind != "none" else (Moments(x),):
            exact, pooled = (by(rules, operation, given, weight) for rules in ("exact", "pooled"))
            assert torch.equal(pooled.expected, exact.expected)
            assert torch.equal(pooled.variance, exact.variance)


CONVOLUTIONS = [
    (F.conv1d, (2, 4, 9), (6, 2, 3), {"groups": 2, "padding": 1}),
    (F.conv1d, (4, 7), (6, 4, 3), {}),
    (F.conv2d, (2, 3, 6, 7), (4, 3, 3, 2), {"stride": 2, "padding": (1, 0), "dilation": (1, 2)}),
    (F.conv2d, (2, 4, 5, 5), (8, 1, 3, 3), {"groups": 4, "padding": 1}),
    (F.conv2d, (2, 3, 9, 9), (4, 3, 6, 6), {"padding": 2, "stride": (1, 2)}),
    (F.conv2d, (2, 3, 4, 4), (5, 3, 1, 1), {"stride": 2}),
    (F.conv2d, (2, 3, 5, 5), (4, 3, 3, 3), {"padding": "same"}),
    (F.conv3d, (1, 2, 4, 5, 4), (3, 2, 2, 3, 2), {"padding": 1}),
]


@pytest.mark.parametrize("kind", ["none", "weight"])
@pytest.mark.parametrize(("operation", "shape", "kernel", "options"), CONVOLUTIONS)
def test_convolution_is_exact_where_squares_are_a_product_of_three(
    operation, shape, kernel, options, kind
):
    groups = options.get("groups", 1)
    units = torch.rand(kernel[0], dtype=torch.float64)
    # Of each group its own.
    channels, taps = (
        torch.rand(groups, *size, dtype=torch.float64).repeat_interleave(kernel[0] // groups, 0)
        for size in ((kernel[1],), kernel[2:])
    )
    letters = "xyz"[: len(kernel) - 2]
    squares = torch.einsum(f"o,oi,o{letters}->oi{letters}", units, channels, taps)
    mean = squares.sqrt() * torch.randn(kernel, dtype=torch.float64).sign()
    weight = mean if kind == "none" else Moments(mean, 0.3 * squares)
    x, bias = normal_moments(*shape), normal_moments(kernel[0])
    exact, pooled = (
        by(rules, operation, x, weight, bias, **options) for rules in ("exact", "pooled")
    )
    torch.testing.assert_close(pooled.expected, exact.expected)
    torch.testing.assert_close(pooled.variance, exact.variance)


@pytest.mark.parametrize("kind", KINDS)
def test_convolution_is_exact_where_inputs_are_equally_uncertain(kind):
    weight = random_weight(kind, 6, 2, 3, 3)
    mean = torch.randn(2, 4, 6, 6, dtype=torch.float64)
    x = Moments(mean.sign() if kind == "weight" else mean, 0.7)
    exact, pooled = (
        by(rules, F.conv2d, x, weight, groups=2, stride=2) for rules in ("exact", "pooled")
    )
    torch.testing.assert_close(pooled.variance, exact.variance)


def wide_network():
    torch.manual_seed(0)
    sizes = (300, 400, 400, 400, 10)
    layers = [
        part for size, after in pairwise(sizes) for part in (nn.Linear(size, after), nn.GELU())
    ]
    net = nn.Sequential(*layers[:-1])
    return bf.convert(net, bf.MomentPropagation(rules="pooled", initial_std=0.02)).eval()


def test_wide_network_is_near_exact_rules_and_sampling():
    model, x = wide_network(), torch.randn(8, 300)
    with torch.no_grad(), forward_by(model, "moments"):
        exact, pooled = (by(rules, model, x).variance for rules in ("exact", "pooled"))
    # Each of 400 inputs adds its own error, of the size of its variance.
    assert (pooled / exact).log().abs().max() < 0.1
    assert (pooled.sum() / exact.sum()).log().abs() < 0.02
    num_samples = 2000
    draws = bf.predict(
        model, x, by="sample", num_samples=num_samples, likelihood=bf.GaussianRegression(1.0)
    )
    ratio = (pooled / draws.epistemic).log()
    # The rules take the units of a layer as uncorrelated: 10 % here.
    assert ratio.mean().abs() < 0.1 + 5 * math.sqrt(2 / num_samples / ratio.numel())


def test_gradients_are_right_and_no_variance_is_below_0():
    def linear(m, v, w, s):
        return by("pooled", F.linear, Moments(m, v), Moments(w, s)).variance

    def unit(m, v, w, s):
        return by("pooled", F.linear, Moments(m, v), Moments(w, s[:, :1])).variance

    parts = [torch.rand(*shape, dtype=torch.float64) for shape in ((2, 3), (2, 3), (4, 3), (4, 3))]
    inputs = [each.requires_grad_() for each in parts]
    assert torch.autograd.gradcheck(linear, inputs)
    assert torch.autograd.gradcheck(unit, inputs)

    def convolution(m, v, w, s):
        return by("pooled", F.conv1d, Moments(m, v), Moments(w, s), padding=1).variance

    shapes = ((2, 3, 4), (2, 3, 4), (4, 3, 3), (4, 3, 3))
    inputs = [torch.rand(*shape, dtype=torch.float64).requires_grad_() for shape in shapes]
    assert torch.autograd.gradcheck(convolution, inputs)
    assert convolution(*inputs).min() >= 0


def test_zeros_are_no_trouble():
    weight = Moments(torch.zeros(4, 3, requires_grad=True), torch.zeros(4, 3))
    x = Moments(torch.zeros(2, 3), torch.zeros(2, 3, requires_grad=True))
    result = by("pooled", F.linear, x, weight)
    assert result.variance.eq(0).all()
    result.variance.sum().backward()
    assert x.variance.grad.isfinite().all()
    assert weight.expected.grad.isfinite().all()
    for empty in (torch.zeros(0, 3), torch.zeros(0, 5, 3)):
        found = by("pooled", F.linear, Moments(empty, 1.0), torch.randn(4, 3))
        assert found.variance.shape == (*empty.shape[:-1], 4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_near_full(dtype):
    torch.manual_seed(0)
    x, weight, bias = (
        normal_moments(6, 64),
        normal_moments(32, 64, variance=0.1),
        normal_moments(32),
    )
    halves = [Moments(each.expected.to(dtype), each.variance) for each in (x, weight, bias)]
    found = by("pooled", lambda *parts: F.gelu(F.linear(*parts)), *halves)
    exact = by("pooled", lambda *parts: F.gelu(F.linear(*parts)), x, weight, bias)
    assert found.expected.dtype == dtype
    # Of the GELU's series 2 % of the largest are left out.
    largest = exact.variance.max()
    assert ((found.variance - exact.variance).abs().max() / largest) < 0.03


@pytest.mark.parametrize("scale", ["weight", "out"])
@pytest.mark.parametrize("name", ["resnet_18", "vit_mini"])
def test_models_of_the_project_run_and_are_near_exact_rules(name, scale):
    torch.manual_seed(0)
    options = {"width": 8} if name == "resnet_18" else {"width": 64, "depth": 2}
    plain = bf.build_model(name, num_classes=10, **options)
    model = bf.convert(plain, bf.MomentPropagation(rules="pooled", scale=scale)).eval()
    images = torch.randn(4, 3, 32, 32)
    with torch.no_grad(), forward_by(model, "moments"):
        exact, pooled = (by(rules, model, images) for rules in ("exact", "pooled"))
    torch.testing.assert_close(pooled.expected, exact.expected, rtol=0.02, atol=0.02)
    assert (pooled.variance.sum(1) / exact.variance.sum(1)).log().abs().max() < 0.15


def half(x):
    if not isinstance(x, Moments):
        return x.bfloat16()
    spread = x.variance if x.shared_variance is None else x.shared_variance
    return Moments(x.expected.bfloat16(), spread)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("taps", [3, 7])
def test_convolutions_of_half_precision_are_near_full(kind, taps):
    x, weight = normal_moments(2, 3, 12, 12), random_weight(kind, 4, 3, taps, taps)
    halves = [half(each) for each in (x, weight)]
    exact = by("pooled", F.conv2d, x, weight, padding=1)
    found = by("pooled", F.conv2d, *halves, padding=1)
    torch.testing.assert_close(found.variance.double(), exact.variance, rtol=0.03, atol=0.0)


def test_small_and_large_variances_of_float16_survive_large_kernels():
    kernel = torch.randn(4, 3, 7, 7)
    for size in (1e-8, 1e5):
        x = Moments(torch.zeros(1, 3, 9, 9), size)
        exact = by("exact", F.conv2d, x, kernel)
        with torch.autocast("cpu", torch.float16):
            found = by("pooled", F.conv2d, x, kernel)
        torch.testing.assert_close(found.variance, exact.variance, rtol=1e-3, atol=0.0)


def test_one_unit_without_a_dimension_is_by_exact_rules():
    x, weight = normal_moments(4, 5), torch.randn(5, dtype=torch.float64)
    assert by("pooled", F.linear, x, weight).variance.shape == (4,)
