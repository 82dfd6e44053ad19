"""Local reparameterisation against weight sampling: same moments, same expected gradient."""

import math

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrize import register_parametrization

from bayesify.conversion import convert, local, mean_weights
from bayesify.conversion.local import functional_form
from bayesify.conversion.posterior import posteriors
from bayesify.conversion.scope import forward_by
from bayesify.methods import MeanField

LAYERS = {
    "linear": (lambda: nn.Linear(5, 3), (2, 5)),
    "linear_no_bias": (lambda: nn.Linear(5, 3, bias=False), (2, 5)),
    "linear_tokens": (lambda: nn.Linear(5, 3), (2, 2, 5)),
    "conv1d": (lambda: nn.Conv1d(2, 3, 3, stride=2), (1, 2, 7)),
    "conv1d_reflect": (lambda: nn.Conv1d(2, 3, 3, padding=2, padding_mode="reflect"), (1, 2, 5)),
    "conv2d": (lambda: nn.Conv2d(2, 4, 3, padding=1, groups=2), (1, 2, 4, 4)),
    "conv2d_circular": (
        lambda: nn.Conv2d(2, 2, 2, padding=1, dilation=2, padding_mode="circular"),
        (1, 2, 4, 4),
    ),
    "conv2d_same": (lambda: nn.Conv2d(2, 2, 3, padding="same"), (1, 2, 3, 3)),
    "conv3d": (lambda: nn.Conv3d(1, 2, 2), (1, 1, 3, 3, 3)),
    "transposed1d": (lambda: nn.ConvTranspose1d(2, 2, 3, stride=2), (1, 2, 3)),
    "transposed2d": (
        lambda: nn.ConvTranspose2d(2, 4, 3, stride=2, groups=2, output_padding=1),
        (1, 2, 2, 2),
    ),
    "transposed3d": (lambda: nn.ConvTranspose3d(1, 2, 2), (1, 1, 2, 2, 2)),
}
layers = pytest.mark.parametrize("name", LAYERS)
scales = pytest.mark.parametrize("scale", ["weight", "out"])


def build(name, scale="weight", std=0.4):
    make, shape = LAYERS[name]
    model = convert(make().double(), MeanField(how="local", scale=scale, biases=True))
    for site in posteriors(model):
        site.rho.data.copy_(torch.log(torch.expm1(std * (0.5 + torch.rand_like(site.rho)))))
    return model, torch.randn(shape, dtype=torch.float64)


def sampled_draws(model, x, num_draws=300):
    with torch.no_grad(), forward_by(model, "sample"):
        return torch.stack([model(x) for _ in range(num_draws)])


def local_draws(model, x, num_draws=4_000):
    """Return many draws of one call: examples of a batch get independent noise."""
    with torch.no_grad(), forward_by(model, "local"):
        return model(x.repeat(num_draws, *[1] * (x.ndim - 1))).unflatten(0, (num_draws, -1))


def assert_same_moments(left, right):
    """Compare mean and variance of two samples within four standard errors each."""
    variances = left.var(0), right.var(0)
    error = (variances[0] / len(left) + variances[1] / len(right)).sqrt()
    assert ((left.mean(0) - right.mean(0)).abs() < 4 * error).all()
    relative = math.sqrt(2 / (len(left) - 1) + 2 / (len(right) - 1))
    spread = torch.maximum(*variances) * relative
    assert ((variances[0] - variances[1]).abs() < 4 * spread).all()


@layers
@scales
def test_moments_are_those_of_sampled_weights(name, scale):
    model, x = build(name, scale)
    local = local_draws(model, x)
    assert_same_moments(local, sampled_draws(model, x))
    assert (local.var(0) > 0).all()


def test_moments_of_embedded_tokens_are_those_of_sampled_rows():
    model = convert(
        nn.Embedding(6, 3, padding_idx=2).double(), MeanField(how="local", initial_std=0.5)
    )
    tokens = torch.tensor([[0, 1, 2], [5, 1, 2]])
    local, sampled = local_draws(model, tokens), sampled_draws(model, tokens)
    is_padding = tokens == 2
    assert_same_moments(local[:, ~is_padding], sampled[:, ~is_padding])
    assert local[:, is_padding].abs().max() < 1e-9, "the padding row is never random"


