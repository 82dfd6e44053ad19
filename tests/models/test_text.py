import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bayesify.conversion import convert
from bayesify.conversion.posterior import posteriors
from bayesify.methods import MCDropout, MeanField, VariationalDropout
from bayesify.models import TextTransformer
from bayesify.models.text import EMBEDDING_STD
from bayesify.prediction import predict

ATTENTION = [f"block.attention.{name}.weight" for name in ("query", "key", "value", "output")]
FEED_FORWARD = [f"block.feed_forward.{name}.weight" for name in ("expand", "contract")]
METHODS = {
    "mean_field": lambda where, how: MeanField(where=where, how=how),
    "additive": lambda where, how: VariationalDropout(noise="additive", where=where, how=how),
    "multiplicative": lambda where, how: VariationalDropout(
        noise="multiplicative", where=where, how=how
    ),
}
parts = pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("block.attention", ATTENTION),
        ("block.attention.*", ATTENTION),
        ("block.feed_forward", FEED_FORWARD),
        ("block.feed_forward.*", FEED_FORWARD),
    ],
)


def small(**options):
    torch.manual_seed(0)
    chosen = {"vocabulary_size": 30, "width": 8, "num_heads": 2, "hidden": 12, "length": 10}
    return TextTransformer(**{**chosen, "dropout": 0.0, **options})


def some_texts(num_texts=4, num_words=7):
    """Return texts of one word, two words and so on, filled up with padding."""
    generator = torch.Generator().manual_seed(0)
    texts = torch.randint(1, 30, (num_texts, num_words), generator=generator)
    return texts * (torch.arange(num_words) <= torch.arange(num_texts)[:, None])


@parts
@pytest.mark.parametrize("how", ["sample", "local"])
@pytest.mark.parametrize("method", METHODS)
def test_part_of_the_block_becomes_random_and_agrees_at_zero_scale(where, expected, method, how):
    plain = small()
    model = convert(plain, METHODS[method](where, how))
    record = [site.path for site in METHODS[method](where, how).plan(plain).sites]
    assert record == expected
    texts = some_texts()
    assert not torch.equal(model(texts), model(texts))
    for site in posteriors(model):
        assert site.how == how
        for scale in site.scale_parameters():
            scale.data.fill_(-torch.inf)
    for training in (True, False):
        model.train(training), plain.train(training)
        torch.testing.assert_close(model(texts), plain(texts), rtol=1e-6, atol=1e-6)
    with torch.no_grad():
        torch.testing.assert_close(model(texts), plain(texts), rtol=1e-6, atol=1e-6)


@parts
@pytest.mark.parametrize("method", METHODS)
def test_gradient_reaches_every_mean_and_scale(where, expected, method):
    model = convert(small(), METHODS[method](where, "local"))
    F.cross_entropy(model(some_texts(10, 10)), torch.arange(10) % 2).backward()
    without = [
        name
        for name, parameter in model.named_parameters()
        if parameter.grad is None or not parameter.grad.abs().sum() > 0
    ]
    assert without == []
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_everything_but_norms_biases_and_padding_can_be_random():
    model = convert(small(), MeanField())
    random = {site.path: site for site in MeanField().plan(small()).sites}
    assert set(random) == {
        "words.weight",
        "positions.weight",
        *ATTENTION,
        *FEED_FORWARD,
        "head.weight",
    }
    assert random["words.weight"].fixed_row == 0
    texts = some_texts()
    assert not torch.equal(model(texts), model(texts))
    # Nothing but the last layer's bias is left of a text without words.
    assert torch.equal(model(torch.zeros(1, 4, dtype=torch.int64))[0], model.head.bias)


@pytest.mark.parametrize("num_more", [1, 3])
def test_more_padding_does_not_change_the_logits(num_more):
    model, texts = small().eval(), some_texts()
    longer = F.pad(texts, (0, num_more))
    torch.testing.assert_close(model(longer), model(texts), rtol=1e-5, atol=1e-6)


def test_features_of_padding_do_not_change_the_logits():
    model, texts = small().eval(), some_texts()
    before = model(texts)
    with torch.no_grad():
        model.words.weight[0] = 100.0
    torch.testing.assert_close(model(texts), before, rtol=1e-5, atol=1e-6)


def test_text_of_padding_gives_finite_logits_and_gradients():
    model = small()
    texts = torch.cat([some_texts(), torch.zeros(2, 7, dtype=torch.int64)])
    seen = []
    model.block.attention.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[1]))
    logits = model(texts)
    # Not every kernel survives a softmax over nothing, so attention must never be asked for one.
    assert seen[0].any(1).all()
    assert torch.equal(logits[-1], model.head.bias)
    logits.square().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    assert model(torch.zeros(3, 0, dtype=torch.int64)).isfinite().all()


