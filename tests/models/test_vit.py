import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bayesify as bf
from bayesify.conversion.posterior import posteriors
from bayesify.conversion.scope import forward_by
from bayesify.models import (
    VisionTransformer,
    build_model,
    models,
    resized_position,
    vit_mini,
    vit_tiny,
)
from bayesify.moments import Moments, propagate
from bayesify.recipes.recipe import options_of

# Published with 1,000 classes and images of 224x224: all weights, features of a token, heads.
PUBLISHED = {
    "vit_tiny": (5_717_416, 192, 3),
    "vit_small": (22_050_664, 384, 6),
    "vit_base": (86_567_656, 768, 12),
}
BLOCK_SHAPES = {
    "norm1.weight": (1,),
    "norm1.bias": (1,),
    "attn.qkv.weight": (3, 1),
    "attn.qkv.bias": (3,),
    "attn.proj.weight": (1, 1),
    "attn.proj.bias": (1,),
    "norm2.weight": (1,),
    "norm2.bias": (1,),
    "mlp.fc1.weight": (4, 1),
    "mlp.fc1.bias": (4,),
    "mlp.fc2.weight": (1, 4),
    "mlp.fc2.bias": (1,),
}
RANDOM_IN_BLOCK = ["attn.qkv.weight", "attn.proj.weight", "mlp.fc1.weight", "mlp.fc2.weight"]


def tiny(**options):
    """Return a model of 2 blocks for images of 2x8x8, with outputs that its input can move."""
    torch.manual_seed(0)
    chosen = {"num_classes": 4, "in_channels": 2, "image_size": 8, "width": 16, "depth": 2}
    model = vit_mini(**{**chosen, "num_heads": 2, **options})
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_normal_(module.weight, generator=generator)
        for table in (model.cls_token, model.pos_embed):
            table.normal_(std=0.5, generator=generator)
    return model


def some_images(number=5, channels=2, size=8):
    return torch.randn(number, channels, size, size, generator=torch.Generator().manual_seed(1))


def timm_shapes(width, depth=12, num_classes=1000, patch_size=16, num_patches=196):
    """Return the names and shapes of timm's state dict."""
    shapes = {
        "cls_token": (1, 1, width),
        "pos_embed": (1, 1 + num_patches, width),
        "patch_embed.proj.weight": (width, 3, patch_size, patch_size),
        "patch_embed.proj.bias": (width,),
        "norm.weight": (width,),
        "norm.bias": (width,),
        "head.weight": (num_classes, width),
        "head.bias": (num_classes,),
    }
    for index in range(depth):
        for name, multiples in BLOCK_SHAPES.items():
            shapes[f"blocks.{index}.{name}"] = tuple(width * multiple for multiple in multiples)
    return shapes


@pytest.mark.parametrize("name", PUBLISHED)
def test_vit_has_the_published_size_and_heads(name):
    num_weights, width, num_heads = PUBLISHED[name]
    with torch.device("meta"):
        model = models[name]()
    assert sum(parameter.numel() for parameter in model.parameters()) == num_weights
    assert len(model.blocks) == 12
    assert {block.attn.num_heads for block in model.blocks} == {num_heads}
    assert model.head.in_features == width


@pytest.mark.parametrize("name", PUBLISHED)
def test_vit_has_the_names_and_shapes_of_timm(name):
    with torch.device("meta"):
        model = models[name]()
    shapes = {key: tuple(tensor.shape) for key, tensor in model.state_dict().items()}
    assert shapes == timm_shapes(PUBLISHED[name][1])
    assert len(shapes) == 152


def test_vit_loads_a_state_dict_of_timm_strictly():
    shapes = timm_shapes(192, depth=1, num_classes=7)
    generator = torch.Generator().manual_seed(0)
    state = {key: torch.randn(shape, generator=generator) for key, shape in shapes.items()}
    model = vit_tiny(num_classes=7, depth=1)
    model.load_state_dict(state, strict=True)
    assert torch.equal(model.blocks[0].attn.qkv.weight, state["blocks.0.attn.qkv.weight"])


def test_vit_mini_takes_small_images_and_offers_what_data_can_tell():
    assert build_model("vit_mini")(torch.randn(2, 3, 32, 32)).shape == (2, 10)
    digits = build_model("vit_mini", in_channels=1, image_size=28, num_classes=5)
    assert digits(torch.randn(2, 1, 28, 28)).shape == (2, 5)
    for name in ("vit_mini", *PUBLISHED):
        assert {"num_classes", "in_channels", "image_size"} <= set(options_of(models[name]))


