"""log w as a polynomial: right inside (0, 2), with a bound that holds and is not far off."""

import math

import pytest
import torch

from bayesify.distributions import TaylorLog

INSIDE = torch.linspace(0.02, 1.98, 197, dtype=torch.float64)


@pytest.mark.parametrize("order", [1, 2, 5, 20])
def test_error_stays_below_the_bound_and_near_it(order):
    series = TaylorLog(order)
    error = (series(INSIDE) - INSIDE.log()).abs()
    bound = series.error_bound(INSIDE)
    rounding = 1e-15 * order
    assert (error <= bound + rounding).all()
    # Above 1 signs alternate: at least half of the first term left out remains. Below 1 the
    # geometric series gives (order + 2) / (order + 1) and more for a step near 1.
    step = (INSIDE - 1).abs()
    is_told = (bound > 1e-12) & (step < 0.8)
    assert (bound[is_told] <= 3 * error[is_told] + rounding).all()


@pytest.mark.parametrize("value", [-1.0, 0.0, 2.0, 2.5, 40.0])
def test_bound_is_infinite_where_the_series_does_not_converge(value):
    assert torch.isinf(TaylorLog(4).error_bound(torch.tensor([value]))).all()


def test_more_terms_are_no_help_outside():
    value = torch.tensor(2.5, dtype=torch.float64)
    errors = [(TaylorLog(order)(value) - value.log()).abs() for order in (5, 10, 20, 40)]
    assert errors == sorted(errors)


def test_series_is_exact_at_one_and_has_the_slope_of_the_logarithm():
    value = torch.ones(1, dtype=torch.float64, requires_grad=True)
    found = TaylorLog(6)(value)
    assert found.item() == 0
    assert torch.autograd.grad(found.sum(), value)[0].item() == 1


def test_gradient_is_the_geometric_series_of_one_over_w():
    value = torch.tensor([0.6, 1.0, 1.4], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(TaylorLog(40)(value).sum(), value)
    torch.testing.assert_close(slope, 1 / value.detach())


def test_coefficients_are_those_of_the_logarithm_and_not_the_printed_ones():
    """The erratum: printed with 1/k!, from k = 0 and without signs, the series is exp(w − 1)."""
    assert TaylorLog(4).coefficients == (1.0, -1 / 2, 1 / 3, -1 / 4)
    step = INSIDE - 1
    printed = sum(step**k / float(math.factorial(k)) for k in range(25))
    torch.testing.assert_close(printed, step.exp(), rtol=1e-14, atol=0)
    assert ((printed - INSIDE.log()).abs() > 0.9).all()
    near = (INSIDE - 1).abs() < 0.5
    torch.testing.assert_close(TaylorLog(60)(INSIDE)[near], INSIDE.log()[near], rtol=1e-12, atol=0)


@pytest.mark.parametrize("order", [0, -2, 1.5, True, "3"])
def test_an_impossible_order_is_refused(order):
    with pytest.raises(ValueError, match=f"order must be a whole number >= 1, got {order!r}"):
        TaylorLog(order)
