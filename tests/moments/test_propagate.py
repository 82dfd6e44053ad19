"""Whole models, unmodified: plain at zero variance, near sampling otherwise."""

from collections import OrderedDict
from itertools import pairwise
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bayesify as bf
from bayesify.moments import Moments, moment_rules, propagate
from moments.sampling import normal_moments

IMAGE = (2, 3, 32, 32)
# Small options and an input's shape for each of the project's models.
SMALL: dict[str, tuple[dict, tuple[int, ...]]] = {
    "mlp": ({"in_features": 6, "hidden": (8, 8)}, (2, 6)),
    "lenet_300_100": ({"in_features": 6}, (2, 6)),
    "lenet_5": ({"image_size": 16}, (2, 1, 16, 16)),
    "alexnet": ({"width": 4}, IMAGE),
    "unet": ({"width": 2, "depth": 2}, (2, 3, 9, 10)),
    "volume_encoder": ({"width": 2, "pools": (2, 2)}, (2, 1, 6, 6, 6)),
    "text_transformer": ({"vocabulary_size": 50, "width": 8}, (2, 7)),
    "cifar_resnet": ({"depth": 8, "width": 4}, (2, 3, 8, 8)),
    "resnet_18": ({"width": 2}, (2, 3, 8, 8)),
    "resnet_20": ({"width": 2}, (2, 3, 8, 8)),
    "preact_resnet_18": ({"width": 2}, (2, 3, 8, 8)),
    "preact_resnet_50": ({"width": 2}, (2, 3, 8, 8)),
    "densenet_121": ({"growth_rate": 2}, (2, 3, 8, 8)),
    "vit_mini": ({"image_size": 16, "width": 16, "depth": 2}, (1, 3, 16, 16)),
    "vgg_11": ({"width": 2}, IMAGE),
    "vgg_13": ({"width": 2, "batch_norm": False}, IMAGE),
}


def example(name: str) -> tuple[nn.Module, Tensor]:
    options, shape = SMALL[name]
    model = bf.build_model(name, **options).eval()
    if name == "text_transformer":
        return model, torch.randint(0, 50, shape)
    return model, torch.randn(*shape)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("rules", ["exact", "taylor"])
def test_certain_input_gives_the_plain_output(name, rules):
    model, x = example(name)
    with torch.no_grad():
        result = propagate(model, x, rules=rules)
        plain = model(x)
    assert torch.equal(result.expected, plain)
    assert (result.variance == 0).all()


@pytest.mark.parametrize("name", [name for name in SMALL if name != "text_transformer"])
@pytest.mark.parametrize("rules", ["exact", "taylor"])
def test_zero_variance_gives_the_plain_output_and_noise_a_variance(name, rules):
    model, x = example(name)
    with torch.no_grad():
        result = propagate(model, Moments(x, 0.0), rules=rules)
        noisy = propagate(model, Moments(x, 0.1), rules=rules)
        plain = model(x)
    scale = float(plain.abs().max())
    torch.testing.assert_close(result.expected, plain, atol=1e-4 * scale, rtol=1e-4)
    assert (result.variance == 0).all()
    assert noisy.variance.isfinite().all()
    assert (noisy.variance >= 0).all()
    assert noisy.variance.max() > 0


@pytest.mark.parametrize("name", ["mlp", "lenet_5", "vgg_11", "cifar_resnet"])
def test_input_noise_is_comparable_to_sampling(name):
    # One network may be off by a factor of two, as no rule sees correlations; on average the
    # variance is neither too wide nor too narrow.
    ratios, offsets = [], []
    for seed in range(4):
        torch.manual_seed(seed)
        model, x = example(name)
        x = x[:1]
        with torch.no_grad():
            result = propagate(model, Moments(x, 0.05))
            drawn = model(x + 0.05**0.5 * torch.randn(500, *x.shape[1:]))
        ratios.append((result.variance[0] / drawn.var(0)).log().mean())
        offsets.append(((result.expected[0] - drawn.mean(0)).abs() / drawn.std(0)).mean())
    assert 0.67 < float(torch.stack(ratios).mean().exp()) < 1.5
    assert torch.stack(offsets).mean() < 0.2