def from_transformers(theirs):
    """Return the weights of transformers' model under the names of timm."""
    state = {}
    for key, tensor in theirs.state_dict().items():
        for part, own in (
            ("vit.embeddings.patch_embeddings.projection", "patch_embed.proj"),
            ("vit.embeddings.cls_token", "cls_token"),
            ("vit.embeddings.position_embeddings", "pos_embed"),
            ("vit.layernorm", "norm"),
            ("vit.layers", "blocks"),
            ("layernorm_before", "norm1"),
            ("layernorm_after", "norm2"),
            ("attention.o_proj", "attn.proj"),
            ("classifier", "head"),
        ):
            key = key.replace(part, own)
        state[key] = tensor
    for index in range(theirs.config.num_hidden_layers):
        for kind in ("weight", "bias"):
            parts = [state.pop(f"blocks.{index}.attention.{p}_proj.{kind}") for p in "qkv"]
            state[f"blocks.{index}.attn.qkv.{kind}"] = torch.cat(parts)
    return state


def test_vit_gives_the_logits_of_transformers():
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=24,
        num_hidden_layers=3,
        num_attention_heads=3,
        intermediate_size=96,
        image_size=12,
        patch_size=4,
        num_channels=2,
        num_labels=5,
        layer_norm_eps=1e-6,
    )
    theirs = transformers.ViTForImageClassification(config).eval().double()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in theirs.parameters():
            # Large enough for attention to choose, and for norms and biases to matter.
            parameter.normal_(std=0.3, generator=generator)
    own = VisionTransformer(24, 3, 3, 5, 2, 12, 4).eval().double()
    own.load_state_dict(from_transformers(theirs), strict=True)
    images = some_images(4, 2, 12).double()
    with torch.inference_mode():
        torch.testing.assert_close(own(images), theirs(images).logits, rtol=1e-10, atol=1e-10)


def test_weights_start_from_a_truncated_normal():
    torch.manual_seed(0)
    model = vit_tiny(depth=2, num_classes=200)
    weights = [module.weight for module in model.modules() if isinstance(module, nn.Linear)]
    drawn = torch.cat([tensor.flatten() for tensor in (*weights, model.pos_embed)])
    # Five standard errors of the deviation; the cut at 100 deviations takes nothing away.
    assert drawn.std().item() == pytest.approx(0.02, rel=5 / math.sqrt(2 * drawn.numel()))
    assert model.cls_token.std().item() == pytest.approx(0.02, rel=5 / math.sqrt(2 * 192))
    biases = [m.bias for m in model.modules() if isinstance(m, (nn.Linear, nn.LayerNorm))]
    assert all((bias == 0).all() for bias in biases)
    assert {m.eps for m in model.modules() if isinstance(m, nn.LayerNorm)} == {1e-6}


def test_order_of_the_patches_counts_by_their_positions_alone():
    model, images = tiny().eval(), some_images()
    swapped = torch.cat([images[..., 4:], images[..., :4]], dim=-1)
    assert not torch.allclose(model(images), model(swapped), atol=1e-4)
    with torch.no_grad():
        model.pos_embed.zero_()
    torch.testing.assert_close(model(images), model(swapped), rtol=1e-5, atol=1e-5)


def test_dropout_keeps_the_names_and_follows_all_but_queries_keys_and_values():
    plain, dropped = tiny(), tiny(dropout=0.3)
    dropped.load_state_dict(plain.state_dict(), strict=True)
    probabilities = [module.p for module in dropped.modules() if isinstance(module, nn.Dropout)]
    assert probabilities == [0.3] * (1 + 3 * 2)
    assert not any(isinstance(module, nn.Dropout) for module in plain.modules())
    images = some_images()
    torch.testing.assert_close(dropped.eval()(images), plain.eval()(images))
    model = bf.convert(dropped, bf.MCDropout())
    prediction = bf.predict(model, images, num_samples=8, likelihood="classification")
    assert (prediction.mutual_information > 0).all()


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (
            "everything",
            {"cls_token", "pos_embed", "patch_embed.proj.weight", "head.weight"}
            | {f"blocks.{index}.{name}" for index in range(2) for name in RANDOM_IN_BLOCK},
        ),
        (
            "blocks.*.attn.*",
            {f"blocks.{index}.{name}" for index in range(2) for name in RANDOM_IN_BLOCK[:2]},
        ),
        ("last_layer", {"head.weight"}),
    ],
)
@pytest.mark.parametrize("how", ["sample", "local"])
def test_weights_become_random_and_agree_at_zero_scale(where, expected, how):
    plain, images = tiny(), some_images()
    method = bf.MeanField(where=where, how=how)
    assert {site.path for site in method.plan(plain).sites} == expected
    model = bf.convert(plain, method)
    assert not torch.equal(model(images), model(images))
    F.cross_entropy(model(images), torch.arange(5) % 4).backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in model.parameters())
    for site in posteriors(model):
        for scale in site.scale_parameters():
            scale.data.fill_(-torch.inf)
    torch.testing.assert_close(model(images), plain(images), rtol=1e-5, atol=1e-5)


