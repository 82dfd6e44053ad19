"""The GELU's moments by a series, against the exact ones, and at the ends of the scale."""

import pytest
import torch
import torch.nn.functional as F

from bayesify.moments import Moments, moment_rules
from bayesify.moments import gelu_series as module
from bayesify.moments.gelu import gelu_moments
from bayesify.moments.gelu_series import gelu_series_moments


def derivatives(m, v, moments_of=gelu_series_moments):
    m, v = m.clone().requires_grad_(), v.clone().requires_grad_()
    moments = moments_of(m, v)
    found = [torch.autograd.grad(part.sum(), (m, v), retain_graph=True) for part in moments]
    return [*(part.detach() for part in moments), *(each for pair in found for each in pair)]


@pytest.mark.parametrize(
    ("v", "error"),
    [(1e-9, 1e-4), (1e-2, 1e-4), (0.2, 5e-4), (1.0, 6e-3), (5.0, 1.5e-2), (1e3, 2.5e-2)],
)
def test_moments_are_near_the_exact_ones_and_never_above(v, error):
    m = (1.0 + v) ** 0.5 * torch.linspace(-6.0, 6.0, 401, dtype=torch.float64)
    v = torch.full_like(m, v)
    (mean, variance), (true_mean, truth) = gelu_series_moments(m, v), gelu_moments(m, v)
    assert ((mean - true_mean).abs().max() / true_mean.abs().max()) < 1e-4
    missing = (truth - variance) / truth.max()
    assert missing.max() < error
    assert missing.min() > -1e-4
    assert variance.min() >= 0


def test_derivatives_are_those_of_the_formula(monkeypatch):
    m = torch.linspace(-6.0, 6.0, 61, dtype=torch.float64).repeat(4)
    v = torch.tensor([1e-6, 0.05, 0.5, 3.0], dtype=torch.float64).repeat_interleave(61)
    # With the true tail, for which the derivatives are.
    monkeypatch.setattr(module, "coarse_tail", lambda x, bell: 0.5 * torch.erfc(x / 2**0.5))
    own = derivatives(m, v)
    monkeypatch.setattr(module, "takes_own_derivatives", lambda *_: False)
    torch.testing.assert_close(own, derivatives(m, v), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("m", "v", "mean", "variance"),
    [(1e30, 1.0, 1e30, 1.0), (-1e30, 1.0, 0.0, 0.0), (0.0, 0.0, 0.0, 0.0), (3e4, 0.0, 3e4, 0.0)],
)
def test_ends_of_the_scale(m, v, mean, variance):
    found = derivatives(*(torch.tensor([each], dtype=torch.bfloat16) for each in (m, v)))
    assert float(found[0]) == pytest.approx(mean, rel=1e-2)
    assert float(found[1]) == pytest.approx(variance, rel=1e-2)
    assert all(part.isfinite().all() for part in found)
    huge = derivatives(torch.zeros(1), torch.full((1,), 1e30))
    assert all(part.isfinite().all() for part in huge)


def test_only_half_precision_and_pooled_rules_take_it(monkeypatch):
    seen = []
    monkeypatch.setattr(
        "bayesify.moments.pooled_rules.gelu_series_moments",
        lambda m, v: seen.append(m.dtype) or (m, v),
    )
    for rules in ("exact", "pooled", "taylor", "shared"):
        for dtype in (torch.float32, torch.bfloat16):
            for approximate in ("none", "tanh"):
                with moment_rules(rules):
                    F.gelu(Moments(torch.ones(2, dtype=dtype), 1.0), approximate=approximate)
    assert seen == [torch.bfloat16]
