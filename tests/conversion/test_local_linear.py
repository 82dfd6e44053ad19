"""The dense layer's one step against the plain operations it stands for."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import forward_ad

from bayesify.conversion import convert
from bayesify.conversion.local_linear import _LocalLinear, can_be_one_step, local_linear
from bayesify.methods import MeanField

LEAST = 1e-20
# Fewer rows and more rows than where the order of the factors changes.
rows = pytest.mark.parametrize("num_rows", [1, 4, 20])
biases = pytest.mark.parametrize("bias", ["none", "plain", "random"])


def arguments(num_rows, bias, dtype=torch.float64):
    def draw(*shape):
        return torch.randn(shape, dtype=dtype)

    inputs, weight, noise = draw(num_rows, 5), draw(3, 5), draw(num_rows, 3)
    variance = draw(3, 5).square() + 0.1
    mean = None if bias == "none" else draw(3)
    spread = draw(3).square() + 0.1 if bias == "random" else None
    tensors = [inputs, weight, mean, variance, spread]
    return [t if t is None else t.requires_grad_() for t in tensors] + [noise, LEAST]


def plain(inputs, weight, bias, variance, bias_variance, noise, least):
    std = (F.linear(inputs.square(), variance, bias_variance) + least).sqrt()
    return F.linear(inputs, weight, bias) + std * noise


def one_step(*given):
    return _LocalLinear.apply(*given)[0]


@rows
@biases
def test_outputs_and_gradients_are_those_of_the_plain_operations(num_rows, bias):
    given = arguments(num_rows, bias)
    inputs = [tensor for tensor in given[:5] if tensor is not None]
    found, expected = one_step(*given), plain(*given)
    assert found.is_contiguous()
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    weights = torch.randn_like(found)
    pairs = zip(
        torch.autograd.grad((found * weights).sum(), inputs),
        torch.autograd.grad((expected * weights).sum(), inputs),
        strict=True,
    )
    for gradient, wanted in pairs:
        torch.testing.assert_close(gradient, wanted, rtol=1e-10, atol=1e-10)


@rows
@biases
def test_first_and_second_derivatives_pass_gradcheck(num_rows, bias):
    given = arguments(num_rows, bias)
    assert torch.autograd.gradcheck(one_step, given)
    assert torch.autograd.gradgradcheck(one_step, given)


def test_only_wanted_gradients_are_found():
    given = arguments(4, "plain")
    given[0].requires_grad_(False)
    given[3].requires_grad_(False)
    one_step(*given).sum().backward()
    assert given[0].grad is None
    assert given[3].grad is None
    assert given[1].grad is not None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_no_variance_and_no_input_give_finite_gradients(dtype):
    inputs = torch.zeros(4, 3, dtype=dtype, requires_grad=True)
    weight = torch.randn(2, 3, dtype=dtype, requires_grad=True)
    variance = torch.zeros(2, 3, dtype=dtype, requires_grad=True)
    output = local_linear(inputs, weight, None, variance, None, LEAST)
    assert output.abs().max() < 1e-8
    output.sum().backward()
    assert all(torch.isfinite(tensor.grad).all() for tensor in (inputs, weight, variance))


def test_an_empty_batch_gives_an_empty_output():
    weight, variance = torch.randn(2, 3), torch.rand(2, 3)
    assert local_linear(torch.randn(0, 3), weight, None, variance, None, LEAST).shape == (0, 2)


def test_noise_is_fresh_in_every_call_and_without_a_graph_where_none_is_wanted():
    inputs, weight, bias, variance, *_ = arguments(20, "plain")
    first = local_linear(inputs, weight, bias, variance, None, LEAST)
    assert first.requires_grad
    with torch.no_grad():
        second = local_linear(inputs, weight, bias, variance, None, LEAST)
    assert not second.requires_grad
    assert not torch.equal(first, second)


def test_it_is_left_out_where_the_plain_operations_are_needed():
    x, weight = torch.randn(4, 3), torch.randn(2, 3)
    assert can_be_one_step(x, weight, None)
    assert not can_be_one_step(x.bfloat16(), weight.bfloat16())
    assert not can_be_one_step(x, weight.double())
    assert not can_be_one_step(torch.randn(2, 4, 3), weight)
    assert not can_be_one_step(x.to("meta"), weight.to("meta"))
    with torch.autocast("cpu", torch.bfloat16):
        assert not can_be_one_step(x, weight)
    with forward_ad.dual_level():
        assert not can_be_one_step(x, weight)
    torch.func.vmap(lambda row: _refused(row, weight))(torch.randn(5, 4, 3))


def _refused(x, weight):
    assert not can_be_one_step(x, weight)
    return x


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_forward_mode_derivatives_still_reach_a_layer():
    layer = convert(nn.Linear(3, 2), MeanField(how="local", initial_std=1e-6))
    x, tangent = torch.randn(4, 3), torch.randn(4, 3)
    with forward_ad.dual_level():
        output = layer(forward_ad.make_dual(x, tangent))
        found = forward_ad.unpack_dual(output).tangent
    expected = tangent @ layer.weight_posterior.mean.T
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
