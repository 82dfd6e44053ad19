"""Converted models under torch.compile: same draws and gradients as the eager model."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from bayesify.conversion import convert, mean_weights, one_sample
from bayesify.conversion.convert import convert_
from bayesify.conversion.posterior import posteriors
from bayesify.methods import MeanField
from specimens import Dense, ResidualCNN, TiedLanguageModel

# The compiler's own: it looks at the gradient of every input, and scripts some of its parts.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated"),
]
hows = pytest.mark.parametrize("how", ["sample", "local"])
reentrants = pytest.mark.parametrize("reentrant", [False, True], ids=["saved", "reentrant"])

MODELS = {
    "dense": (Dense, lambda: torch.randn(6, 4)),
    "cnn": (ResidualCNN, lambda: torch.randn(4, 2, 6, 6)),
    "tied": (TiedLanguageModel, lambda: torch.randint(7, (3, 4))),
}


@pytest.fixture(autouse=True)
def _forget_compiled_code():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


class Net(nn.Module):
    def __init__(self, reentrant=None):
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 4)
        self.dropout = nn.Dropout(0.3)
        self.reentrant = reentrant

    def block(self, x):
        return torch.tanh(self.a(x))

    def forward(self, x):
        x = self.dropout(x)
        if self.reentrant is None:
            x = self.block(x)
        else:
            x = checkpoint(self.block, x, use_reentrant=self.reentrant)
        return self.b(self.a(x))


def converted(model, **options):
    return convert(model, MeanField(initial_std=0.2, **options))


def compiled(model, backend="aot_eager", fullgraph=True):
    return torch.compile(model, backend=backend, fullgraph=fullgraph)


def step(call, model, x, seed):
    """Return the output and the gradients of one step from a seed."""
    model.zero_grad()
    torch.manual_seed(seed)
    output = call(x)
    output.square().sum().backward()
    return [output, *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


def assert_same(left, right, tolerance=1e-5):
    assert len(left) == len(right)
    for a, b in zip(left, right, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def assert_same_steps(call, model, twin, x, num_steps=3):
    steps = [step(call, model, x, seed) for seed in range(num_steps)]
    for seed, result in enumerate(steps):
        assert_same(result, step(twin, twin, x, seed))
    assert not torch.equal(steps[0][0], steps[1][0])


@pytest.mark.parametrize(
    ("name", "how"), [("dense", "sample"), ("dense", "local"), ("cnn", "local"), ("tied", "sample")]
)
def test_a_compiled_model_draws_like_the_eager_one(name, how):
    build, make_inputs = MODELS[name]
    model, x = converted(build(), how=how), make_inputs()
    assert_same_steps(compiled(model), model, copy.deepcopy(model), x)
    assert all(not site._held and site._draw is None for site in posteriors(model))


@pytest.mark.slow
def test_the_inductor_backend_gives_fresh_noise_of_the_right_size():
    model, x = converted(nn.Linear(4, 3)), torch.ones(1, 4)
    call = compiled(model, "inductor")
    with torch.no_grad():
        outputs = torch.stack([call(x)[0] for _ in range(1000)])
    with mean_weights(model):
        mean = model(x)[0].detach()
    std = 0.4  # four weights of std 0.2 on inputs of one
    assert ((outputs.mean(0) - mean).abs() < 4 * std / 1000**0.5).all()
    assert ((outputs.std(0) / std - 1).abs() < 4 / (2 * 1000) ** 0.5).all()
    call(x).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_a_partial_posterior_compiles():
    model = convert(nn.Embedding(5, 3, padding_idx=0), MeanField(initial_std=0.2))
    x = torch.tensor([0, 1, 2])
    assert_same_steps(compiled(model), model, copy.deepcopy(model), x)


def test_mean_weights_reach_a_compiled_model():
    model, x = converted(Dense()), torch.randn(6, 4)
    call = compiled(model)
    drawn = call(x)
    with mean_weights(model):
        torch.testing.assert_close(call(x), model(x))
        assert torch.equal(call(x), call(x))
    assert not torch.equal(call(x), drawn)


def test_one_sample_reaches_a_compiled_model():
    model, x = converted(Dense()), torch.randn(6, 4)
    call = compiled(model)
    free = call(x)
    with one_sample(model):
        first = call(x)
        assert torch.equal(call(x), first)
        torch.testing.assert_close(model(x), first)
    assert not torch.equal(call(x), first)
    assert not torch.equal(free, first)


@hows
def test_a_checkpoint_inside_compiled_code_repeats_the_draw(how):
    model, x = converted(Net(False).eval(), how=how), torch.randn(6, 4)
    twin = copy.deepcopy(model)
    twin.reentrant = None
    assert_same_steps(compiled(model), model, twin, x)


@hows
def test_a_compiled_layer_of_an_eager_model_uses_its_draw(how):
    model, x = converted(Net().eval(), how=how), torch.randn(6, 4)
    twin = copy.deepcopy(model)
    model.a.compile(backend="aot_eager", fullgraph=True)
    assert_same_steps(model, model, twin, x)


@reentrants
def test_an_eager_checkpoint_around_a_compiled_layer_works_under_local_reparameterisation(
    reentrant,
):
    model, x = converted(Net(reentrant), how="local"), torch.randn(6, 4, requires_grad=True)
    twin = copy.deepcopy(model)
    twin.reentrant = None
    model.a.compile(backend="aot_eager", fullgraph=True)
    assert_same_steps(model, model, twin, x)


@reentrants
def test_an_eager_checkpoint_around_a_compiled_layer_with_drawn_weights_is_refused(reentrant):
    model, x = converted(Net(reentrant)), torch.randn(6, 4, requires_grad=True)
    model.a.compile(backend="aot_eager")
    with pytest.raises(
        RuntimeError, match=r"a gradient checkpoint calls a compiled layer.*whole model"
    ):
        model(x).sum().backward()


def test_a_graph_break_keeps_one_draw_per_forward():
    class Breaks(Dense):
        def forward(self, x):
            first = self.hidden(x)
            torch._dynamo.graph_break()
            return first - self.hidden(x)

    model = converted(Breaks())
    call = compiled(model, fullgraph=False)
    for _ in range(3):
        assert (call(torch.randn(6, 4)) == 0).all()


def test_a_compiled_model_runs_under_autocast_and_without_gradients():
    model, x = converted(Dense(), how="local"), torch.randn(6, 4)
    call = compiled(model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = call(x)
    assert output.dtype == torch.bfloat16
    assert torch.isfinite(output).all()
    with torch.no_grad():
        assert not torch.equal(call(x), call(x))


def test_a_model_converted_after_it_was_compiled_is_bayesian():
    plain = Dense()
    call, x = compiled(plain), torch.randn(6, 4)
    assert torch.equal(call(x), call(x))
    convert_(plain, MeanField(initial_std=0.2))
    assert not torch.equal(call(x), call(x))
