"""Special functions of one number, as Python's own numbers."""

import pytest
import torch
from scipy import special

import bayesify as bf
from bayesify.distributions.special import digamma, trigamma


@pytest.mark.parametrize("value", [1e-3, 0.3, 0.5, 1.0, 2.0, 3.7, 15.99, 16.0, 120.0, 1e6])
def test_digamma_and_trigamma_are_those_of_scipy(value):
    """Torch's own has nine digits of the second."""
    assert digamma(value) == pytest.approx(float(special.digamma(value)), rel=1e-13)
    assert trigamma(value) == pytest.approx(float(special.polygamma(1, value)), rel=1e-13)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("prior", ["inverse_gaussian", "standard_wald"])
def test_a_closed_kl_with_such_numbers_in_it_compiles(prior):
    model = bf.convert(torch.nn.Linear(2, 3), bf.MonteCarloKL(family="erlang", prior=prior))
    torch._dynamo.reset()
    found = torch.compile(bf.kl, fullgraph=True, options={"fallback_random": True})(model)
    torch.testing.assert_close(found, bf.kl(model))
    torch._dynamo.reset()