def test_moments_of_certain_weights_are_the_plain_logits():
    plain, images = tiny().eval(), some_images()
    model = bf.convert(plain, bf.MeanField(initial_std=1e-7))
    found = bf.predict(model, images, by="moments", likelihood="classification")
    torch.testing.assert_close(found.probs, plain(images).softmax(1), rtol=1e-4, atol=1e-5)
    assert found.made_by == "one pass of means and variances"
    noisy = propagate(plain, Moments(images, 1e-4))
    assert noisy.mean.shape == (5, 4)
    assert (noisy.variance > 0).all()


def test_moments_agree_with_sampling():
    model, images = bf.convert(tiny(), bf.MeanField()), some_images(20)
    by_moments = bf.predict(model, images, by="moments", likelihood="classification")
    sampled = bf.predict(
        model, images, num_samples=500, by="sample", likelihood="classification", seed=0
    )
    # Tokens, residual branches and heads are taken as independent, which they are not: the
    # deviations are of the right size, and largest where sampling finds them largest.
    assert 0.85 < float((by_moments.std / sampled.std).median()) < 1.15
    assert (by_moments.probs - sampled.probs).abs().max() < 0.02
    together = torch.stack([by_moments.epistemic.flatten(), sampled.epistemic.flatten()])
    assert float(torch.corrcoef(together)[0, 1]) > 0.9
    nothing = bf.predict(model, images[:0], by="moments", likelihood="classification")
    assert len(nothing) == 0


def test_one_step_through_moments_moves_every_parameter():
    model, images = bf.convert(tiny(), bf.MomentPropagation()), some_images(8)
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    batches = DataLoader(TensorDataset(images, torch.arange(8) % 4), 8)
    bf.fit(model, batches, epochs=1, likelihood="classification", progress=False, accelerator="cpu")
    for name, parameter in model.named_parameters():
        assert parameter.isfinite().all(), name
        assert not torch.equal(parameter, before[name]), name


def test_training_through_moments_lowers_the_loss():
    model, images = bf.convert(tiny(), bf.MomentPropagation()), some_images(16)
    targets = (images[:, 0].mean((1, 2)) > 0).long()
    loader = DataLoader(TensorDataset(images, targets), 16)
    options = {"likelihood": "classification", "progress": False, "learning_rate": 3e-3}
    before = bf.predict(model, images, by="moments", likelihood="classification").probs
    bf.fit(model, loader, epochs=25, num_data=10_000, accelerator="cpu", **options)
    after = bf.predict(model, images, by="moments", likelihood="classification").probs
    assert F.nll_loss(after.log(), targets) < 0.5 * F.nll_loss(before.log(), targets)


def test_vit_is_one_graph_to_the_compiler():
    model, images = tiny(depth=1).eval(), some_images()
    bayesian = bf.convert(model, bf.MeanField())
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(images), model(images))
    torch.testing.assert_close(compiled(images[:3]), model(images[:3]))
    compiled = torch.compile(bayesian, backend="eager", fullgraph=True)
    found = []
    for call in (bayesian, compiled):
        torch.manual_seed(3)
        found.append(call(images))
    torch.testing.assert_close(*found)


# The compiler makes an instance of each autograd function it meets, of which torch warns.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_moments_of_a_vit_are_one_graph_to_the_compiler():
    model, images = bf.convert(tiny(depth=1).eval(), bf.MeanField()), some_images()

    def both(mean):
        return propagate(model, Moments(mean, torch.full_like(mean, 0.01))).pair()

    torch._dynamo.reset()
    with forward_by(model, "moments"):
        found, expected = torch.compile(both, backend="eager", fullgraph=True)(images), both(images)
    torch.testing.assert_close(found, expected)
    assert (expected[1] > 0).all()


def test_vit_runs_in_bfloat16():
    model, images = tiny().eval(), some_images()
    expected = model(images)
    logits = model.bfloat16()(images.bfloat16())
    assert logits.dtype == torch.bfloat16
    # Eight bits of mantissa, through some twenty roundings of features of about 1.
    torch.testing.assert_close(logits.float(), expected, rtol=0.05, atol=0.05)