@pytest.mark.parametrize("name", ["linear", "conv2d"])
def test_the_expected_gradient_is_that_of_sampled_weights(name):
    model, x = build(name)
    target = torch.randn_like(model(x))
    parameters = list(model.parameters())

    def gradients(how):
        with forward_by(model, how):
            loss = (model(x) - target).square().sum()
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)])

    num_draws = 300
    local, sampled = (
        torch.stack([gradients(how) for _ in range(num_draws)]) for how in ("local", "sample")
    )
    error = ((local.var(0) + sampled.var(0)) / num_draws).sqrt()
    assert ((local.mean(0) - sampled.mean(0)).abs() < 4 * error).all()
    if name == "linear":
        assert local.var(0).mean() < sampled.var(0).mean(), "what it is for: less gradient noise"


def test_examples_get_independent_noise():
    model, _ = build("linear")
    x = torch.ones(2, 5, dtype=torch.float64)
    local = local_draws(model, x, 4000)[..., 0]
    assert torch.corrcoef(local.T)[0, 1].abs() < 4 / math.sqrt(4000)
    sampled = sampled_draws(model, x, 20)
    torch.testing.assert_close(sampled[:, 0], sampled[:, 1])


@layers
@pytest.mark.parametrize("rho", [-200.0, -60.0, -25.0, -torch.inf])
def test_a_vanishing_scale_gives_the_mean_and_finite_gradients(name, rho):
    model, x = build(name)
    model, x = model.float(), x.float().requires_grad_()
    for site in posteriors(model):
        site.rho.data.fill_(rho)
    output = model(x)
    with mean_weights(model):
        torch.testing.assert_close(output, model(x), rtol=1e-6, atol=1e-6)
    output.square().sum().backward()
    for tensor in (x, *model.parameters()):
        assert torch.isfinite(tensor.grad).all()


@layers
def test_zero_inputs_give_finite_gradients(name):
    model, x = build(name)
    x = torch.zeros_like(x, requires_grad=True)
    model(x).square().sum().backward()
    assert all(torch.isfinite(tensor.grad).all() for tensor in (x, *model.parameters()))


@layers
def test_an_empty_batch_gives_an_empty_output(name):
    model, x = build(name)
    with mean_weights(model):
        expected = model(x[:0]).shape
    output = model(x[:0])
    assert output.shape == expected
    output.sum().backward()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["linear", "conv2d", "transposed2d"])
def test_moments_are_right_under_autocast(name, dtype):
    model, x = build(name)
    exact = local_draws(model, x)
    model, x = model.float(), x.float()
    with torch.autocast("cpu", dtype=dtype):
        rough = local_draws(model, x)
    assert rough.dtype == dtype
    rough, num_draws = rough.double(), len(rough)
    error = ((exact.var(0) + rough.var(0)) / num_draws).sqrt()
    # Inputs, weights and outputs are each rounded once, by half a unit of the last place.
    resolution = torch.finfo(dtype).eps
    rounding = 2 * resolution * (1 + exact.mean(0).abs())
    assert ((exact.mean(0) - rough.mean(0)).abs() < 4 * error + rounding).all()
    relative = 4 * math.sqrt(4 / (num_draws - 1)) + 2 * resolution
    assert ((exact.var(0) - rough.var(0)).abs() < relative * exact.var(0)).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_large_inputs_stay_finite_in_half_precision(dtype):
    layer = convert(nn.Linear(4, 4), MeanField(how="local"))
    x = torch.full((2, 4), 1000.0, dtype=dtype, requires_grad=True)
    with torch.autocast("cpu", dtype=dtype):
        output = layer(x)
    output.float().sum().backward()
    assert torch.isfinite(output).all()
    assert all(torch.isfinite(tensor.grad).all() for tensor in (x, *layer.parameters()))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_weights_keep_small_noise(dtype):
    # A std of 1e-4 has a variance below the smallest float16.
    layer = nn.Linear(4, 4, bias=False).to(dtype)
    nn.init.zeros_(layer.weight)
    model = convert(layer, MeanField(how="local", initial_std=1e-4))
    output = local_draws(model, torch.ones(1, 4, dtype=dtype), 4000).double()
    # rho is about −9.2: rounding it by half a unit moves the std by as much, relatively.
    rounding = 9.2 * torch.finfo(dtype).eps
    assert abs(output.std() / 2e-4 - 1) < 4 / math.sqrt(2 * output.numel()) + rounding


class Doubled(nn.Linear):
    def forward(self, input):
        return 2.0 * super().forward(input)


class Unitary(nn.Conv2d):
    """Keeps `forward` and changes what it is made of."""

    def _conv_forward(self, input, weight, bias):
        return super()._conv_forward(input, weight / weight.norm(), bias)


