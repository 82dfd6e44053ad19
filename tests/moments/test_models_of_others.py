"""Networks that other people wrote, and all of the project's own, read by moments as they are."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bayesify as bf
from bayesify.models import models

NUM_SAMPLES = 500
SMALL_IMAGE, IMAGE = (3, 8, 8), (3, 32, 32)

# Options that make each of the project's models small, and the shape of an example.
OWN: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "mlp": ({"in_features": 6, "hidden": (8, 8)}, (6,)),
    "lenet_300_100": ({"in_features": 6}, (6,)),
    "lenet_5": ({"image_size": 16}, (1, 16, 16)),
    "alexnet": ({"width": 4}, IMAGE),
    "unet": ({"width": 2, "depth": 2}, SMALL_IMAGE),
    "volume_encoder": ({"width": 2, "pools": (2, 2)}, (1, 6, 6, 6)),
    "text_transformer": ({"vocabulary_size": 50, "width": 8, "length": 7}, (7,)),
    "cifar_resnet": ({"depth": 8, "width": 4}, SMALL_IMAGE),
    **{f"resnet_{depth}": ({"width": 2}, SMALL_IMAGE) for depth in (18, 20, 56)},
    **{f"preact_resnet_{depth}": ({"width": 2}, SMALL_IMAGE) for depth in (18, 34, 50, 101, 152)},
    **{f"densenet_{depth}": ({"growth_rate": 2}, SMALL_IMAGE) for depth in (121, 161, 169, 201)},
    **{f"vgg_{depth}": ({"width": 2}, IMAGE) for depth in (11, 13, 16, 19)},
    "vit_mini": ({"image_size": 16, "width": 16, "depth": 2}, (3, 16, 16)),
    **{
        f"vit_{size}": ({"image_size": 32, "depth": 1, "num_classes": 4}, IMAGE)
        for size in ("tiny", "small", "base")
    },
}
# Deeper or wider than another that has their code: 500 samples of them would take minutes.
TWINS = {
    *("preact_resnet_101", "preact_resnet_152", "densenet_161", "densenet_169", "densenet_201"),
    *("vit_tiny", "vit_small", "vit_base"),
}


def own(name: str) -> tuple[nn.Module, Tensor]:
    options, shape = OWN[name]
    network = bf.build_model(name, **options)
    is_text = name == "text_transformer"
    return network, torch.randint(1, 50, (3, *shape)) if is_text else torch.randn(3, *shape)


class Mlp(nn.Module):
    """Two layers, named and called as timm's are."""

    def __init__(self, size: int, hidden: int) -> None:
        super().__init__()
        self.fc1, self.act, self.drop1 = nn.Linear(size, hidden), nn.GELU(), nn.Dropout(0.0)
        self.norm = nn.Identity()
        self.fc2, self.drop2 = nn.Linear(hidden, size), nn.Dropout(0.0)

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop1(self.act(self.fc1(x)))
        return self.drop2(self.fc2(self.norm(x)))


class MixerBlock(nn.Module):
    def __init__(self, width: int, num_tokens: int) -> None:
        super().__init__()
        self.norm1, self.mlp_tokens = nn.LayerNorm(width), Mlp(num_tokens, 2 * num_tokens)
        self.norm2, self.mlp_channels = nn.LayerNorm(width), Mlp(width, 4 * width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.mlp_tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.mlp_channels(self.norm2(x))


class Mixer(nn.Module):
    """An MLP-Mixer whose forward does what timm's does.

    Reference: Tolstikhin et al. (2021), "MLP-Mixer: an all-MLP architecture for vision".
    """

    def __init__(self, width: int = 16, depth: int = 2) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 4, 4)
        self.blocks = nn.Sequential(*(MixerBlock(width, 16) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 5)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.stem(images).flatten(2).transpose(1, 2)
        return self.head(self.norm(self.blocks(tokens)).mean(dim=1))


class Encoder(nn.Module):
    """Torch's own encoder, between an embedding and an average over the words."""

    def __init__(self, *, is_norm_first: bool) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            16, 4, 32, 0.0, "gelu", batch_first=True, norm_first=is_norm_first
        )
        self.words = nn.Embedding(30, 16)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.encoder(self.words(tokens), src_key_padding_mask=tokens == 0)
        return self.head(hidden.mean(1))


def _transformers() -> Any:
    return pytest.importorskip("transformers")


def _resnet() -> nn.Module:
    library = _transformers()
    sizes = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]}
    config = library.ResNetConfig(**sizes, layer_type="basic", num_labels=5)
    return library.ResNetForImageClassification(config)


def _convnext() -> nn.Module:
    library = _transformers()
    sizes = {"num_stages": 2, "hidden_sizes": [8, 16], "depths": [1, 1], "patch_size": 2}
    # The factors of the branches start at 1e-6, where a branch and its noise do not count.
    config = library.ConvNextConfig(**sizes, layer_scale_init_value=0.5, num_labels=5)
    return library.ConvNextForImageClassification(config)


def _vit() -> nn.Module:
    library = _transformers()
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {"intermediate_size": 32, "image_size": 16, "patch_size": 4}
    return library.ViTForImageClassification(library.ViTConfig(**sizes, num_labels=5))


