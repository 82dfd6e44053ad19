"""Attention by pooled rules: where it is exact, near sampling, masks, and its gradients."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bayesify.moments import Moments, moment_rules, pooled_rules
from bayesify.moments.attention_rules import attend
from moments.sampling import normal_moments


def pooled(query, key, value, mask=None, dropout=0.0, scale=0.5):
    with moment_rules("pooled"):
        return attend(query, key, value, mask, dropout, scale)


def exact(query, key, value, mask=None, dropout=0.0, scale=0.5):
    return attend(query, key, value, mask, dropout, scale)


def even(*shape, variance=1.0):
    """Return random means with a variance for all features of a token."""
    spread = variance * (0.5 + torch.rand(*shape[:-1], 1, dtype=torch.float64))
    return Moments(torch.randn(*shape, dtype=torch.float64), spread.expand(shape))


def sampled(query, key, value, scale, num_samples=4000):
    q, k, v = (
        x.expected + x.variance.sqrt() * torch.randn(num_samples, *x.shape, dtype=x.dtype)
        for x in (query, key, value)
    )
    return (torch.softmax(q @ k.mT * scale, -1) @ v).var(0)


def test_no_variance_gives_plain_attention():
    tokens = [torch.randn(2, 3, 5, 4, dtype=torch.float64) for _ in range(3)]
    with moment_rules("pooled"):
        found = F.scaled_dot_product_attention(*(Moments(each, 0.0) for each in tokens))
    torch.testing.assert_close(found.expected, F.scaled_dot_product_attention(*tokens))
    assert found.variance.abs().max() == 0


def test_certain_scores_are_by_exact_rules():
    query, key = (Moments(torch.randn(2, 3, 5, 4, dtype=torch.float64)) for _ in range(2))
    value = normal_moments(2, 3, 5, 4)
    torch.testing.assert_close(
        pooled(query, key, value).variance, exact(query, key, value).variance
    )


@pytest.mark.parametrize("sure", [0, 1, 2, (0, 2), (1, 2)])
def test_what_is_certain_adds_nothing(sure):
    """None in the place of a variance is a variance of 0."""
    parts = [even(2, 4, 6, variance=0.1) for _ in range(3)]
    places = (sure,) if isinstance(sure, int) else sure
    none, zeros = (
        [make(each.expected) if at in places else each for at, each in enumerate(parts)]
        for make in (Moments, lambda mean: Moments(mean, 0.0))
    )
    found = pooled(*none)
    torch.testing.assert_close(found.variance, pooled(*zeros).variance)
    assert found.variance.min() > 0


def test_one_source_passes_its_variance_on():
    query, key, value = even(2, 3, 6), even(2, 1, 6), normal_moments(2, 1, 6)
    found = pooled(query, key, value)
    mean = value.variance.mean(-1, keepdim=True).expand(2, 3, 6)
    torch.testing.assert_close(found.variance, mean)


@pytest.mark.parametrize(("num_sources", "error"), [(8, 0.12), (64, 0.06)])
def test_variance_of_a_head_is_near_sampling(num_sources, error):
    torch.manual_seed(0)
    query = even(8, 6, 16, variance=0.1)
    key, value = (even(8, num_sources, 16, variance=0.1) for _ in range(2))
    truth = sampled(query, key, value, 0.25).mean(-1)
    found = pooled(query, key, value, scale=0.25).variance
    # All features of a head have the same one.
    assert (found == found[..., :1]).all()
    ratio = (found[..., 0] / truth).log()
    assert ratio.mean().abs() < error
    assert ratio.std() < 0.25
    # Scores that vary are a good part of it: values alone are too little.
    p = torch.softmax(query.expected @ key.expected.mT * 0.25, -1)
    alone = (p.square() @ value.variance).mean(-1)
    assert (alone / truth).log().mean() < -0.15


def test_turning_queries_and_keys_together_changes_nothing():
    turn = torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64))[0]
    query, key, value = (even(2, 5, 6, variance=0.3) for _ in range(3))
    turned = [Moments(each.expected @ turn, each.variance) for each in (query, key)]
    torch.testing.assert_close(pooled(*turned, value).variance, pooled(query, key, value).variance)
    shifted = Moments(key.expected + 3.0, key.variance)
    torch.testing.assert_close(
        pooled(query, shifted, value).variance, pooled(query, key, value).variance
    )


def test_hidden_sources_change_nothing():
    query, key, value = (even(2, 5, 6, variance=0.3) for _ in range(3))
    mask = torch.zeros(5, 5, dtype=torch.float64)
    mask[:, 3:] = -torch.inf
    few = [Moments(each.expected[:, :3], each.variance[:, :3]) for each in (key, value)]
    found = pooled(query, key, value, mask)
    torch.testing.assert_close(found.variance, pooled(query, *few).variance)
    mask[1] = -torch.inf
    found = pooled(query, key, value, mask)
    assert found.variance[:, 1].abs().max() == 0
    assert found.variance.isfinite().all()


def test_no_token_sees_those_after_it():
    parts = [even(1, 5, 6, variance=0.3) for _ in range(3)]
    with moment_rules("pooled"):
        before = F.scaled_dot_product_attention(*parts, is_causal=True)
        for each in parts[1:]:
            each.expected[:, 3:] += 1.0
        after = F.scaled_dot_product_attention(*parts, is_causal=True)
    torch.testing.assert_close(after.variance[:, :3], before.variance[:, :3])
    assert not torch.allclose(after.variance[:, 3:], before.variance[:, 3:])


def test_a_mask_of_zeros_is_no_mask_and_dropout_is_that_of_exact_rules():
    query, key, value = (even(2, 5, 6, variance=1e-9) for _ in range(3))
    zeros = torch.zeros((), dtype=torch.float64)
    torch.testing.assert_close(
        pooled(query, key, value, zeros).variance, pooled(query, key, value).variance
    )
    found, truth = (rule(query, key, value, dropout=0.3).variance for rule in (pooled, exact))
    torch.testing.assert_close(found.mean(-1), truth.mean(-1))


def test_gradients_are_right():
    def variance(q, qv, k, kv, v, vv):
        parts = Moments(q, qv), Moments(k, kv), Moments(v, vv)
        return pooled(*parts).variance

    inputs = [torch.rand(1, 3, 4, dtype=torch.float64).requires_grad_() for _ in range(6)]
    assert torch.autograd.gradcheck(variance, inputs)


def test_layers_of_torch_take_it():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, 0.0, "gelu", batch_first=True).double().eval()
    x = normal_moments(2, 7, 32, variance=0.01)
    with torch.no_grad():
        truth = layer(x)
        with moment_rules("pooled"):
            found = layer(x)
    torch.testing.assert_close(found.expected, truth.expected, rtol=1e-3, atol=1e-3)
    assert (found.variance.mean(-1) / truth.variance.mean(-1)).log().abs().max() < 0.1


def by_the_formulas(query, key, value, dropout, scale):
    """Return the variance of each target, one pair of tokens after the other."""
    (q, vq), (k, vk), (v, vv) = (each.pair() for each in (query, key, value))
    size, found = q.shape[-1], torch.zeros(q.shape[0], dtype=q.dtype)
    middle = k.mean(0)
    for i in range(len(q)):
        p = torch.softmax(q[i] @ k.T * scale, 0)
        o = p @ v
        for j in range(len(k)):
            by_key = (q[i].square().sum() + size * vq[i].mean()) * vk[j].mean()
            t = scale**2 * (by_key + vq[i].mean() * (k[j] - middle).square().sum())
            u = p[j] ** 2 * (1 + (1 - p[j]) * t)
            found[i] += u * vv[j].mean() + p[j] ** 2 * t * (v[j] - o).square().mean()
            found[i] += dropout / (1 - dropout) * u * (vv[j] + v[j].square()).mean()
    return found


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_it_is_what_the_formulas_say(dropout):
    query, key, value = normal_moments(3, 4), normal_moments(5, 4), normal_moments(5, 4)
    found = pooled(query, key, value, dropout=dropout).variance
    truth = by_the_formulas(query, key, value, dropout, 0.5)
    torch.testing.assert_close(found, truth[:, None].expand(3, 4))


def test_a_large_number_hides_as_infinity_does():
    parts = [even(1, 5, 6, variance=0.3) for _ in range(3)]
    hidden = torch.ones(5, 5, dtype=torch.bool).triu(1)
    found = [
        pooled(*parts, torch.zeros(5, 5, dtype=torch.float64).masked_fill(hidden, least)).variance
        for least in (-torch.inf, torch.finfo(torch.float64).min, -1e4)
    ]
    torch.testing.assert_close(found[1], found[0])
    torch.testing.assert_close(found[2], found[0])


def test_its_variance_has_a_view_in_every_shape():
    tokens = torch.randn(2, 3, 5, 4)
    with moment_rules("pooled"):
        found = F.scaled_dot_product_attention(*(Moments(tokens, 0.1) for _ in range(3)))
    assert found.view(2, 3, 20).variance.shape == (2, 3, 20)
    assert found.view_as(torch.empty(6, 20)).variance.shape == (6, 20)


def test_projections_of_torch_are_pooled_too(monkeypatch):
    monkeypatch.setattr(pooled_rules, "FEWEST", 1)
    seen = []
    before = pooled_rules._pooled
    monkeypatch.setattr(
        pooled_rules, "_pooled", lambda *args: seen.append(args[1].shape) or before(*args)
    )
    layer = nn.MultiheadAttention(8, 2, batch_first=True).double().eval()
    x = normal_moments(2, 5, 8)
    with torch.no_grad(), moment_rules("pooled"):
        layer(x, x, x, need_weights=False)
    assert seen == [(8, 8)] * 4