class ResidualBlock(nn.Module):
    """A block as people write it, with in-place activations and an in-place sum."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += identity
        return self.relu(out)


def test_residual_block_runs_unmodified():
    model = nn.Sequential(ResidualBlock(3), ResidualBlock(3)).eval()
    x = torch.randn(2, 3, 6, 6)
    with torch.no_grad():
        torch.testing.assert_close(propagate(model, Moments(x, 0.0)).expected, model(x))
        assert propagate(model, Moments(x, 0.1)).variance.min() > 0


class HandWritten(nn.Module):
    """Attention with operators, slices and reductions instead of library calls."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.qkv = nn.Linear(8, 24)
        self.out = nn.Linear(8, 8)
        self.token = nn.Parameter(torch.randn(1, 1, 8))
        self.place = nn.Parameter(torch.randn(1, 6, 8))

    def forward(self, x: Tensor) -> Tensor:
        batch, _, width = x.shape
        x = torch.cat([self.token.expand(batch, -1, -1), x], dim=1) + self.place
        qkv = self.qkv(self.norm(x)).reshape(batch, -1, 3, 2, 4).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        weights = (q @ k.transpose(-2, -1) * 4**-0.5).softmax(dim=-1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(batch, -1, width))
        x = x * torch.sigmoid(x)
        return x[:, 0] + x[:, 1:].mean(dim=1)


def test_hand_written_attention_runs_unmodified():
    model, x = HandWritten().eval(), torch.randn(2, 5, 8)
    with torch.no_grad():
        torch.testing.assert_close(propagate(model, Moments(x, 0.0)).expected, model(x))
        assert propagate(model, Moments(x, 0.1)).variance.min() > 0


@pytest.mark.parametrize("rules", ["exact", "taylor"])
def test_variance_of_random_networks_is_never_negative(rules):
    for seed in range(5):
        torch.manual_seed(seed)
        model = nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1),
            nn.GroupNorm(2, 4),
            nn.GELU(),
            nn.MaxPool2d(3, 2, 1),
            nn.Conv2d(4, 4, 3),
            nn.SiLU(),
            nn.Flatten(),
            nn.Linear(4, 16),
            nn.LayerNorm(16),
            nn.Hardtanh(),
            nn.Linear(16, 5),
            nn.Softmax(-1),
        )
        for scale, variance in ((1e-3, 1e-8), (1.0, 1.0), (1e3, 1e-6), (1e3, 1e4), (0.0, 0.0)):
            x = Moments((scale * torch.randn(2, 2, 6, 6)).requires_grad_(), variance)
            result = propagate(model, x, rules=rules)
            assert result.expected.isfinite().all()
            assert (result.variance >= 0).all()
            (result.expected.square().sum() + result.variance.sum()).backward()
            assert all(weight.grad.isfinite().all() for weight in model.parameters())


def test_exact_rules_are_nearer_to_sampling_than_taylor_rules():
    sizes = (20, 100, 100, 5)
    weights = [
        (Moments(torch.randn(b, a) * (2 / a) ** 0.5, 0.2 * 2 / a), Moments(torch.zeros(b), 0.01))
        for a, b in pairwise(sizes)
    ]

    def network(x, weights):
        for index, (weight, bias) in enumerate(weights):
            x = F.linear(x if index == 0 else F.relu(x), weight, bias)
        return x

    x = torch.randn(8, 20)
    draws = []
    for _ in range(2000):
        sampled = [
            tuple(w.expected + w.variance.sqrt() * torch.randn(w.shape) for w in pair)
            for pair in weights
        ]
        draws.append(network(x, sampled))
    drawn = torch.stack(draws)
    errors = {}
    for rules in ("exact", "taylor"):
        with moment_rules(rules):
            result = network(x, weights)
        mean = ((result.expected - drawn.mean(0)).abs() / drawn.std(0)).mean()
        variance = (result.variance / drawn.var(0) - 1).abs().mean()
        errors[rules] = (float(mean), float(variance))
    assert errors["exact"][0] < 0.05
    assert errors["exact"][1] < 0.2
    assert errors["taylor"][0] > 2 * errors["exact"][0]
    assert errors["taylor"][1] > errors["exact"][1]


class RandomLinear(nn.Linear):
    """A layer whose weight is read as moments, as a posterior would give it."""

    @property
    def weight(self):
        return Moments(self._parameters["weight"], 0.01)


def test_layer_with_random_weights_takes_a_plain_tensor():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    model[0].__class__ = RandomLinear
    x = torch.randn(5, 3)
    direct, lifted = model(x), propagate(model, x)
    assert isinstance(direct, Moments)
    assert torch.equal(direct.variance, lifted.variance)
    assert direct.variance.min() > 0


