"""Sums of powers of draws from sums over the noise: same value, same gradient, a flat graph."""

import math

import pytest
import torch

from bayesify.distributions import num_statistics, parameterization_tuple


def factors(num_terms, num_draws, shape=(3,)):
    """Return the ηₛ of every entry, which have gradients, and the Tₛ of every draw."""
    eta = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for _ in range(num_terms)]
    noise = [torch.randn(num_draws, *shape, dtype=torch.float64) for _ in range(num_terms)]
    return eta, noise


def draws(eta, noise):
    return sum(left * right for left, right in zip(eta, noise, strict=True))


def summed(eta, noise, degree):
    split = parameterization_tuple(len(eta), degree)
    return split.total(split.of_parameters(eta), split.of_noise(noise))


@pytest.mark.parametrize("num_draws", [1, 6])
@pytest.mark.parametrize("degree", [1, 2, 3, 4])
@pytest.mark.parametrize("num_terms", [1, 2, 3])
def test_sum_of_powers_has_the_value_and_gradient_of_the_direct_sum(num_terms, degree, num_draws):
    eta, noise = factors(num_terms, num_draws)
    weights = torch.randn(3, dtype=torch.float64)
    found = summed(eta, noise, degree)
    expected = (draws(eta, noise) ** degree).sum(0)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    of_found = torch.autograd.grad((weights * found).sum(), eta)
    of_expected = torch.autograd.grad((weights * expected).sum(), eta)
    for one, other in zip(of_found, of_expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("degree", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("num_terms", [1, 2, 3, 4])
def test_number_of_products_is_the_stated_binomial(num_terms, degree):
    split = parameterization_tuple(num_terms, degree)
    assert split.size == math.comb(degree + num_terms - 1, num_terms - 1)
    assert len(set(split.exponents)) == split.size
    assert all(sum(powers) == degree for powers in split.exponents)
    # At w = 1 + ... + 1 every product is 1: the coefficients add up to S^k.
    assert sum(split.coefficients) == num_terms**degree


@pytest.mark.parametrize("num_terms", [1, 2, 3])
@pytest.mark.parametrize("degree", [1, 2, 4])
def test_a_polynomial_needs_the_products_of_all_its_powers(num_terms, degree):
    total = sum(parameterization_tuple(num_terms, k).size for k in range(1, degree + 1))
    assert num_statistics(num_terms, degree) == total
    assert total == math.comb(degree + num_terms, num_terms) - 1


@pytest.mark.parametrize("degree", [2, 3])
def test_a_polynomial_of_draws_is_the_sum_over_its_powers(degree):
    eta, noise = factors(2, 5)
    coefficients = torch.randn(degree, dtype=torch.float64)
    found = sum(c * summed(eta, noise, k) for k, c in enumerate(coefficients, start=1))
    values = draws(eta, noise)
    expected = sum((c * values**k).sum(0) for k, c in enumerate(coefficients, start=1))
    torch.testing.assert_close(found, expected)


def graph(tensor):
    """Return the nodes of a graph by name."""
    names, seen, left = [], set(), [tensor.grad_fn]
    while left:
        node = left.pop()
        if node is not None and node not in seen:
            seen.add(node)
            names.append(node.name())
            left += [parent for parent, _ in node.next_functions]
    return names


def test_the_graph_of_three_squared_draws_is_that_of_three_products():
    """The counterpart of the paper's Figure 4: Σ of M squares of mean + std · noise.

    Draw by draw each one adds a product, a sum and a square, 9 for M = 3. Rewritten it has the
    three products mean², 2 · mean · std and std², for any M.
    """
    mean, std = (torch.tensor(value, requires_grad=True) for value in (0.3, 0.7))

    def direct(num_draws):
        total = 0
        for noise in torch.randn(num_draws):
            total = total + (mean + std * noise).square()
        return graph(total)

    def rewritten(num_draws):
        noise = torch.randn(num_draws)
        return graph(summed([mean, std], [torch.ones(num_draws), noise], 2))

    per_draw = {"MulBackward0", "AddBackward0", "PowBackward0"}
    assert sum(name in per_draw for name in direct(3)) == 9 + 3  # and the sum over draws
    assert len(direct(30)) - len(direct(3)) == 27 * 4
    assert parameterization_tuple(2, 2).size == 3
    assert rewritten(3) == rewritten(30) == rewritten(3000)
    assert len(rewritten(3000)) < len(direct(30))


def test_statistics_of_the_noise_have_no_graph():
    noise = [torch.randn(5, 2, requires_grad=True) for _ in range(2)]
    assert not any(each.requires_grad for each in parameterization_tuple(2, 3).of_noise(noise))


@pytest.mark.parametrize("shape", [(), (4,), (2, 3)])
def test_entries_may_share_a_factor(shape):
    eta, noise = factors(2, 6, shape)
    shared = [eta[0], torch.tensor(0.4, dtype=torch.float64)]
    found = summed(shared, noise, 2)
    torch.testing.assert_close(found, draws(shared, noise).square().sum(0))


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "2"])
@pytest.mark.parametrize("name", ["num_terms", "degree"])
def test_an_impossible_size_is_refused(name, value):
    options = {"num_terms": 2, "degree": 2, name: value}
    with pytest.raises(ValueError, match=f"{name} must be a whole number >= 1, got {value!r}"):
        parameterization_tuple(**options)