@pytest.mark.parametrize("kind", [Doubled, Unitary])
def test_a_subclass_with_its_own_forward_is_sampled(kind):
    layer = kind(4, 3) if kind is Doubled else kind(2, 3, 2)
    assert functional_form(kind) is None
    model = convert(layer, MeanField(how="local"))
    assert not model.weight_posterior.can_be_local
    assert model.weight_posterior.how == "sample"


def test_a_subclass_that_keeps_forward_is_local():
    class Named(nn.Linear):
        pass

    assert convert(Named(2, 2), MeanField(how="local")).weight_posterior.how == "local"


def test_a_sampled_subclass_gives_its_own_outputs():
    plain = Doubled(4, 3)
    model = convert(plain, MeanField(how="local"))
    x = torch.randn(2, 4)
    with mean_weights(model):
        torch.testing.assert_close(model(x), plain(x))
    with torch.no_grad():
        same_rows = model(torch.ones(2, 4))
    assert torch.equal(same_rows[0], same_rows[1])


def test_a_parametrised_bias_is_not_lost():
    class Shift(nn.Module):
        def forward(self, bias):
            return bias + 10.0

    plain = nn.Linear(3, 3)
    register_parametrization(plain, "bias", Shift())
    model = convert(plain, MeanField(how="local", where="weight", initial_std=1e-6))
    x = torch.randn(2, 3)
    torch.testing.assert_close(model(x), plain(x), rtol=1e-4, atol=1e-4)


def test_a_bias_that_two_layers_share_is_one_draw_for_both():
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.left = nn.Linear(2, 2)
            self.right = nn.Linear(2, 2)
            self.right.bias = self.left.bias

        def forward(self, x):
            return self.left(x), self.right(x)

    model = convert(Pair(), MeanField(how="local", biases=True, initial_std=1.0))
    for layer in (model.left, model.right):
        nn.init.constant_(layer.weight_posterior.rho, -torch.inf)
        nn.init.zeros_(layer.weight_posterior.mean)
    left, right = model(torch.zeros(5, 2))
    torch.testing.assert_close(left, right)
    assert not torch.equal(left, model(torch.zeros(5, 2))[0])


def test_a_layer_whose_only_random_tensor_is_its_bias_still_runs():
    model = convert(nn.Linear(3, 3), MeanField(how="local", where="bias", initial_std=1.0))
    x = torch.zeros(2, 3)
    assert not torch.equal(model(x), model(x))


def test_embedding_gradients_keep_their_scaling_by_frequency():
    plain = nn.Embedding(3, 2, scale_grad_by_freq=True)
    model = convert(plain, MeanField(how="local", initial_std=1e-6))
    tokens = torch.tensor([0, 0, 0, 1])
    plain(tokens).sum().backward()
    model(tokens).sum().backward()
    torch.testing.assert_close(model.weight_posterior.mean.grad, plain.weight.grad)


def test_output_size_reaches_a_transposed_convolution():
    model = convert(nn.ConvTranspose1d(1, 1, 3, stride=2), MeanField(how="local"))
    x = torch.randn(1, 1, 4)
    assert model(x).shape[-1] == 9
    assert model(x, output_size=[10]).shape[-1] == 10
    assert model(x, [10]).shape[-1] == 10


def test_input_may_be_given_by_name():
    model = convert(nn.Linear(3, 2), MeanField(how="local"))
    assert model(input=torch.randn(4, 3)).shape == (4, 2)


def test_attention_reads_its_output_projection_itself_so_it_is_sampled():
    model = convert(nn.MultiheadAttention(4, 2), MeanField(how="local"))
    assert model.out_proj.weight_posterior.how == "sample"


def test_layers_that_are_not_linear_in_one_weight_have_no_form():
    assert functional_form(nn.Bilinear) is None
    assert functional_form(nn.EmbeddingBag) is None
    assert functional_form(nn.LSTM) is None


@pytest.mark.parametrize("name", ["linear", "linear_tokens", "conv1d_reflect", "conv2d", "conv3d"])
def test_a_shared_scale_needs_no_second_product_and_changes_nothing(name, monkeypatch):
    make, shape = LAYERS[name]
    model = convert(make().double(), MeanField(how="local", scale="out", initial_std=0.3))
    x = torch.randn(shape, dtype=torch.float64)
    found = []
    for shortcut in (True, False):
        if not shortcut:
            monkeypatch.setattr(local, "_shared_variance", lambda *_: None)
        model.zero_grad()
        torch.manual_seed(3)
        output = model(x)
        output.square().sum().backward()
        found.append((output.detach(), *(entry.grad.clone() for entry in model.parameters())))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)
