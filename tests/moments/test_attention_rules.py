"""Attention: plain at zero variance, near sampling, masks, and torch's own layers."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bayesify.moments import Moments, moment_rules
from moments.sampling import assert_like_sampling, normal_moments

MASK = torch.tensor([[True, True, False, True]] * 3)


def attention_options():
    return [
        {},
        {"attn_mask": MASK},
        {"attn_mask": torch.randn(3, 4, dtype=torch.float64)},
        {"is_causal": True},
        {"scale": 0.7},
    ]


@pytest.mark.parametrize("options", attention_options())
def test_no_variance_gives_plain_attention(options):
    shapes = ((2, 2, 3, 5), (2, 2, 4, 5), (2, 2, 4, 6))
    inputs = [torch.randn(*shape, dtype=torch.float64) for shape in shapes]
    plain = F.scaled_dot_product_attention(*inputs, **options)
    result = F.scaled_dot_product_attention(*(Moments(x, 0.0) for x in inputs), **options)
    torch.testing.assert_close(result.expected, plain)
    assert result.variance.abs().max() == 0
    certain = F.scaled_dot_product_attention(*map(Moments, inputs), **options)
    assert torch.equal(certain.expected, plain)


@pytest.mark.parametrize("options", attention_options())
def test_attention_is_like_sampling(options):
    def call(query, key, value):
        return F.scaled_dot_product_attention(query, key, value, **options)

    def one(query, key, value):
        return F.scaled_dot_product_attention(query[None], key[None], value[None], **options)[0]

    # The scores of one query share its noise, which is not seen: 7 % on average, half at worst.
    for variance, error in ((1e-4, 0.5), (0.05, 0.5)):
        shapes = ((2, 3, 5), (2, 4, 5), (2, 4, 6))
        inputs = [normal_moments(*shape, variance=variance) for shape in shapes]
        assert_like_sampling(
            call, *inputs, on_sample=one, num_samples=20_000, mean_error=error, variance_error=error
        )


def test_variance_is_a_few_per_cent_off_on_average():
    query, key, value = (normal_moments(16, 8, 8, variance=0.05) for _ in range(3))
    result = F.scaled_dot_product_attention(query, key, value)
    q, k, v = (
        x.expected + x.variance.sqrt() * torch.randn(4000, *x.shape, dtype=torch.float64)
        for x in (query, key, value)
    )
    truth = (torch.softmax(q @ k.mT / 8**0.5, -1) @ v).var(0)
    assert (result.variance / truth - 1).abs().mean() < 0.1
    assert abs((result.variance / truth).log().mean()) < 0.05


def test_random_keys_and_values_alone_are_exact_to_first_order():
    query = torch.randn(2, 3, 5, dtype=torch.float64)
    key, value = normal_moments(2, 4, 5, variance=1e-4), normal_moments(2, 4, 6, variance=1e-4)

    def call(key, value):
        return F.scaled_dot_product_attention(query, key, value)

    def one(key, value):
        return torch.softmax(query @ key.mT / 5**0.5, -1) @ value

    assert_like_sampling(call, key, value, on_sample=one, mean_error=1e-2, variance_error=1e-3)


@pytest.mark.parametrize("rules", ["exact", "pooled"])
def test_a_learned_mask_adds_noise_to_each_score(rules):
    query, mask = (torch.randn(2, 3, 4, dtype=torch.float64) for _ in range(2))
    key, value = normal_moments(2, 4, 4, variance=1e-4), normal_moments(2, 4, 6, variance=1e-4)
    mask = Moments(mask, 1e-4 + 1e-3 * torch.rand(2, 3, 4, dtype=torch.float64))

    def call(key, value, mask):
        with moment_rules(rules):
            return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)

    def one(key, value, mask):
        return torch.softmax(query @ key.mT / 2.0 + mask, -1) @ value

    assert_like_sampling(
        call, key, value, mask, on_sample=one, mean_error=0.05, variance_error=0.02
    )
    # With nothing else uncertain, and a mask that is certain after all.
    alone = call(key.expected, value.expected, mask)
    assert (alone.variance > 0).all()
    assert (alone.variance < call(key, value, mask).variance).all()
    sure = call(key, value, Moments(mask.expected))
    assert torch.equal(sure.variance, call(key, value, mask.expected).variance)


def test_alike_sources_are_near_sampling_and_the_first_order_form_is_not():
    key = Moments(3.0 + 0.1 * torch.randn(1, 8, 5, dtype=torch.float64), 1e-3)
    query, value = normal_moments(1, 2, 5, variance=1e-2), 3.0 + 0.1 * torch.randn(1, 8, 4).double()

    def call(query, key):
        return F.scaled_dot_product_attention(query, key, value)

    def one(query, key):
        return torch.softmax(query @ key.mT / 5**0.5, -1) @ value

    assert_like_sampling(
        call, query, key, on_sample=one, mean_error=0.05, variance_error=0.5, num_samples=20_000
    )
    with moment_rules("taylor"):
        taylor = call(query, key).variance
    assert (taylor > 20 * call(query, key).variance).all()


def test_first_order_form_takes_weights_as_independent():
    query, key, value = (normal_moments(1, 3, 5) for _ in range(3))
    with moment_rules("taylor"):
        result = F.scaled_dot_product_attention(query, key, value)
        weights = torch.softmax(query @ key.mT / 5**0.5, -1)
    p, s = weights.pair()
    expected = (p**2 + s) @ value.variance + s @ value.expected**2
    torch.testing.assert_close(result.variance, expected)


def test_certain_queries_and_keys_leave_weighted_values():
    query, key = torch.randn(2, 3, 5), torch.randn(2, 4, 5)
    value = normal_moments(2, 4, 6, dtype=torch.float32)
    result = F.scaled_dot_product_attention(query, key, value)
    weights = torch.softmax(query @ key.mT / 5**0.5, -1)
    torch.testing.assert_close(result.variance, weights**2 @ value.variance)


def test_hidden_sources_change_nothing():
    query, key, value = (normal_moments(1, 3, 5) for _ in range(3))
    mask = torch.tensor([True, True, False])
    result = F.scaled_dot_product_attention(query, key, value, attn_mask=mask.expand(3, 3))
    short = F.scaled_dot_product_attention(query, key[:, :2], value[:, :2])
    torch.testing.assert_close(result.expected, short.expected)
    torch.testing.assert_close(result.variance, short.variance)


@pytest.mark.parametrize("rules", ["exact", "taylor"])
@pytest.mark.parametrize("is_sure", [True, False])
def test_a_target_that_sees_nothing_gets_nothing(rules, is_sure):
    query, key = normal_moments(1, 3, 5), normal_moments(1, 4, 5)
    value = normal_moments(1, 4, 5)
    if is_sure:
        query, key = query.expected, key.expected
    mask = torch.ones(3, 4, dtype=torch.bool)
    mask[1] = False
    with moment_rules(rules):
        found = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    for part in found.pair():
        assert (part[:, 1] == 0).all()
        assert (part[:, [0, 2]] != 0).all()


def test_grouped_queries_share_keys():
    query, key, value = (
        normal_moments(1, 4, 3, 5),
        normal_moments(1, 2, 3, 5),
        normal_moments(1, 2, 3, 5),
    )
    result = F.scaled_dot_product_attention(query, key, value, enable_gqa=True)
    tensors = (query.expected, key.expected, value.expected)
    plain = F.scaled_dot_product_attention(*tensors, enable_gqa=True)
    torch.testing.assert_close(result.expected, plain)


def test_dropout_widens_the_variance():
    inputs = [normal_moments(1, 3, 5) for _ in range(3)]
    plain = F.scaled_dot_product_attention(*inputs)
    dropped = F.scaled_dot_product_attention(*inputs, dropout_p=0.3)
    assert torch.equal(dropped.expected, plain.expected)
    assert (dropped.variance > plain.variance).all()


def layer_options():
    return [
        {},
        {"bias": False},
        {"add_bias_kv": True},
        {"add_zero_attn": True},
        {"kdim": 4, "vdim": 6},
        {"batch_first": True},
        {"add_bias_kv": True, "add_zero_attn": True, "dropout": 0.1},
    ]


@pytest.mark.parametrize("options", layer_options())
@pytest.mark.parametrize("masked", [False, True])
def test_multi_head_attention_is_plain_at_zero_variance(options, masked):
    layer = nn.MultiheadAttention(8, 2, **options, dtype=torch.float64).eval()
    query = torch.randn(3, 2, 8, dtype=torch.float64)
    key = torch.randn(5, 2, options.get("kdim", 8), dtype=torch.float64)
    value = torch.randn(5, 2, options.get("vdim", 8), dtype=torch.float64)
    if options.get("batch_first"):
        query, key, value = (x.transpose(0, 1) for x in (query, key, value))
    masks = {}
    if masked:
        padding = torch.tensor([[False] * 4 + [True], [False] * 5])
        hidden = torch.rand(3, 5) > 0.8
        hidden[:, 0] = False
        masks = {"key_padding_mask": padding, "attn_mask": hidden}
    for average in (False, True):
        extra = {"average_attn_weights": average, **masks}
        plain, weights = layer(query, key, value, **extra)
        result, moments = layer(*(Moments(x, 0.0) for x in (query, key, value)), **extra)
        torch.testing.assert_close(result.expected, plain)
        torch.testing.assert_close(moments.expected, weights)
        assert (result.variance == 0).all()


def test_multi_head_attention_takes_an_input_without_a_batch():
    layer = nn.MultiheadAttention(8, 2).eval()
    x = torch.randn(3, 8)
    plain, weights = layer(x, x, x)
    result, moments = layer(*[Moments(x, 0.1)] * 3)
    assert result.shape == plain.shape
    torch.testing.assert_close(result.expected, plain)
    torch.testing.assert_close(moments.expected, weights)


def test_multi_head_attention_takes_a_mask_for_each_head():
    layer = nn.MultiheadAttention(8, 2).eval()
    x = torch.randn(3, 2, 8)
    mask = torch.rand(4, 3, 3) > 0.8
    mask[..., 0] = False
    plain, _ = layer(x, x, x, attn_mask=mask, need_weights=False)
    result, none = layer(*[Moments(x, 0.0)] * 3, attn_mask=mask, need_weights=False)
    torch.testing.assert_close(result.expected, plain)
    assert none is None


def test_multi_head_attention_with_random_weights_is_near_sampling():
    layer = nn.MultiheadAttention(8, 2, dtype=torch.float64).eval()
    x = torch.randn(4, 8, dtype=torch.float64)
    names = ("in_proj_weight", "in_proj_bias", "out_proj_weight", "out_proj_bias")
    means = (layer.in_proj_weight, layer.in_proj_bias, layer.out_proj.weight, layer.out_proj.bias)
    weights = [Moments(tensor.detach(), 1e-3) for tensor in means]

    def call(*tensors):
        w, b, out, out_bias = tensors
        return F.multi_head_attention_forward(
            x, x, x, 8, 2, w, b, None, None, False, 0.0, out, out_bias, training=False
        )[0]

    assert len(names) == len(weights)
    # Queries, keys and values of one input are taken as independent, tokens too; so they are
    # here, but for the keys and values that all queries share.
    assert_like_sampling(call, *weights, num_samples=4_000, mean_error=0.1, variance_error=0.6)


class RandomAttention(nn.MultiheadAttention):
    """Attention whose projection is read as moments, as a posterior would give it."""

    @property
    def in_proj_weight(self):
        return Moments(self._parameters["in_proj_weight"], 0.01)


def test_layer_with_random_weights_leaves_its_fused_path():
    layer = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    layer.__class__ = RandomAttention
    x = torch.randn(2, 3, 8)
    with torch.no_grad():
        result, weights = layer(x, x, x)
        plain, _ = nn.MultiheadAttention.forward(layer, x, x, x)
    assert result.variance.min() > 0
    assert weights.variance.min() > 0
    assert torch.equal(plain.expected, result.expected)


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_transformer_encoder_is_plain_at_zero_variance(norm_first, activation, nested):
    layer = nn.TransformerEncoderLayer(
        8, 2, 16, batch_first=True, norm_first=norm_first, activation=activation
    )
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=nested).eval()
    x = torch.randn(3, 5, 8)
    padding = torch.zeros(3, 5, dtype=torch.bool)
    padding[0, 3:] = True
    causal = nn.Transformer.generate_square_subsequent_mask(5)
    for options in ({}, {"src_key_padding_mask": padding}, {"mask": causal, "is_causal": True}):
        with torch.no_grad():
            plain = model(x, **options)
            result = model(Moments(x, 0.0), **options)
        # The fused path writes zeros where a word is padding.
        seen = ~padding if "src_key_padding_mask" in options else torch.ones_like(~padding)
        torch.testing.assert_close(result.expected[seen], plain[seen], atol=1e-5, rtol=1e-5)
        assert (result.variance == 0).all()


def test_transformer_decoder_is_plain_at_zero_variance():
    layer = nn.TransformerDecoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerDecoder(layer, 1).eval()
    target, memory = torch.randn(2, 3, 8), torch.randn(2, 5, 8)
    result = model(Moments(target, 0.0), Moments(memory, 0.0))
    torch.testing.assert_close(result.expected, model(target, memory))
    assert model(target, Moments(memory, 0.1)).variance.min() > 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_near(dtype):
    torch.manual_seed(0)
    exact = [Moments(torch.randn(2, 3, 9, 8), torch.rand(2, 3, 9, 8)) for _ in range(3)]
    half = [Moments(*(part.to(dtype) for part in each.pair())) for each in exact]
    rounded = [Moments(*(part.double() for part in each.pair())) for each in half]
    expected = F.scaled_dot_product_attention(*rounded)
    with torch.autocast("cpu", dtype):
        found = F.scaled_dot_product_attention(*half)
    assert found.expected.dtype == dtype
    scale = expected.expected.abs().mean()
    assert (found.expected.double() - expected.expected).abs().max() < 0.03 * scale
    torch.testing.assert_close(found.variance.double(), expected.variance, rtol=0.03, atol=0.0)


def noise_of_queries(num_sources, features, values_are_keys):
    """Return the variance that the noise of queries makes, by the rule and to first order."""
    generator = torch.Generator().manual_seed(0)
    q, k, v, spread = (
        torch.randn(8, 4, num_sources, features, generator=generator, dtype=torch.float64)
        for _ in range(4)
    )
    v, variance, scale = k if values_are_keys else v, 0.01 * spread.square(), features**-0.5
    ruled = F.scaled_dot_product_attention(Moments(q, variance), Moments(k), Moments(v)).variance
    p = torch.softmax(q @ k.mT * scale, -1)
    together = torch.einsum("bhij,bhje,bhjd->bhied", p, k, v)
    together = together - (p @ k)[..., None] * (p @ v)[..., None, :]
    return ruled, scale**2 * (variance[..., None] * together.square()).sum(-2)


def test_noise_of_queries_is_right_on_the_whole_where_values_do_not_follow_keys():
    ruled, true = noise_of_queries(64, 16, values_are_keys=False)
    assert 0.8 < (ruled.sum() / true.sum()).item() < 1.0
    ratios = torch.quantile((ruled / true).flatten()[:100_000], torch.tensor([0.05, 0.95]).double())
    assert 0.4 < ratios[0].item() < 0.7
    assert 1.5 < ratios[1].item() < 3.0


def test_noise_of_queries_is_too_narrow_where_values_are_keys():
    ruled, true = noise_of_queries(64, 16, values_are_keys=True)
    assert 0.25 < (ruled.sum() / true.sum()).item() < 0.45


def test_a_target_that_sees_nothing_is_certain_to_be_0_with_gradients():
    torch.manual_seed(0)
    parts = [normal_moments(1, 2, 3, 4) for _ in range(3)]
    inputs = [tensor.clone().requires_grad_() for part in parts for tensor in part.pair()]
    query, key, value = (Moments(*inputs[index : index + 2]) for index in (0, 2, 4))
    seen = torch.tensor([[True, False, True], [False, False, False], [True, True, True]])
    result = F.scaled_dot_product_attention(query, key, value, seen)
    plain = F.scaled_dot_product_attention(*(part.expected for part in parts), seen)
    torch.testing.assert_close(result.expected, plain)
    assert not result.expected[:, :, 1].any()
    assert not result.variance[:, :, 1].any()
    assert (result.variance[:, :, [0, 2]] > 0).all()
    (result.expected.sum() + result.variance.sum()).backward()
    assert all(each.grad.isfinite().all() for each in inputs)