def test_vit_stays_finite_for_huge_pixels_and_one_image():
    model = tiny().eval()
    logits = model(1e15 * some_images(1))
    assert logits.shape == (1, 4)
    assert logits.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("image_size", [8, 20])
def test_resized_position_keeps_the_class_token_and_whatever_lies_on_a_plane(image_size, dtype):
    small, model = tiny(image_size=16), tiny(image_size=image_size)
    side = image_size // 4
    state = {key: tensor.to(dtype) for key, tensor in small.state_dict().items()}
    state["pos_embed"][:, 1:] = 0.25
    kept = {key: tensor.clone() for key, tensor in state.items()}
    resized = resized_position(state, model)
    model.load_state_dict(resized, strict=True)
    assert resized["pos_embed"].shape == (1, 1 + side**2, 16)
    assert resized["pos_embed"].dtype == dtype
    assert torch.equal(resized["pos_embed"][:, 0], state["pos_embed"][:, 0])
    patches = resized["pos_embed"][:, 1:]
    torch.testing.assert_close(patches, torch.full_like(patches, 0.25), rtol=1e-6, atol=0.0)
    assert all(torch.equal(state[key], kept[key]) for key in kept)
    assert all(resized[key] is state[key] for key in state if key != "pos_embed")


def test_resized_position_keeps_rows_apart_from_columns():
    model, state = tiny(image_size=32), tiny(image_size=16).state_dict()
    rows = torch.arange(4.0).view(1, 4, 1, 1).expand(1, 4, 4, 16)
    state["pos_embed"][:, 1:] = rows.flatten(1, 2)
    grid = resized_position(state, model)["pos_embed"][:, 1:].unflatten(1, (8, 8))
    torch.testing.assert_close(grid, grid[:, :, :1].expand_as(grid))
    middles = grid[0, :, 0, 0]
    assert (middles.diff() > 0).all()
    # Away from the edges a cubic gives a straight line back.
    expected = (torch.arange(8.0) + 0.5) / 2 - 0.5
    torch.testing.assert_close(middles[3:5], expected[3:5])


def test_resized_position_on_a_coarser_grid_leaves_no_patch_out():
    model, state = tiny(), tiny(image_size=24).state_dict()
    # Without antialiasing each of the 2x2 patches would be one of the 6x6 alone.
    for index in range(36):
        state["pos_embed"][:, 1:] = 0.0
        state["pos_embed"][:, 1 + index] = 1.0
        assert (resized_position(state, model)["pos_embed"][:, 1:] != 0).any()


def test_resized_position_of_the_same_size_changes_nothing():
    model = tiny()
    state = model.state_dict()
    resized = resized_position(state, bf.convert(model, bf.MeanField()))
    assert list(resized) == list(state)
    assert all(resized[key] is state[key] for key in state)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({}, r"state must hold 'pos_embed', the position embeddings, got nothing"),
        ({"head.bias": torch.zeros(3)}, r"state must hold 'pos_embed'.* got head.bias"),
        ({"pos_embed": torch.zeros(1, 5, 12)}, r"side \* side, 16\).* got \(1, 5, 12\)"),
        ({"pos_embed": torch.zeros(1, 6, 16)}, r"square grid of patches, got \(1, 6, 16\)"),
        ({"pos_embed": torch.zeros(1, 1, 16)}, r"square grid of patches, got \(1, 1, 16\)"),
        ({"pos_embed": torch.zeros(5, 16)}, r"square grid of patches, got \(5, 16\)"),
    ],
)
def test_resized_position_refuses_what_is_no_grid(state, message):
    with pytest.raises(ValueError, match=message):
        resized_position(state, tiny())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"image_size": 30},
            "image_size must be a multiple of patch_size=4, got 30; choose another patch_size",
        ),
        ({"patch_size": 16}, "image_size must be a multiple of patch_size=16, got 8"),
        ({"patch_size": 0}, "patch_size must be a positive integer, got 0"),
        ({"num_heads": 3}, "num_heads must divide width=16, got 3"),
        ({"num_classes": 1.5}, "num_classes must be a positive integer, got 1.5"),
        ({"dropout": 1.0}, r"dropout must lie in \[0, 1\), got 1.0"),
    ],
)
def test_vit_refuses_wrong_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        tiny(**options)


@pytest.mark.parametrize("shape", [(2, 3, 8, 8), (2, 2, 12, 12), (2, 2, 8, 4), (2, 8, 8)])
def test_vit_refuses_images_it_was_not_built_for(shape):
    message = r"images must have shape \(batch, 2, 8, 8\), got .* build the model with their"
    with pytest.raises(ValueError, match=message):
        tiny()(torch.zeros(shape))