def test_embeddings_start_small_and_padding_at_zero():
    model = TextTransformer(vocabulary_size=5_000)
    assert (model.words.weight[0] == 0).all()
    # Five standard errors of the deviation of 160,000 draws.
    deviation = model.words.weight[1:].std().item()
    assert deviation == pytest.approx(EMBEDDING_STD, rel=5 / (2 * 160_000) ** 0.5)
    assert model.words.weight.requires_grad


def test_order_of_the_words_changes_the_logits():
    model = small().eval()
    with torch.no_grad():
        model.positions.weight.normal_()
    texts = torch.tensor([[3, 4, 5, 6]])
    assert not torch.allclose(model(texts), model(texts.flip(1)), atol=1e-4)
    with torch.no_grad():
        model.positions.weight.zero_()
    torch.testing.assert_close(model(texts), model(texts.flip(1)), rtol=1e-5, atol=1e-6)


def test_block_equals_the_encoder_layer_of_torch():
    block, texts = small().block.eval(), some_texts()
    layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True).eval()
    attention = block.attention
    merged = (attention.query, attention.key, attention.value)
    no_bias = torch.zeros(8)
    with torch.no_grad():
        for norm in (block.attention_norm, block.feed_forward_norm):
            norm.weight.normal_(), norm.bias.normal_()
        layer.self_attn.in_proj_weight.copy_(torch.cat([linear.weight for linear in merged]))
        biases = (attention.query.bias, no_bias, attention.value.bias)
        layer.self_attn.in_proj_bias.copy_(torch.cat(biases))
        for own, theirs in (
            (attention.output, layer.self_attn.out_proj),
            (block.feed_forward.expand, layer.linear1),
            (block.feed_forward.contract, layer.linear2),
            (block.attention_norm, layer.norm1),
            (block.feed_forward_norm, layer.norm2),
        ):
            theirs.load_state_dict(own.state_dict())
    features, is_word = torch.randn(4, 7, 8), texts != 0
    expected = layer(features, src_key_padding_mask=~is_word)
    torch.testing.assert_close(
        block(features, is_word)[is_word], expected[is_word], rtol=1e-5, atol=1e-5
    )


def test_text_transformer_has_the_stated_size():
    model = TextTransformer(vocabulary_size=100, width=32, hidden=64, length=120)
    # Embeddings, four products, the feed-forward network, two norms and the head.
    expected = (100 + 120) * 32 + (4 * 32 * 32 + 3 * 32) + (32 * 64 + 64 + 64 * 32 + 32)
    expected += 2 * 64 + 32 * 2 + 2
    assert sum(parameter.numel() for parameter in model.parameters()) == expected


def test_dropout_keeps_the_names_of_the_weights_and_can_be_sampled():
    plain, dropped = small(), small(dropout=0.3)
    dropped.load_state_dict(plain.state_dict(), strict=True)
    texts = some_texts()
    torch.testing.assert_close(dropped.eval()(texts), plain.eval()(texts))
    assert sum(isinstance(module, nn.Dropout) for module in dropped.modules()) == 3
    assert not any(isinstance(module, nn.Dropout) for module in plain.modules())
    model = convert(dropped, MCDropout())
    prediction = predict(model, texts, num_samples=8, likelihood="classification")
    assert (prediction.mutual_information > 0).all()


def test_text_transformer_learns_which_word_decides():
    model = small()
    texts = torch.randint(4, 30, (64, 10))
    targets = torch.arange(64) % 2
    texts[torch.arange(64), torch.randint(0, 10, (64,))] = 2 + targets
    optimiser = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(60):
        loss = F.cross_entropy(model(texts), targets)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert (model(texts).argmax(1) == targets).all()
    assert loss < 0.2


def test_text_transformer_runs_in_bfloat16():
    model, texts = small().to(torch.bfloat16), some_texts()
    assert model(texts).dtype == torch.bfloat16
    # Eight bits of mantissa, through some ten roundings.
    torch.testing.assert_close(model(texts).float(), small()(texts), rtol=0.05, atol=0.05)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (torch.rand(2, 5), r"torch.float32 of shape \(2, 5\); encode them"),
        (torch.ones(2, 11, dtype=torch.int64), r"\(batch, up to 10\), got .* \(2, 11\)"),
        (torch.ones(5, dtype=torch.int64), r"got torch.int64 of shape \(5,\)"),
    ],
)
def test_text_transformer_refuses_what_is_no_text(texts, message):
    with pytest.raises(ValueError, match=message):
        small()(texts)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vocabulary_size": 0}, "vocabulary_size must be a positive integer, got 0"),
        ({"hidden": 1.5}, "hidden must be a positive integer, got 1.5"),
        ({"num_heads": 3}, "num_heads must divide width=8, got 3"),
        ({"dropout": 1.0}, r"dropout must lie in \[0, 1\), got 1.0"),
    ],
)
def test_text_transformer_refuses_wrong_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        small(**options)