def test_linear_network_is_exact():
    model = nn.Sequential(
        nn.Linear(3, 6, dtype=torch.float64), nn.Linear(6, 2, dtype=torch.float64)
    )
    x = normal_moments(4, 3)
    first, second = (layer.weight.detach() for layer in model)
    result = propagate(model, x)
    through = x.variance @ (first**2).T @ (second**2).T
    torch.testing.assert_close(result.variance.detach(), through)


class Named(NamedTuple):
    logits: Tensor
    count: int


class ModelOutput(OrderedDict):
    """An ordered dictionary with attributes, as the transformers library returns."""

    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        object.__setattr__(self, key, value)


STRUCTURES = {
    "tuple": lambda y: (y, 3),
    "list": lambda y: [y, None],
    "dict": lambda y: {"logits": y, "loss": None},
    "named": lambda y: Named(y, 3),
    "model_output": lambda y: ModelOutput(logits=y),
    "nested": lambda y: {"all": (y, [y])},
}


@pytest.mark.parametrize("name", STRUCTURES)
@pytest.mark.parametrize("detour", [False, True])
def test_structure_of_the_output_is_kept(name, detour):
    make = STRUCTURES[name]
    # By a detour the model itself gives a tensor, which is lifted on its way out.
    result = propagate(lambda x: make(x.expected if detour else x), torch.ones(2))
    assert type(result) is type(make(torch.ones(2)))
    found = []

    def visit(value):
        if isinstance(value, Moments):
            found.append(value)
        elif isinstance(value, dict):
            list(map(visit, value.values()))
        elif isinstance(value, (tuple, list)):
            list(map(visit, value))
        else:
            assert not isinstance(value, Tensor)

    visit(result)
    assert found
    if name == "model_output":
        assert isinstance(result.logits, Moments)


def test_inputs_may_be_positional_or_named():
    def model(x, y=None, *, flag=False):
        return x + y if flag else x - y

    a, b = Moments(torch.ones(2), 0.5), torch.ones(2)
    assert (propagate(model, (a, b)).expected == 0).all()
    assert (propagate(model, [a, b], flag=True).expected == 2).all()
    assert (propagate(model, {"x": a, "y": b}, flag=True).variance == 0.5).all()


def test_keyword_tensors_go_in_unchanged():
    def model(x, mask):
        assert isinstance(mask, Tensor)
        return x + mask

    assert propagate(model, torch.ones(2), mask=torch.ones(2)).is_certain


def test_negative_input_variance_is_refused():
    with pytest.raises(ValueError, match=r"at least 0, got -0\.5"):
        propagate(F.relu, Moments(torch.ones(2), torch.tensor([1.0, -0.5])))


def test_rules_are_those_asked_for():
    x = Moments(torch.zeros(1), 1.0)
    assert propagate(F.relu, x).expected.item() > 0.3
    assert propagate(F.relu, x, rules="taylor").expected.item() == 0


def test_rules_are_restored_after_an_error():
    from bayesify.moments.rule_table import current_rules

    with pytest.raises(NotImplementedError):
        propagate(lambda x: torch.cumprod(x, 0), torch.ones(2), rules="taylor")
    assert current_rules() == "exact"


def test_empty_batch_goes_through():
    model, x = example("mlp")
    assert propagate(model, Moments(x[:0], 0.1)).variance.shape == (0, 10)


@pytest.mark.parametrize("name", ["lenet_5", "unet", "vit_mini", "cifar_resnet"])
def test_autocast_is_near_float32(name):
    model, x = example(name)
    with torch.no_grad():
        precise = propagate(model, Moments(x, 0.1))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            coarse = propagate(model, Moments(x, 0.1))
    ratio = coarse.variance.float() / precise.variance
    assert abs(float(ratio.log().mean())) < 0.05
    assert float(ratio.log().abs().quantile(0.9)) < 0.2


@pytest.mark.parametrize("name", ["lenet_5", "mlp"])
def test_bfloat16_model_is_near_its_float32_twin(name):
    model, x = example(name)
    precise = propagate(model, Moments(x, 0.1))
    coarse = propagate(model.to(torch.bfloat16), Moments(x.to(torch.bfloat16), 0.1))
    assert coarse.dtype == torch.bfloat16
    assert coarse.variance.dtype == torch.bfloat16
    torch.testing.assert_close(coarse.variance.float(), precise.variance, rtol=0.1, atol=1e-3)
