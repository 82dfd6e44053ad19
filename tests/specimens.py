"""Small models that break naive converters, each with inputs to call it on.

Every specimen is deterministic (dropout 0), in training as in evaluation, so that its outputs can
be compared with those of its Bayesian copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Specimen:
    """How to build a model, and how to call it."""

    name: str
    build: Callable[[], nn.Module]
    args: Callable[[], tuple[Any, ...]] = tuple
    kwargs: Callable[[], dict[str, Any]] = field(default=dict)

    def call(self, model: nn.Module) -> list[Tensor]:
        """Return every floating-point output of a call on inputs that are always the same."""
        generator = torch.random.get_rng_state()
        torch.manual_seed(12)
        args, kwargs = self.args(), self.kwargs()
        torch.random.set_rng_state(generator)
        return list(floating_tensors(model(*args, **kwargs)))

    def __str__(self) -> str:
        return self.name


def floating_tensors(output: Any) -> Iterator[Tensor]:
    """Yield the floating-point tensors of a nested output."""
    if isinstance(output, Tensor):
        if output.is_floating_point():
            yield output
    elif isinstance(output, Mapping):
        yield from floating_tensors(tuple(output.values()))
    elif isinstance(output, (tuple, list)):
        for entry in output:
            yield from floating_tensors(entry)


class Dense(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(4, 5)
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.hidden(x)))


class ResidualCNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(2, 4, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.inner = nn.Conv2d(4, 4, 3, padding=1, groups=2)
        self.inner_norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.stem(x)))
        x = F.relu(x + self.inner_norm(self.inner(x)))
        return self.head(x.mean((2, 3)))


class TiedLanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 5)
        self.mix = nn.Linear(5, 5)
        self.head = nn.Linear(5, 7, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(torch.tanh(self.mix(self.embed(tokens))))


class HeadBeforeTable(nn.Module):
    """A tie whose first owner is not the embedding, which alone knows the padding row."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(5, 7, bias=False)
        self.embed = nn.Embedding(7, 5, padding_idx=2)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embed(tokens))


class SharedModule(nn.Module):
    """One module under two names."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = self.first

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)))


class CalledTwice(nn.Module):
    """One module, one name, two calls."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(torch.tanh(self.layer(x)))


class SharedBias(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.second.bias = self.first.bias

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)))


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        state = x.new_zeros(x.shape[0], 4)
        for step in x.unbind(1):
            state = self.cell(step, state)
        return state


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x)[0]


