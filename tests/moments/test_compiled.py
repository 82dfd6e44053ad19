"""Moments through torch.compile, in one graph, with the numbers of the eager forward."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bayesify.moments import Moments, moment_rules
from moments.sampling import normal_moments


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class SmallCNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3, padding=1)
        self.norm = nn.BatchNorm2d(3)
        self.act = nn.ReLU(inplace=True)
        self.inner = nn.Conv2d(3, 3, 3, padding=1)
        self.head = nn.Linear(3, 2)

    def forward(self, x):
        x = self.act(self.norm(self.conv(x)))
        x = x + F.gelu(self.inner(x))
        x = F.max_pool2d(x, 3, 2, 1)
        x = 1.0 - x * 2 / 3
        return self.head(x.mean((2, 3)))


class SmallTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, 0.0, "gelu", batch_first=True)
        self.norm = nn.RMSNorm(8)
        self.qkv = nn.Linear(8, 24)
        self.mlp = nn.Sequential(nn.Linear(8, 8), nn.SiLU(), nn.Dropout(0.1))

    def forward(self, x):
        x = self.encoder(x)
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        x += F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return (x + self.mlp(x)).flatten(1)


class Operators(nn.Module):
    def __init__(self):
        super().__init__()
        self.square = nn.Parameter(torch.randn(8, 8))
        self.row = nn.Parameter(torch.rand(8) + 1.0)

    def forward(self, x):
        left = self.square[:5, :5] @ x
        parts = [x @ self.square, left, x - self.row, self.row - x, x / self.row, self.row * x]
        return torch.cat([*parts, x**2, abs(x), -x, 2 - x, x.unflatten(-1, (2, 4)).sum(-1)], -1)


CASES = [
    (SmallCNN, (2, 1, 6, 6)),
    (SmallTransformer, (2, 5, 8)),
    (Operators, (2, 5, 8)),
]


@pytest.mark.parametrize("rules", ["exact", "pooled"])
@pytest.mark.parametrize(("build", "shape"), CASES)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_model_is_one_graph_with_the_same_numbers(build, shape, rules):
    model = build().eval()
    x = normal_moments(*shape, dtype=torch.float32)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.no_grad(), moment_rules(rules):
        eager, result = model(x), compiled(x)
    torch.testing.assert_close(result.expected, eager.expected)
    torch.testing.assert_close(result.variance, eager.variance)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_gradients_are_those_of_the_eager_model():
    model = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.LayerNorm(4), nn.Linear(4, 2))
    x = normal_moments(3, 4, dtype=torch.float32)
    gradients = []
    for call in (model, torch.compile(model, fullgraph=True, backend="aot_eager")):
        result = call(x)
        total = result.expected.sum() + result.variance.sum()
        gradients.append(torch.autograd.grad(total, list(model.parameters())))
    for eager, compiled in zip(*gradients, strict=True):
        torch.testing.assert_close(eager, compiled)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_model_follows_the_choice_of_rules():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    x = normal_moments(3, 4, dtype=torch.float32)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    exact = compiled(x)
    with moment_rules("taylor"):
        taylor = compiled(x)
        torch.testing.assert_close(taylor.variance, model(x).variance)
    assert not torch.allclose(exact.variance, taylor.variance)


def test_compiled_product_that_could_be_meant_either_way_is_refused():
    weight = torch.randn(4, 4)
    compiled = torch.compile(lambda x: x @ weight, fullgraph=True, backend="eager")
    with pytest.raises(Exception, match="could be meant either way round"):
        compiled(Moments(torch.randn(4, 4), 1.0))
