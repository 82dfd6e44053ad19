"""Normalisation: plain at zero variance, exact or near sampling, and its running statistics."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import forward_ad

from bayesify.moments import Moments, moment_rules
from bayesify.moments import layer_norm as layer_norm_module
from moments.sampling import assert_like_sampling, normal_moments

LAYERS = [
    (lambda: nn.LayerNorm(6), (3, 6)),
    (lambda: nn.LayerNorm((2, 3)), (4, 2, 3)),
    (lambda: nn.RMSNorm(6), (3, 6)),
    (lambda: nn.RMSNorm(6, eps=1e-3), (3, 6)),
    (lambda: nn.GroupNorm(2, 4), (2, 4, 3, 3)),
    (lambda: nn.GroupNorm(4, 4, affine=False), (2, 4, 5)),
    (lambda: nn.InstanceNorm2d(3, affine=True), (2, 3, 4, 4)),
    (lambda: nn.InstanceNorm1d(3, track_running_stats=True).eval(), (2, 3, 4)),
    (lambda: nn.BatchNorm1d(5).eval(), (4, 5)),
    (lambda: nn.BatchNorm2d(3).eval(), (2, 3, 4, 4)),
    (lambda: nn.BatchNorm3d(2).train(), (2, 2, 2, 2, 2)),
]


def built(build):
    layer = build().double()
    with torch.no_grad():
        for tensor in layer.parameters():
            tensor.add_(0.3 * torch.randn_like(tensor))
        for name, tensor in layer.named_buffers():
            if "running" in name:
                tensor.add_(torch.rand_like(tensor))
    return layer


@pytest.mark.parametrize(("build", "shape"), LAYERS)
@pytest.mark.parametrize("rules", ["exact", "taylor"])
def test_no_variance_gives_the_plain_layer(build, shape, rules):
    layer = built(build)
    m = torch.randn(*shape, dtype=torch.float64)
    with moment_rules(rules):
        result = copy.deepcopy(layer)(Moments(m, 0.0))
        certain = copy.deepcopy(layer)(Moments(m))
    torch.testing.assert_close(result.expected, copy.deepcopy(layer)(m))
    assert (result.variance == 0).all()
    assert torch.equal(certain.expected, layer(m))
    assert certain.is_certain


def test_batch_norm_with_fixed_statistics_is_exact():
    layer = built(lambda: nn.BatchNorm2d(3).eval())
    for variance in (1e-4, 1.0):
        assert_like_sampling(layer, normal_moments(2, 3, 2, 2, variance=variance))


@pytest.mark.parametrize(
    ("build", "size"),
    [(lambda: nn.LayerNorm(64), 64), (lambda: nn.RMSNorm(64), 64)],
)
@pytest.mark.parametrize("variance", [1e-4, 1.0])
def test_norm_of_many_features_is_near_sampling(build, size, variance):
    layer = built(build)
    # At v = 1 the means are 0.4 % of a deviation off, the variances up to 6 %.
    assert_like_sampling(
        layer,
        normal_moments(2, size, variance=variance),
        num_samples=20_000,
        mean_error=0.03 if variance == 1.0 else 1e-3,
        variance_error=0.08 if variance == 1.0 else 1e-2,
    )


@pytest.mark.parametrize("build", [lambda: nn.LayerNorm(8), lambda: nn.RMSNorm(8)])
@pytest.mark.parametrize("variance", [1e-6, 1e-4])
def test_full_form_is_exact_to_first_order_for_few_features(build, variance):
    layer = built(build)
    x = normal_moments(3, 8, variance=variance)
    jacobian = torch.autograd.functional.jacobian(layer, x.expected)
    expected = (jacobian**2 * x.variance).sum((-1, -2)).detach()
    # What is left is of the next order in v.
    assert (layer(x).variance / expected - 1).abs().max() < 100 * variance
    simple = layer.weight**2 * x.variance / (x.expected.var(-1, correction=0, keepdim=True) + 1e-5)
    if isinstance(layer, nn.LayerNorm):
        with moment_rules("taylor"):
            torch.testing.assert_close(layer(x).variance, simple)


def test_group_norm_is_layer_norm_of_each_group():
    x = normal_moments(2, 4, 3)
    result = F.group_norm(x, 2)
    grouped = F.layer_norm(x.reshape(2, 2, 6), (6,)).reshape(2, 4, 3)
    torch.testing.assert_close(result.expected, grouped.expected)
    torch.testing.assert_close(result.variance, grouped.variance)


def test_normalize_is_near_sampling():
    x = normal_moments(3, 40, variance=0.2)
    assert_like_sampling(
        lambda z: F.normalize(z, dim=-1),
        x,
        mean_error=0.03,
        variance_error=0.08,
        num_samples=20_000,
    )
    m = torch.randn(2, 3, 4)
    torch.testing.assert_close(F.normalize(Moments(m, 0.0)).expected, F.normalize(m))
    with pytest.raises(ValueError, match="p must be 2"):
        F.normalize(x, p=1.0)


def test_batch_norm_in_training_uses_and_tracks_expected_statistics():
    layer = nn.BatchNorm2d(3).double()
    x = normal_moments(8, 3, 4, 4)
    result = layer(x)
    m, v = x.expected.transpose(0, 1).flatten(1), x.variance.transpose(0, 1).flatten(1)
    power = m.var(1, correction=0) + v.mean(1)
    expected = (x.expected - m.mean(1).view(3, 1, 1)) / (power + 1e-5).sqrt().view(3, 1, 1)
    torch.testing.assert_close(result.expected, expected)
    torch.testing.assert_close(result.variance, x.variance / (power + 1e-5).view(3, 1, 1))
    torch.testing.assert_close(layer.running_mean, 0.1 * m.mean(1))
    torch.testing.assert_close(layer.running_var, 0.9 + 0.1 * (m.var(1) + v.mean(1)))
    assert layer.num_batches_tracked.item() == 1


@pytest.mark.parametrize("is_affine", [True, False])
@pytest.mark.parametrize("shape", [(5, 3), (4, 3, 2, 2)])
def test_batch_norm_in_training_has_the_gradients_of_its_open_form(shape, is_affine):
    x = normal_moments(*shape)
    parts = [part.clone().requires_grad_() for part in x.pair()]
    options = [torch.randn(3).double().requires_grad_() for _ in range(2)] if is_affine else []

    def call(m, v, *options):
        return F.batch_norm(Moments(m, v), None, None, *options, training=True).pair()

    assert torch.autograd.gradcheck(call, [*parts, *options])
    assert torch.autograd.gradgradcheck(call, [*parts, *options])
    weights = [torch.randn(shape).double() for _ in range(2)]

    def loss(*inputs):
        return sum((w * part).sum() for w, part in zip(weights, call(*inputs), strict=True))

    inputs = [*parts, *options]
    own = torch.autograd.grad(loss(*inputs), inputs)
    detached = [each.detach() for each in inputs]
    open_form = torch.func.grad(loss, argnums=tuple(range(len(inputs))))(*detached)
    torch.testing.assert_close(own, open_form)


def test_batch_norm_of_half_precision_keeps_its_types_and_their_digits():
    x = normal_moments(8, 3, 4, 4, dtype=torch.float32)
    half = [part.bfloat16().requires_grad_() for part in x.pair()]
    precise = [part.detach().double().requires_grad_() for part in half]
    weight, bias = torch.tensor([0.5, -1.0, 2.0]), torch.tensor([0.0, 1.0, -1.0])
    found, wanted = (
        F.batch_norm(
            Moments(*parts), None, None, weight.to(kind), bias.to(kind), training=True
        ).pair()
        for parts, kind in ((half, torch.float32), (precise, torch.float64))
    )
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == torch.bfloat16
        torch.testing.assert_close(one.double(), other, rtol=0.01, atol=0.01)
    ways = [torch.randn(8, 3, 4, 4) for _ in range(2)]
    slopes = torch.autograd.grad(found, half, [way.bfloat16() for way in ways])
    own = torch.autograd.grad(wanted, precise, [way.bfloat16().double() for way in ways])
    for one, other in zip(slopes, own, strict=True):
        assert one.dtype == torch.bfloat16
        torch.testing.assert_close(one.double(), other, rtol=0.01, atol=0.01)


def test_tracked_statistics_are_those_of_samples():
    x = normal_moments(6, 2, 3, 3)
    layer = nn.BatchNorm2d(2, momentum=1.0).double()
    layer(x)
    sampled = nn.BatchNorm2d(2, momentum=None).double()
    with torch.no_grad():
        for _ in range(2000):
            sampled(x.expected + x.variance.sqrt() * torch.randn_like(x.expected))
    torch.testing.assert_close(layer.running_mean, sampled.running_mean, atol=0.02, rtol=0.0)
    torch.testing.assert_close(layer.running_var, sampled.running_var, atol=0.0, rtol=0.03)


def test_instance_norm_tracks_the_statistics_torch_tracks():
    m = torch.randn(4, 3, 5, dtype=torch.float64)
    layers = [nn.InstanceNorm1d(3, track_running_stats=True).double() for _ in range(2)]
    layers[0](m)
    layers[1](Moments(m, 0.0))
    torch.testing.assert_close(layers[0].running_mean, layers[1].running_mean)
    torch.testing.assert_close(layers[0].running_var, layers[1].running_var)


def test_batch_norm_in_training_refuses_one_value():
    with pytest.raises(ValueError, match="more than one value"):
        nn.BatchNorm1d(3)(Moments(torch.ones(1, 3), 1.0))
    one = Moments(torch.ones(2, 3, 1, 1), 1.0)
    with pytest.raises(ValueError, match="more than one value"):
        F.instance_norm(one, torch.zeros(3), torch.ones(3), use_input_stats=True)


def test_certain_moments_scale_a_batch_norm_as_tensors_do():
    x = normal_moments(6, 3)
    parts = [part.clone().requires_grad_() for part in x.pair()]
    weight, bias = torch.randn(2, 3).double()
    whole = F.batch_norm(Moments(*parts), None, None, Moments(weight), Moments(bias), training=True)
    plain = F.batch_norm(Moments(*parts), None, None, weight, bias, training=True)
    torch.testing.assert_close(whole.pair(), plain.pair())


@pytest.mark.filterwarnings("ignore:`torch.jit.script")
def test_batch_norm_has_forward_mode_derivatives():
    x = normal_moments(6, 3)
    parts = [part.clone().requires_grad_() for part in x.pair()]
    ways = [torch.randn_like(part) for part in parts]

    def call(m, v):
        return F.batch_norm(Moments(m, v), None, None, training=True).pair()

    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(*pair) for pair in zip(parts, ways, strict=True)]
        found = [forward_ad.unpack_dual(each).tangent for each in call(*duals)]
    detached = tuple(part.detach() for part in parts)
    torch.testing.assert_close(tuple(found), torch.func.jvp(call, detached, tuple(ways))[1])


def test_affine_moments_are_carried():
    weight, bias = normal_moments(6), normal_moments(6)
    x = torch.randn(3, 6, dtype=torch.float64)
    assert_like_sampling(lambda w, b: F.layer_norm(x, (6,), w, b), weight, bias)


@pytest.mark.parametrize("build", [lambda: nn.LayerNorm(4), lambda: nn.RMSNorm(4)])
def test_constant_rows_and_extremes_stay_finite(build):
    layer = build()
    m = torch.stack([torch.zeros(4), torch.full((4,), 1e4), torch.tensor([0.0, 0, 0, 1e4])])
    for variance in (0.0, 1e-12, 1.0, 1e4):
        mean = m.clone().requires_grad_()
        spread = torch.full_like(m, variance).requires_grad_()
        result = layer(Moments(mean, spread))
        assert result.expected.isfinite().all()
        assert (result.variance >= 0).all()
        (result.expected.sum() + result.variance.sum()).backward()
        assert mean.grad.isfinite().all()
        assert spread.grad.isfinite().all()


@pytest.mark.parametrize(("build", "shape"), LAYERS)
def test_gradients_are_right(build, shape):
    layer = built(build)
    m, v = (part.requires_grad_() for part in normal_moments(*shape).pair())

    def call(m, v):
        return copy.deepcopy(layer)(Moments(m, v)).pair()

    assert torch.autograd.gradcheck(call, (m, v))


@pytest.mark.parametrize("shape", [(2, 3, 5), (5,)])
@pytest.mark.parametrize("has_weight", [True, False])
def test_layer_norm_knows_its_derivatives(has_weight, shape, monkeypatch):
    torch.manual_seed(0)
    m, w, b = (torch.randn(*size).double().requires_grad_() for size in (shape, (5,), (5,)))
    v = torch.rand(*shape).double().requires_grad_()
    inputs = (m, v, w, b) if has_weight else (m, v)

    def call(m, v, *scaling):
        return F.layer_norm(Moments(m, v), (5,), *scaling).pair()

    assert torch.autograd.gradcheck(call, inputs)
    few = [each.detach().view(-1, 5)[:2].requires_grad_() for each in (m, v)]
    assert torch.autograd.gradgradcheck(call, few)
    weights = [torch.randn(*shape).double() for _ in range(2)]
    own = torch.autograd.grad(call(*inputs), inputs, weights)
    monkeypatch.setattr(layer_norm_module, "takes_own_derivatives", lambda *_: False)
    torch.testing.assert_close(own, torch.autograd.grad(call(*inputs), inputs, weights))


def test_layer_norm_of_half_precision_has_gradients_of_its_type():
    m, v = (torch.rand(4, 6).bfloat16().requires_grad_() for _ in range(2))
    result = F.layer_norm(Moments(m, v), (6,))
    assert [each.dtype for each in result.pair()] == [torch.bfloat16] * 2
    wide = [each.detach().float().requires_grad_() for each in (m, v)]
    exact = F.layer_norm(Moments(*wide), (6,))
    for given, found in (((m, v), result), (wide, exact)):
        sum((each.float() * torch.arange(6)).sum() for each in found.pair()).backward()
        assert all(each.grad.dtype == each.dtype for each in given)
    for ours, theirs in zip((m, v), wide, strict=True):
        torch.testing.assert_close(ours.grad.float(), theirs.grad, rtol=0.03, atol=0.03)


def test_layer_norm_of_large_values_is_finite():
    m, v = 1e12 * torch.randn(3, 6), 1e16 * torch.rand(3, 6)
    m.requires_grad_()
    result = F.layer_norm(Moments(m, v), (6,))
    assert all(each.isfinite().all() for each in result.pair())


@pytest.mark.parametrize("norm", [F.layer_norm, F.rms_norm])
@pytest.mark.parametrize("shape", [(5,), (3, 4), (2, 3, 4, 1)])
def test_a_norm_over_another_shape_is_refused_as_by_torch(norm, shape):
    x = Moments(torch.zeros(2, 3, 6), 1.0)
    with pytest.raises((RuntimeError, ValueError)):
        norm(x.expected, shape)
    with pytest.raises(ValueError, match="normalized_shape must be how the input's shape ends"):
        norm(x, shape)