def _bert() -> nn.Module:
    library = _transformers()
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {"intermediate_size": 32, "vocab_size": 30, "max_position_embeddings": 12}
    return library.BertForSequenceClassification(library.BertConfig(**sizes, num_labels=5))


def _timm_mixer() -> nn.Module:
    timm = pytest.importorskip("timm")
    sizes = {"embed_dim": 16, "num_blocks": 2, "img_size": 16, "patch_size": 4}
    return timm.models.MlpMixer(**sizes, num_classes=5)


def _images() -> Tensor:
    return torch.randn(6, 3, 16, 16)


def _words() -> Tensor:
    tokens = torch.randint(1, 30, (6, 10))
    tokens[:3, 7:] = 0  # padding
    return tokens


OTHERS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "encoder": (lambda: Encoder(is_norm_first=False), _words),
    "encoder_norm_first": (lambda: Encoder(is_norm_first=True), _words),
    "resnet": (_resnet, _images),
    "convnext": (_convnext, _images),
    "vit": (_vit, _images),
    "bert": (_bert, _words),
    "mixer": (Mixer, _images),
    "mixer_of_timm": (_timm_mixer, _images),
}


def logits(model: nn.Module, inputs: Tensor, **options: Any) -> Any:
    """Return the outputs read as numbers: their mean, and their variance over the weights."""
    return bf.predict(model, inputs, likelihood=bf.GaussianRegression(1.0), **options)


def assert_plain_at_zero_std(network: nn.Module, inputs: Tensor) -> None:
    network.eval()
    with torch.no_grad():
        output = network(inputs)
    plain = getattr(output, "logits", output)
    method = bf.MeanField(initial_std=1e-8, where="everything", biases=True)
    found = logits(bf.convert(network, method), inputs, by="moments")
    # Rules write some functions in other words than torch: float32, over some ten layers.
    tolerance = 1e-4 * float(plain.abs().max())
    torch.testing.assert_close(found.mean, plain, rtol=1e-4, atol=tolerance)
    assert float(found.epistemic.max()) < 1e-6 * (1.0 + float(plain.abs().max())) ** 2
    assert found.made_by == "one pass of means and variances"


def test_every_model_of_the_project_is_here() -> None:
    assert set(OWN) == set(models)


@pytest.mark.parametrize("name", OWN)
def test_own_models_are_plain_at_zero_std(name: str) -> None:
    torch.manual_seed(0)
    assert_plain_at_zero_std(*own(name))


@pytest.mark.parametrize("name", OTHERS)
def test_models_of_others_are_plain_at_zero_std(name: str) -> None:
    torch.manual_seed(0)
    build, make = OTHERS[name]
    assert_plain_at_zero_std(build(), make())


def assert_near_sampling(network: nn.Module, inputs: Tensor) -> None:
    network.eval()
    model = bf.convert(network, bf.MeanField(where="everything", biases=True))
    found = logits(model, inputs, by="moments")
    sampled = logits(model, inputs, by="sample", num_samples=NUM_SAMPLES, seed=0)
    ratio = (found.epistemic / sampled.epistemic).sqrt()
    # 500 samples tell a standard deviation to 3 %. The rest is what no rule sees: that tokens and
    # positions share the noise of a weight, which narrows most networks and widens some.
    assert 0.6 < float(ratio.median()) < 1.4
    offset = (found.mean - sampled.mean).abs() / sampled.epistemic.sqrt()
    assert float(offset.median()) < 0.25


@pytest.mark.parametrize("name", [name for name in OWN if name not in TWINS])
def test_own_models_are_near_sampling(name: str) -> None:
    torch.manual_seed(0)
    assert_near_sampling(*own(name))


@pytest.mark.parametrize("name", OTHERS)
def test_models_of_others_are_near_sampling(name: str) -> None:
    torch.manual_seed(0)
    build, make = OTHERS[name]
    assert_near_sampling(build(), make())


class Pair(nn.Module):
    """A network read by moments, with two tensors at its end."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        output: Any = self.network(images)
        return output.pair()


@pytest.mark.slow
@pytest.mark.parametrize("scale", ["weight", "out"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_compiled_step_of_a_vision_transformer_has_the_eager_gradients(scale: Any) -> None:
    torch.manual_seed(0)
    method = bf.MomentPropagation(scale=scale)
    network = bf.build_model("vit_mini", image_size=8, width=8, depth=1, num_heads=2)
    model = bf.convert(network, method)
    images, gradients = torch.randn(3, 3, 8, 8), []
    torch._dynamo.reset()
    whole = torch.compile(Pair(model), fullgraph=True, backend="aot_eager")
    for call in (Pair(model), whole):
        with torch.autocast("cpu", torch.bfloat16), method.sampling(model, "moments"):
            mean, variance = call(images)
        loss = mean.float().square().sum() + variance.float().sum()
        gradients.append(torch.autograd.grad(loss, list(model.parameters())))
    torch._dynamo.reset()
    for eager, compiled, parameter in zip(*gradients, model.parameters(), strict=True):
        assert compiled.shape == parameter.shape
        # Compiled code rounds to bfloat16 in other places.
        rounding = 2 * torch.finfo(torch.bfloat16).eps
        tolerance = rounding * float(eager.abs().max())
        torch.testing.assert_close(compiled, eager, rtol=rounding, atol=tolerance)
