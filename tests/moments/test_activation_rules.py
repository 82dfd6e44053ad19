"""Every element-wise rule against exact integrals, in both forms and at the extremes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bayesify.moments import Moments, moment_rules
from moments.sampling import assert_like_sampling, integrated_moments, normal_moments


@dataclass(frozen=True)
class Activation:
    """A function, where it has kinks, and how far its rule may be from the truth at v = 1.

    The errors are in standard deviations and in variances of the input.
    """

    name: str
    call: Callable[..., Tensor]
    kinks: tuple[float, ...] = ()
    mean_error: float = 1e-9
    variance_error: float = 1e-9
    domain: float = 6.0

    def __str__(self) -> str:
        return self.name


# Those without an error are exact.
ACTIVATIONS = [
    Activation("relu", F.relu, (0.0,)),
    Activation("leaky_relu", lambda x: F.leaky_relu(x, 0.2), (0.0,)),
    Activation("prelu", lambda x: F.prelu(x, torch.tensor([0.25], dtype=x.dtype)), (0.0,)),
    Activation("abs", torch.abs, (0.0,)),
    Activation("clamp", lambda x: torch.clamp(x, -1.0, 2.0), (-1.0, 2.0)),
    Activation("clamp_min", lambda x: x.clamp(min=0.5), (0.5,)),
    Activation("clamp_max", lambda x: x.clamp_max(0.5), (0.5,)),
    Activation("relu6", F.relu6, (0.0, 6.0)),
    Activation("hardtanh", F.hardtanh, (-1.0, 1.0)),
    Activation("hardsigmoid", F.hardsigmoid, (-3.0, 3.0)),
    Activation("gelu", F.gelu),
    Activation("exp", torch.exp, domain=1.0),
    Activation("square", torch.square),
    Activation("pow3", lambda x: x**3, domain=2.0),
    # By quadrature from here on.
    Activation("gelu_tanh", lambda x: F.gelu(x, approximate="tanh"), (), 1e-6, 1e-5),
    Activation("sigmoid", torch.sigmoid, (), 1e-8, 1e-7),
    Activation("tanh", torch.tanh, (), 1e-4, 4e-4),
    Activation("silu", F.silu, (), 1e-7, 1e-6),
    Activation("softplus", F.softplus, (), 1e-8, 1e-7),
    Activation("softplus_sharp", lambda x: F.softplus(x, beta=2.0), (), 1e-4, 1e-4),
    Activation("logsigmoid", F.logsigmoid, (), 1e-8, 1e-7),
    Activation("mish", F.mish, (), 1e-6, 1e-5),
    Activation("erf", torch.erf, (), 1e-5, 4e-4),
    Activation("sin", torch.sin, (), 1e-9, 1e-9),
    Activation("cos", torch.cos, (), 1e-9, 1e-9),
    Activation("atan", torch.atan, (), 2e-4, 2e-3),
    Activation("expm1", torch.expm1, (), 0.0, 0.0, domain=1.0),
    Activation("tanhshrink", F.tanhshrink, (), 1e-4, 4e-4),
    Activation("softsign", F.softsign, (0.0,), 1e-2, 1e-2),
    Activation("elu", F.elu, (0.0,), 3e-3, 3e-3),
    Activation("celu", lambda x: F.celu(x, 0.5), (0.0,), 4e-3, 6e-3),
    Activation("selu", F.selu, (0.0,), 2e-2, 3e-2),
    Activation("hardswish", F.hardswish, (-3.0, 3.0), 1e-2, 2e-2),
]
# Kinks in the second derivative and beyond, or closed forms with no floor of the step.
SMOOTH = [a for a in ACTIVATIONS if not a.kinks or a.mean_error < 1e-8]


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
@pytest.mark.parametrize("variance", [1e-4, 1e-2, 1.0])
def test_moments_are_those_of_an_exact_integral(activation, variance):
    m = torch.linspace(-activation.domain, activation.domain, 41, dtype=torch.float64)
    v = torch.full_like(m, variance)
    result = activation.call(Moments(m, v))
    mean, spread = integrated_moments(activation.call, m, v, activation.kinks)
    # The series of the GELU below v = 4e-3 leaves out a term of the order v^2.
    series = 1e-8 if activation.name == "gelu" else 0.0
    mean_excess = (result.expected - mean).abs() / variance**0.5 - activation.mean_error
    spread_excess = (result.variance - spread).abs() / variance - activation.variance_error - series
    assert mean_excess.max() < 1e-8
    assert spread_excess.max() < 1e-8 * float(1 + (spread / variance).max())


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
def test_moments_are_those_of_samples(activation):
    x = normal_moments(5)
    assert_like_sampling(
        activation.call,
        x,
        num_samples=100_000,
        mean_error=10 * activation.mean_error,
        variance_error=10 * activation.variance_error,
    )


@pytest.mark.parametrize("shape", [(5,), (2, 3, 4)])
def test_a_random_slope_of_a_prelu_adds_its_noise(shape):
    slope = normal_moments(shape[1] if len(shape) > 1 else 1, variance=0.3)
    x = normal_moments(*shape)

    def on_sample(x, slope):
        sides = (-1, 1) if len(shape) > 1 else (-1,)
        return torch.where(x > 0, x, slope.view(sides) * x)

    assert_like_sampling(F.prelu, x, slope, on_sample=on_sample, num_samples=100_000)
    certain = F.prelu(Moments(x.expected), slope)
    assert_like_sampling(F.prelu, x.expected, slope, on_sample=on_sample)
    assert (certain.variance[x.expected > 0] == 0).all()


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rules", ["exact", "taylor"])
def test_no_variance_gives_the_plain_value(activation, dtype, rules):
    m = torch.linspace(-activation.domain, activation.domain, 41, dtype=dtype)
    with moment_rules(rules):
        result = activation.call(Moments(m, torch.zeros_like(m)))
        certain = activation.call(Moments(m))
    # The closed form of the GELU keeps the digits that torch's own loses in the lower tail.
    rounding = 4 * torch.finfo(dtype).eps if activation.name == "gelu" else 0.0
    assert ((result.expected - activation.call(m)).abs() <= rounding * m.abs()).all()
    assert torch.equal(result.variance, torch.zeros_like(m))
    assert torch.equal(certain.expected, activation.call(m))
    assert certain.is_certain


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
def test_first_order_form_is_the_squared_derivative(activation):
    # Not at a kink, where each torch function takes a derivative of its own choice.
    m = torch.linspace(-activation.domain, activation.domain, 40, dtype=torch.float64) + 0.01
    v = torch.rand(40, dtype=torch.float64)
    leaf = m.clone().requires_grad_()
    (slope,) = torch.autograd.grad(activation.call(leaf).sum(), leaf)
    with moment_rules("taylor"):
        result = activation.call(Moments(m, v))
    assert torch.equal(result.expected, activation.call(m))
    torch.testing.assert_close(result.variance, slope**2 * v)


@pytest.mark.parametrize("activation", SMOOTH, ids=str)
def test_gradients_are_right(activation):
    m = torch.tensor([-2.3, -0.4, 0.3, 1.7], dtype=torch.float64, requires_grad=True)
    v = torch.tensor([0.5, 1.2, 0.02, 0.3], dtype=torch.float64, requires_grad=True)

    def moments(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return activation.call(Moments(m, v)).pair()

    assert torch.autograd.gradcheck(moments, (m, v), atol=1e-6)


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
@pytest.mark.parametrize("rules", ["exact", "taylor"])
def test_extremes_stay_finite_with_finite_gradients(activation, rules):
    # The variance of exp(z) itself leaves float32 beyond this.
    near, far = (5.0, 10.0) if activation.name in ("exp", "expm1") else (30.0, 1e4)
    means = torch.tensor([-far, -near, -1.0, 0.0, 1e-6, 1.0, near, far])
    variances = torch.tensor([0.0, 1e-30, 1e-12, 1e-6, 1.0, 25.0])
    m = means[:, None].expand(8, 6).clone().requires_grad_()
    v = variances.expand(8, 6).clone().requires_grad_()
    with moment_rules(rules):
        result = activation.call(Moments(m, v))
    assert result.expected.isfinite().all()
    assert result.variance.isfinite().all()
    assert (result.variance >= 0).all()
    (result.expected.sum() + result.variance.sum()).backward()
    assert m.grad.isfinite().all()
    assert v.grad.isfinite().all()


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
def test_variance_has_a_gradient_at_zero_variance(activation):
    m = torch.tensor([-0.7, 0.4, 1.3], dtype=torch.float64)
    v = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    activation.call(Moments(m, v)).variance.sum().backward()
    leaf = m.clone().requires_grad_()
    (slope,) = torch.autograd.grad(activation.call(leaf).sum(), leaf)
    torch.testing.assert_close(v.grad, slope**2, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32_and_rounded_at_its_end(activation, dtype):
    m = torch.linspace(-2, 2, 9).to(dtype)
    x = Moments(m, 0.3)
    result = activation.call(x)
    reference = activation.call(Moments(m.float(), x.variance.float()))
    stored = torch.float32 if dtype == torch.float16 else torch.bfloat16
    assert (result.dtype, result.variance.dtype) == (dtype, stored)
    torch.testing.assert_close(result.variance, reference.variance.to(stored))
    torch.testing.assert_close(result.expected, reference.expected.to(dtype))


@pytest.mark.parametrize("function", [F.relu, F.gelu, F.silu])
def test_float32_variance_has_no_cancellation(function):
    m = torch.linspace(-5, 5, 101)
    for variance in (1e-6, 1e-3, 3.9e-3, 4.1e-3, 1e-1, 1.0):
        v = torch.full_like(m, variance)
        precise = function(Moments(m.double(), v.double())).variance
        coarse = function(Moments(m, v)).variance.double()
        assert (coarse - precise).abs().max() / variance < 5e-5


def test_relu_derivative_at_zero_mean_is_a_half():
    m = torch.zeros(1, requires_grad=True)
    F.relu(Moments(m, 1.0)).expected.sum().backward()
    assert m.grad.item() == pytest.approx(0.5)


@pytest.mark.parametrize("exponent", [0.5, -0.5, -1, 1 / 3, 2.5])
def test_roots_and_reciprocals_are_to_first_order_where_the_mean_has_them(exponent):
    x = Moments(2.0 + torch.rand(5, dtype=torch.float64), 1e-4)
    assert_like_sampling(lambda z: z**exponent, x, mean_error=0.02, variance_error=2e-3)
    named = {0.5: torch.sqrt, -0.5: torch.rsqrt, -1: torch.reciprocal}.get(exponent)
    if named is not None:
        torch.testing.assert_close(torch.pow(x, exponent).pair(), named(x).pair())


def test_a_learned_exponent_has_its_gradient():
    x = Moments(1.0 + torch.rand(6, dtype=torch.float64), 1e-4)
    exponent = torch.tensor([2.5], dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close((x**exponent).pair(), (x**2.5).pair())
    assert torch.autograd.gradcheck(lambda p: (x**p).pair(), (exponent,))


def test_the_power_of_zero_is_certain():
    one = Moments(torch.zeros(2), 1.0) ** 0
    assert one.is_certain
    assert (one.expected == 1).all()


@pytest.mark.parametrize(
    "exponent", [Moments(torch.ones(2), 1.0), torch.ones(2), torch.ones(2, requires_grad=True)]
)
def test_powers_need_a_number_as_their_exponent(exponent):
    with pytest.raises(ValueError, match="must have a finite number as its exponent"):
        torch.pow(Moments(torch.ones(2), 1.0), exponent)
    with pytest.raises(ValueError, match="must have a finite number as its exponent"):
        torch.pow(torch.ones(2), Moments(torch.ones(2), 1.0))


@pytest.mark.parametrize(
    "call",
    [
        lambda x: F.relu(x, inplace=True),
        lambda x: F.leaky_relu(x, 0.1, True),
        lambda x: F.relu6(x, True),
        lambda x: F.silu(x, inplace=True),
        lambda x: F.hardsigmoid(x, True),
        F.relu_,
        torch.relu_,
        lambda x: x.relu_(),
        torch.sigmoid_,
    ],
)
def test_in_place_call_changes_its_argument(call):
    x = normal_moments(3)
    other = Moments(*x.pair())
    result = call(x)
    assert result is x
    assert not torch.equal(x.expected, other.expected)


@pytest.mark.parametrize("call", [torch.sqrt, torch.rsqrt, torch.log, torch.reciprocal])
def test_first_order_functions_are_near_samples_for_a_narrow_law(call):
    x = Moments(torch.tensor([2.0, 5.0], dtype=torch.float64), 1e-4)
    assert_like_sampling(call, x, mean_error=0.01, variance_error=0.01)
