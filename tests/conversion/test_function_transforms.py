"""Converted models under torch.func, vmap, autocast and gradient accumulation."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import grad, jacrev, vmap

from bayesify.conversion import convert, mean_weights, one_sample
from bayesify.conversion.posterior import posteriors
from bayesify.methods import MeanField
from specimens import Dense, ResidualCNN, TiedLanguageModel

hows = pytest.mark.parametrize("how", ["sample", "local"])
MODELS = {
    "dense": (Dense, lambda: torch.randn(6, 4)),
    "cnn": (ResidualCNN, lambda: torch.randn(4, 2, 6, 6)),
    "tied": (TiedLanguageModel, lambda: torch.randint(7, (3, 4))),
}
models = pytest.mark.parametrize("name", MODELS)


def build(name="dense", how="sample"):
    make, make_inputs = MODELS[name]
    return convert(make(), MeanField(how=how, initial_std=0.2)).eval(), make_inputs()


def functional_call(model, parameters, args):
    # A tied posterior is one module under two names: ties hold by themselves, and torch's own
    # way of tying puts a module with two names back wrongly.
    return torch.func.functional_call(model, parameters, args, tie_weights=False)


def parameters_of(model):
    return {name: value.detach().clone() for name, value in model.named_parameters()}


def is_free(model):
    return all(not site._held and site._draw is None for site in posteriors(model))


@models
@hows
def test_functional_call_uses_the_parameters_it_is_given(name, how):
    model, x = build(name, how)
    doubled = {key: 2.0 * value for key, value in parameters_of(model).items()}
    other = copy.deepcopy(model)
    for key, value in other.named_parameters():
        value.data.copy_(doubled[key])
    torch.manual_seed(1)
    expected = other(x)
    torch.manual_seed(1)
    torch.testing.assert_close(functional_call(model, doubled, (x,)), expected)
    torch.manual_seed(1)
    assert not torch.equal(model(x), expected)


@models
@hows
def test_functional_gradients_are_those_of_autograd(name, how):
    model, x = build(name, how)

    def loss(parameters):
        return functional_call(model, parameters, (x,)).square().sum()

    torch.manual_seed(1)
    functional = grad(loss)(parameters_of(model))
    torch.manual_seed(1)
    model(x).square().sum().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(functional[name], parameter.grad)
    assert is_free(model)


def test_per_example_gradients_of_the_mean_weights_are_exact():
    model, x = build()

    def loss(parameters, row):
        return functional_call(model, parameters, (row[None],)).square().sum()

    parameters = parameters_of(model)
    with mean_weights(model):
        together = vmap(grad(loss), in_dims=(None, 0))(parameters, x)
        for place, row in enumerate(x):
            alone = grad(loss)(parameters, row)
            for name, value in alone.items():
                torch.testing.assert_close(together[name][place], value)


@hows
def test_per_example_gradients_share_a_draw_or_not_as_asked(how):
    model, _ = build(how=how)
    rows = torch.ones(5, 4)

    def loss(parameters, row):
        return functional_call(model, parameters, (row[None],)).square().sum()

    for randomness, is_same in (("same", True), ("different", False)):
        gradients = vmap(grad(loss), in_dims=(None, 0), randomness=randomness)(
            parameters_of(model), rows
        )
        of_mean = gradients["head.weight_posterior.mean"]
        assert torch.isfinite(of_mean).all()
        assert torch.allclose(of_mean[0], of_mean[1], atol=1e-6) == is_same
    assert is_free(model)


@models
@hows
def test_vmap_draws_differ_and_have_the_eager_moments(name, how):
    model, x = build(name, how)
    num_draws = 600

    def draw(_):
        return model(x)

    with torch.no_grad():
        together = vmap(draw, randomness="different")(torch.arange(num_draws))
        alone = torch.stack([model(x) for _ in range(num_draws)])
    variances = together.var(0), alone.var(0)
    assert all((variance > 0).all() for variance in variances)
    error = (sum(variances) / num_draws).sqrt()
    # The largest of many entries: five standard errors, here and for the variances below.
    assert ((together.mean(0) - alone.mean(0)).abs() < 5 * error).all()
    # Outputs are products of Gaussians: their kurtosis, not 3, sets the error of a variance.
    fourth = (together - together.mean(0)).pow(4).mean(0)
    spread = 2 * ((fourth - variances[0].square()) / num_draws).sqrt()
    assert ((variances[0] - variances[1]).abs() < 5 * spread).all()
    assert is_free(model)


def test_vmap_with_one_randomness_gives_one_draw():
    model, x = build()
    outputs = vmap(lambda _: model(x), randomness="same", out_dims=0)(torch.arange(4))
    assert all(torch.equal(outputs[0], output) for output in outputs)


def test_vmap_inside_one_sample_keeps_its_draw():
    model, x = build()
    with one_sample(model):
        rows = vmap(lambda row: model(row[None])[0])(x)
        torch.testing.assert_close(rows, model(x))


def test_a_jacobian_of_the_inputs_is_right():
    model, x = build()
    with one_sample(model):
        jacobian = jacrev(lambda row: model(row[None])[0])(x[0])
        row = x[0].clone().requires_grad_()
        expected = torch.stack(
            [torch.autograd.grad(out, row, retain_graph=True)[0] for out in model(row[None])[0]]
        )
    torch.testing.assert_close(jacobian, expected)


def test_training_goes_on_after_a_transform():
    model, x = build()
    grad(lambda p: functional_call(model, p, (x,)).sum())(parameters_of(model))
    model(x).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@models
@hows
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_is_finite_and_close_to_full_precision(name, how, dtype):
    model, x = build(name, how)
    torch.manual_seed(1)
    expected = model(x)
    torch.manual_seed(1)
    with torch.autocast("cpu", dtype=dtype):
        output = model(x)
    assert output.dtype == dtype
    # Two or three layers, each rounded: a few units of the last place of numbers of size one.
    tolerance = 8 * torch.finfo(dtype).eps
    torch.testing.assert_close(output.float(), expected, rtol=tolerance, atol=tolerance)
    output.float().square().sum().backward()
    for parameter in model.parameters():
        assert parameter.grad.dtype == torch.float32
        assert torch.isfinite(parameter.grad).all()


@hows
def test_a_bfloat16_model_trains(how):
    model = convert(Dense().bfloat16(), MeanField(how=how, initial_std=0.2))
    output = model(torch.randn(6, 4).bfloat16())
    assert output.dtype == torch.bfloat16
    output.square().sum().backward()
    for parameter in model.parameters():
        assert parameter.grad.dtype == torch.bfloat16
        assert torch.isfinite(parameter.grad).all()


@models
@hows
def test_gradients_accumulate_over_forwards(name, how):
    model, x = build(name, how)
    apart = []
    for seed in (1, 2, 3):
        model.zero_grad()
        torch.manual_seed(seed)
        model(x).square().sum().backward()
        apart.append([parameter.grad for parameter in model.parameters()])
    model.zero_grad()
    for seed in (1, 2, 3):
        torch.manual_seed(seed)
        model(x).square().sum().backward()
    for parameter, parts in zip(model.parameters(), zip(*apart, strict=True), strict=True):
        torch.testing.assert_close(parameter.grad, sum(parts))


def test_an_optimiser_step_lowers_the_loss():
    model, x = build()
    target = torch.tensor([0, 1, 2, 0, 1, 2])
    optimiser = torch.optim.Adam(model.parameters(), lr=0.05)
    with torch.no_grad(), mean_weights(model):
        before = F.cross_entropy(model(x), target)
    for _ in range(30):
        optimiser.zero_grad()
        F.cross_entropy(model(x), target).backward()
        optimiser.step()
    with torch.no_grad(), mean_weights(model):
        assert F.cross_entropy(model(x), target) < 0.7 * before


def test_weight_sampling_works_for_an_unbatched_recurrent_layer():
    model = convert(nn.LSTM(3, 4), MeanField())
    assert model(torch.randn(5, 3))[0].shape == (5, 4)