class OtherDimensions(nn.Module):
    """Attention with separate projections for keys and values."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, kdim=6, vdim=4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x[..., :6], x[..., :4])[0]


class Upsampler(nn.Module):
    def __init__(self, layer: nn.Module, size: list[int]):
        super().__init__()
        self.layer = layer
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x, output_size=self.size)


class OwnParameter(nn.Module):
    def __init__(self):
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(4, 3))
        self.gain = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.kernel) * self.gain


class Lists(nn.Module):
    def __init__(self):
        super().__init__()
        self.steps = nn.ParameterList([nn.Parameter(torch.randn(4, 4)) for _ in range(2)])
        self.named = nn.ParameterDict({"out": nn.Parameter(torch.randn(4, 3))})

    def forward(self, x: Tensor) -> Tensor:
        for step in self.steps:
            x = torch.tanh(x @ step)
        return x @ self.named["out"]


class KeywordOnly(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, *, features: Tensor, gain: float = 1.0) -> dict[str, Tensor]:
        return {"logits": self.layer(features) * gain}


class Hooked(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("shift", torch.arange(4.0))
        self.layer.register_forward_hook(add_one)
        self.register_forward_pre_hook(halve_input)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.shift


def add_one(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    return output + 1.0


def halve_input(module: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
    return (args[0] / 2,)


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.bilinear = nn.Bilinear(3, 4, 2)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return self.bilinear(left, right)


def _bert() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=17,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=12,
        max_position_embeddings=8,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return transformers.BertModel(config)


def _gpt2() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=17,
        n_positions=8,
        n_embd=8,
        n_layer=1,
        n_head=2,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
    )
    return transformers.GPT2LMHeadModel(config)


def _vit() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=12,
        image_size=8,
        patch_size=4,
        num_labels=3,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return transformers.ViTForImageClassification(config)


def _encoder_layer() -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True)


def _circular() -> nn.Module:
    options: dict[str, Any] = {"padding": 1, "dilation": 2, "groups": 2, "padding_mode": "circular"}
    return nn.Conv3d(2, 4, 2, **options)


def _nested() -> nn.Module:
    return nn.Sequential(nn.Sequential(nn.Linear(4, 5), nn.ReLU()), nn.Sequential(nn.Linear(5, 3)))


def _lstm() -> nn.Module:
    return nn.LSTM(3, 4, num_layers=2, bidirectional=True, batch_first=True)


def _noise(*shape: int) -> Callable[[], tuple[Tensor]]:
    return lambda: (torch.randn(*shape),)


def _tokens(num_tokens: int) -> Callable[[], tuple[Tensor]]:
    return lambda: (torch.randint(num_tokens, (3, 4)),)


SPECIMENS = (
    Specimen("dense", Dense, _noise(6, 4)),
    Specimen("nested_sequential", _nested, _noise(6, 4)),
    Specimen("bare_linear", lambda: nn.Linear(4, 3), _noise(6, 4)),
    Specimen("residual_cnn", ResidualCNN, _noise(4, 2, 6, 6)),
    Specimen("tied_language_model", TiedLanguageModel, _tokens(7)),
    Specimen("head_before_table", HeadBeforeTable, _tokens(7)),
    Specimen("shared_module", SharedModule, _noise(6, 4)),
    Specimen("called_twice", CalledTwice, _noise(6, 4)),
    Specimen("shared_bias", SharedBias, _noise(6, 4)),
    Specimen("lstm", _lstm, _noise(2, 5, 3)),
    Specimen("gru", lambda: nn.GRU(3, 4), _noise(5, 2, 3)),
    Specimen("gru_cell", Cell, _noise(2, 5, 3)),
    Specimen("attention", Attention, _noise(2, 3, 8)),
    Specimen("attention_other_dimensions", OtherDimensions, _noise(2, 3, 8)),
    Specimen("encoder_layer", _encoder_layer, _noise(2, 3, 8)),
    Specimen(
        "transposed_1d",
        lambda: Upsampler(nn.ConvTranspose1d(2, 3, 3, stride=2), [12]),
        _noise(2, 2, 5),
    ),
    Specimen(
        "transposed_2d",
        lambda: Upsampler(nn.ConvTranspose2d(2, 4, 3, stride=2, groups=2), [8, 8]),
        _noise(2, 2, 3, 3),
    ),
    Specimen(
        "transposed_3d",
        lambda: Upsampler(nn.ConvTranspose3d(2, 3, 2, stride=2, dilation=2), [5, 6, 5]),
        _noise(1, 2, 2, 2, 2),
    ),
    Specimen("circular_conv3d", _circular, _noise(2, 2, 4, 4, 4)),
    Specimen("bilinear", TwoInputs, lambda: (torch.randn(5, 3), torch.randn(5, 4))),
    Specimen("own_parameter", OwnParameter, _noise(6, 4)),
    Specimen("parameter_list", Lists, _noise(6, 4)),
    Specimen(
        "keyword_only", KeywordOnly, kwargs=lambda: {"features": torch.randn(6, 4), "gain": 2.0}
    ),
    Specimen("hooked", Hooked, _noise(6, 4)),
    Specimen("padded_embedding", lambda: nn.Embedding(7, 3, padding_idx=1), _tokens(7)),
    Specimen("embedding_bag", lambda: nn.EmbeddingBag(7, 3, padding_idx=1), _tokens(7)),
    Specimen(
        "bert",
        _bert,
        kwargs=lambda: {
            "input_ids": torch.randint(1, 17, (2, 5)),
            "attention_mask": torch.ones(2, 5, dtype=torch.long),
        },
    ),
    Specimen("gpt2", _gpt2, kwargs=lambda: {"input_ids": torch.randint(17, (2, 5))}),
    Specimen("vit", _vit, kwargs=lambda: {"pixel_values": torch.randn(2, 3, 8, 8)}),
)
