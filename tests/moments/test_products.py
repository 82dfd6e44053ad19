"""Sums of variances and squares, whose gradients are found in the type of their values."""

import pytest
import torch
import torch.nn.functional as F

from bayesify.moments import Moments
from bayesify.moments.products import squares, sum_of_outer, sum_of_variances

# Five roundings to bfloat16, of 2^-9 each: of what is multiplied, and of the product.
TOLERANCE = 5 * 2.0**-9


def rounded(*shape):
    return torch.rand(shape).to(torch.bfloat16)


def test_squares_of_bfloat16_are_float32_with_the_gradient_of_the_square():
    m = (rounded(5, 7) - 0.5).requires_grad_()
    found = squares(m)
    assert found.dtype == torch.float32
    assert torch.equal(found, m.detach().float().square())
    weight = torch.randn(5, 7)
    (found * weight).sum().backward()
    assert m.grad.dtype == torch.bfloat16
    torch.testing.assert_close(
        m.grad.float(), 2 * weight * m.detach().float(), rtol=TOLERANCE, atol=0.0
    )


SHAPES = [
    ((4, 6, 9), (4, 6, 1), (9,), (9,)),
    ((4, 9, 5, 5), (4, 1, 5, 5), (9, 1, 1), (9, 1, 1)),
    ((4, 9, 5, 5), (4, 9, 5, 5), (9, 1, 1), None),
    ((0, 9), (0, 1), (9,), (9,)),
]


@pytest.mark.parametrize(("product", "seen", "shared", "added"), SHAPES)
def test_sum_of_bfloat16_variances_has_the_gradients_of_the_open_form(product, seen, shared, added):
    torch.manual_seed(0)
    parts = [rounded(*product), torch.rand(seen), torch.rand(shared)]
    parts.append(None if added is None else torch.rand(added))
    weight = torch.rand(product)
    found = []
    for dtype in (None, torch.float64):
        given = [
            None if each is None else each.detach().clone().to(dtype or each.dtype).requires_grad_()
            for each in parts
        ]
        total = sum_of_variances(*given)
        (total * weight).sum().backward()
        found.append([total.detach(), *(each.grad for each in given if each is not None)])
    assert found[0][0].dtype == torch.bfloat16
    for ours, true in zip(*found, strict=True):
        torch.testing.assert_close(ours.double(), true, rtol=TOLERANCE, atol=0.0)
    assert [each.dtype for each in found[0][2:]] == [torch.float32] * len(found[0][2:])


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("has_added", [True, False])
def test_sum_of_outer_products_has_the_gradients_of_the_open_form(number, has_added):
    torch.manual_seed(0)
    places = [torch.rand(4, 6, 1) for _ in range(number)]
    units = [torch.rand(9) for _ in range(number)]
    parts = [*places, *units, *([torch.rand(9)] if has_added else [])]
    weight, found = torch.rand(4, 6, 9), []
    for kind, dtype in ((torch.float32, torch.bfloat16), (torch.float64, torch.float64)):
        given = [each.clone().to(kind).requires_grad_() for each in parts]
        added = given[-1] if has_added else None
        total = sum_of_outer(given[:number], given[number : 2 * number], added, dtype)
        assert total.dtype == dtype
        (total * weight).sum().backward()
        found.append([total.detach(), *(each.grad for each in given)])
    for ours, true in zip(*found, strict=True):
        torch.testing.assert_close(ours.double(), true, rtol=TOLERANCE, atol=0.0)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of how dynamo calls a Function
def test_layer_of_shared_variances_has_the_same_gradients_compiled_in_bfloat16():
    torch.manual_seed(0)
    x = Moments(torch.randn(6, 8), torch.rand(6, 8))
    weight, shared, added = torch.randn(5, 8), torch.rand(5, 1), torch.rand(5)

    def loss(weight, shared, added):
        y = F.linear(x, Moments(weight, shared), Moments(torch.zeros(5), added))
        return y.expected.float().sum() + y.variance.float().sum()

    grads = []
    for call in (loss, torch.compile(loss, backend="aot_eager"), loss):
        given = [each.clone().requires_grad_() for each in (weight, shared, added)]
        with torch.autocast("cpu", torch.bfloat16, enabled=len(grads) < 2):
            value = call(*given)
        grads.append(torch.autograd.grad(value, given))
    for eager, compiled, exact in zip(*grads, strict=True):
        torch.testing.assert_close(compiled, eager, rtol=TOLERANCE, atol=TOLERANCE)
        torch.testing.assert_close(eager, exact, rtol=3 * TOLERANCE, atol=3 * TOLERANCE)


def test_long_sum_under_autocast_keeps_growing():
    branch = Moments(torch.zeros(2).to(torch.bfloat16), torch.ones(2).to(torch.bfloat16))
    trunk = Moments(torch.zeros(2), torch.zeros(2))
    with torch.autocast("cpu", torch.bfloat16):
        for _ in range(1000):
            trunk = trunk + branch
    # In bfloat16 it would stop at 256.
    assert trunk.variance.tolist() == [1000.0, 1000.0]


def test_layer_takes_moments_of_no_device():
    x = Moments(torch.zeros(2, 3, device="meta"), 1.0)
    y = F.linear(x, Moments(torch.zeros(4, 3, device="meta"), 1.0))
    assert y.variance.shape == (2, 4)
