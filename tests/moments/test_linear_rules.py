"""Linear layers, convolutions and products: exact for independent entries."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bayesify.moments import Moments
from moments.sampling import assert_like_sampling, normal_moments


def forms(x: Moments, weight: Moments, bias: Moments):
    """Yield every mixture of moments and tensors, at least one of them moments."""
    for choice in range(1, 8):
        parts = zip((x, weight, bias), (1, 2, 4), strict=True)
        yield tuple(part if choice & bit else part.expected for part, bit in parts)


def test_linear_has_the_analytic_moments():
    x, weight, bias = normal_moments(4, 5), normal_moments(3, 5), normal_moments(3)
    for inputs in forms(x, weight, bias):
        m, w, b = (getattr(part, "expected", part) for part in inputs)
        v, s, sb = (
            part.variance if isinstance(part, Moments) else torch.zeros_like(part)
            for part in inputs
        )
        result = F.linear(*inputs)
        three = m**2 @ s.T + v @ s.T + v @ (w**2).T + sb
        torch.testing.assert_close(result.expected, m @ w.T + b)
        torch.testing.assert_close(result.variance, three.expand(4, 3))


def test_linear_is_like_sampling():
    for variance in (1e-4, 1.0):
        x = normal_moments(2, 5, variance=variance)
        weight, bias = normal_moments(3, 5, variance=variance), normal_moments(3, variance=variance)
        for inputs in forms(x, weight, bias):
            assert_like_sampling(F.linear, *inputs, num_samples=20_000)


def test_linear_takes_two_products_at_most(monkeypatch):
    calls = []

    def counted(*args):
        calls.append(args)
        return linear(*args)

    from bayesify.moments.products import product_variance

    linear = F.linear
    x, weight = normal_moments(2, 3), normal_moments(4, 3)
    for left, right, expected in (
        (x, weight, 2),
        (x.expected, weight, 1),
        (x, weight.expected, 1),
        (Moments(x.expected), weight, 1),
        (Moments(x.expected), weight.expected, 0),
    ):
        calls.clear()
        product_variance(counted, left, right)
        assert len(calls) == expected


CONVOLUTIONS = [
    (F.conv1d, (2, 4, 7), (6, 2, 3), {"groups": 2, "padding": "same"}),
    (F.conv1d, (4, 7), (6, 4, 3), {}),
    (F.conv2d, (2, 3, 6, 5), (4, 3, 3, 2), {"stride": 2, "padding": (1, 0), "dilation": (1, 2)}),
    (F.conv2d, (2, 4, 5, 5), (4, 1, 3, 3), {"groups": 4, "padding": "valid"}),
    (F.conv3d, (1, 2, 4, 4, 4), (3, 2, 2, 3, 2), {"padding": 1}),
    (F.conv_transpose1d, (2, 4, 5), (4, 3, 3), {"groups": 2, "stride": 2, "output_padding": 1}),
    (F.conv_transpose2d, (1, 2, 3, 3), (2, 3, 3, 2), {"stride": 2, "padding": 1}),
    (F.conv_transpose3d, (1, 2, 2, 2, 2), (2, 1, 2, 2, 2), {"dilation": 2}),
]


@pytest.mark.parametrize(("operation", "shape", "kernel", "options"), CONVOLUTIONS)
def test_convolution_is_like_sampling(operation, shape, kernel, options):
    x, weight = normal_moments(*shape), normal_moments(*kernel, variance=0.3)
    plain = operation(x.expected, weight.expected, None, **options)
    channels = plain.shape[-(len(kernel) - 1)]
    bias = normal_moments(channels)

    def call(*inputs):
        return operation(*inputs, **options)

    for inputs in forms(x, weight, bias):
        result = call(*inputs)
        torch.testing.assert_close(result.expected, plain + _spread(bias.expected, plain, kernel))
    assert_like_sampling(call, x, weight, bias, num_samples=8_000)
    assert_like_sampling(call, x.expected, weight, bias, num_samples=8_000)
    assert_like_sampling(call, x, weight.expected, bias.expected, num_samples=8_000)


def _spread(bias, plain, kernel):
    return bias.view(-1, *[1] * (len(kernel) - 2)).expand(plain.shape)


def test_convolution_is_that_of_an_unfolded_linear_layer():
    x, weight, bias = normal_moments(2, 3, 6, 6), normal_moments(4, 3, 3, 3), normal_moments(4)
    direct = F.conv2d(x, weight, bias, padding=1, stride=2)
    columns = F.unfold(x, 3, padding=1, stride=2).transpose(1, 2)
    unfolded = F.linear(columns, weight.flatten(1), bias).transpose(1, 2)
    torch.testing.assert_close(direct.expected.flatten(2), unfolded.expected)
    torch.testing.assert_close(direct.variance.flatten(2), unfolded.variance)


def test_bilinear_is_like_sampling():
    first, second = normal_moments(2, 3), normal_moments(2, 4)
    weight, bias = normal_moments(5, 3, 4), normal_moments(5)

    def one(x, y, w, b=0.0):
        return torch.einsum("bi,oij,bj->bo", x, w, y) + b

    for inputs in (
        (first, second, weight, bias),
        (first, second.expected, weight.expected),
        (first.expected, second, weight.expected, bias),
        (first, second, weight.expected),
    ):
        assert_like_sampling(F.bilinear, *inputs, on_sample=one)


def test_bilinear_module_keeps_leading_dimensions():
    layer = nn.Bilinear(3, 4, 5).double()
    first, second = normal_moments(2, 6, 3), normal_moments(2, 6, 4)
    result = layer(first, second)
    assert result.shape == (2, 6, 5)
    torch.testing.assert_close(result.expected, layer(first.expected, second.expected))


PRODUCTS = [
    (torch.matmul, (2, 3), (3, 4)),
    (torch.mm, (2, 3), (3, 4)),
    (torch.bmm, (2, 2, 3), (2, 3, 4)),
    (torch.matmul, (3,), (3,)),
    (torch.matmul, (2, 1, 2, 3), (5, 3, 2)),
    (torch.mv, (2, 3), (3,)),
    (lambda a, b: a @ b, (2, 3), (3, 4)),
    (lambda a, b: a.matmul(b), (2, 3), (3, 4)),
    (lambda a, b: torch.einsum("bij,bkj->bik", a, b), (2, 2, 3), (2, 4, 3)),
    (lambda a, b: torch.einsum("...i,ij->...j", a, b), (2, 2, 3), (3, 4)),
    (lambda a, b: torch.addmm(torch.ones(4, dtype=torch.float64), a, b), (2, 3), (3, 4)),
]


@pytest.mark.parametrize(("product", "left", "right"), PRODUCTS)
def test_product_is_like_sampling(product, left, right):
    a, b = normal_moments(*left), normal_moments(*right)
    assert_like_sampling(product, a, b, num_samples=20_000)
    assert_like_sampling(product, a.expected, b, num_samples=20_000)
    assert_like_sampling(product, a, b.expected, num_samples=20_000)


def test_baddbmm_scales_both_terms():
    added, a, b = normal_moments(2, 2, 4), normal_moments(2, 2, 3), normal_moments(2, 3, 4)
    result = torch.baddbmm(added, a, b, beta=0.5, alpha=2.0)
    product = torch.bmm(a, b)
    torch.testing.assert_close(result.expected, 0.5 * added.expected + 2 * product.expected)
    torch.testing.assert_close(result.variance, 0.25 * added.variance + 4 * product.variance)


def test_einsum_of_one_operand_moves_and_sums():
    x = normal_moments(2, 3, 4)
    result = torch.einsum("ijk->ki", x)
    torch.testing.assert_close(result.variance, x.variance.sum(1).T)


def test_einsum_refuses_what_its_rule_would_get_wrong():
    a, b = normal_moments(2, 3), normal_moments(3, 4)
    with pytest.raises(ValueError, match=r"cannot sum over \['i'\]"):
        torch.einsum("ij,jk->k", a, b)
    with pytest.raises(ValueError, match="one or two operands, got 3"):
        torch.einsum("ij,jk,kl->il", a, b, normal_moments(4, 2))


def test_embedding_takes_rows_of_both():
    table = normal_moments(7, 3)
    words = torch.tensor([[1, 0], [6, 6]])
    result = F.embedding(words, table, padding_idx=0)
    assert torch.equal(result.expected, table.expected[words])
    assert torch.equal(result.variance, table.variance[words])
    with pytest.raises(ValueError, match="max_norm must be None"):
        F.embedding(words, table, max_norm=1.0)


def test_empty_batch_goes_through():
    result = F.linear(Moments(torch.zeros(0, 3), 1.0), torch.ones(2, 3))
    assert result.shape == result.variance.shape == (0, 2)


@pytest.mark.parametrize(("dtype", "rel"), [(torch.bfloat16, 1e-2), (torch.float16, 1e-5)])
def test_half_precision_products_neither_overflow_nor_vanish(dtype, rel):
    x = Moments(torch.full((1, 64), 300.0).to(dtype), 1.0)
    weight = Moments(torch.full((1, 64), 0.01).to(dtype), 1e-4)
    result = F.linear(x, weight)
    w = weight.expected.float()
    expected = 64 * ((300.0**2 + 1) * 1e-4 + float(w[0, 0]) ** 2)
    assert result.dtype == dtype
    assert result.variance.item() == pytest.approx(expected, rel=rel)


@pytest.mark.parametrize(
    ("dtype", "stored", "rtol"),
    [(torch.bfloat16, torch.bfloat16, 1e-2), (torch.float16, torch.float32, 1e-5)],
)
def test_autocast_takes_variance_products_in_a_type_of_enough_range(dtype, stored, rtol):
    layer = nn.Linear(64, 8)
    x = normal_moments(4, 64, dtype=torch.float32)
    x = Moments(x.expected, x.variance * 1e-8)
    plain = layer(x)
    with torch.autocast("cpu", dtype=dtype):
        outer = layer(x)
        result = F.gelu(outer)
    assert (outer.dtype, outer.variance.dtype) == (dtype, stored)
    torch.testing.assert_close(outer.variance.float(), plain.variance, rtol=rtol, atol=0.0)
    assert result.variance.dtype == stored


@pytest.mark.parametrize("is_input_random", [True, False])
@pytest.mark.parametrize(
    ("operation", "x_shape", "weight_shape", "options"),
    [
        (F.linear, (5, 6), (4, 6), {}),
        (F.linear, (2, 3, 6), (4, 6), {}),
        (F.conv1d, (2, 4, 9), (6, 2, 3), {"groups": 2, "stride": 2}),
        (F.conv2d, (2, 4, 7, 6), (6, 4, 3, 2), {"padding": (1, 2), "dilation": 2}),
        (F.conv2d, (4, 7, 6), (8, 1, 3, 3), {"groups": 4, "padding": 1}),
        (F.conv2d, (2, 4, 7, 6), (6, 4, 3, 2), {"padding": (1, 0), "stride": (2, 1)}),
        (F.conv2d, (2, 4, 7, 6), (6, 4, 1, 3), {"padding": "same"}),
        (F.conv2d, (2, 4, 7, 6), (6, 4, 1, 2), {"padding": 3}),
        (F.conv1d, (2, 4, 9), (6, 4, 5), {"padding": [2], "stride": [3]}),
        (F.conv3d, (1, 2, 4, 4, 4), (3, 2, 2, 2, 2), {"stride": (1, 2, 1)}),
        (F.conv_transpose2d, (2, 4, 5, 5), (4, 3, 2, 2), {"stride": 2}),
    ],
)
def test_variance_per_unit_gives_what_it_gives_written_out(
    operation, x_shape, weight_shape, options, is_input_random
):
    x, weight = normal_moments(*x_shape), normal_moments(*weight_shape)
    x = x if is_input_random else x.expected
    shared = weight.variance.mean(dim=tuple(range(1, weight.ndim)), keepdim=True)
    short = operation(x, Moments(weight.expected, shared), **options)
    whole = Moments(weight.expected, shared.expand(weight.shape).clone())
    assert whole.shared_variance is None
    written_out = operation(x, whole, **options)
    torch.testing.assert_close(short.variance, written_out.variance)
    torch.testing.assert_close(short.expected, written_out.expected)


def test_variance_per_unit_has_the_layout_of_the_mean():
    x, weight = normal_moments(2, 4, 5, 5), normal_moments(6, 4, 3, 3)
    x = Moments(*(part.to(memory_format=torch.channels_last) for part in x.pair()))
    shared = weight.variance.mean(dim=(1, 2, 3), keepdim=True)
    result = F.conv2d(x, Moments(weight.expected, shared), padding=1)
    assert result.expected.is_contiguous(memory_format=torch.channels_last)
    assert result.variance.is_contiguous(memory_format=torch.channels_last)


def test_gradients_are_right():
    inputs = [
        part.clone().requires_grad_()
        for moments in (normal_moments(2, 3), normal_moments(4, 3), normal_moments(4))
        for part in moments.pair()
    ]

    def call(m, v, w, s, b, sb):
        return F.linear(Moments(m, v), Moments(w, s), Moments(b, sb)).pair()

    assert torch.autograd.gradcheck(call, inputs)
