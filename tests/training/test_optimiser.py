import pytest
import torch
from torch import nn

from bayesify.conversion import convert
from bayesify.methods import MeanField
from bayesify.training.optimiser import make_optimizers
from bayesify.training.settings import FitSettings


def made(model, **options):
    return make_optimizers(model, nn.Module(), FitSettings(epochs=1, **options))


def model_of(dtype=torch.float32):
    return convert(nn.Linear(3, 2).to(dtype), MeanField())


def are_fused(optimizers):
    return [bool(each.defaults.get("fused")) for each in optimizers]


def test_scales_have_an_adam_of_their_own():
    model = model_of()
    locations, scales = made(model, optimizer="sgd", scale_learning_rate=0.5)
    assert isinstance(locations, torch.optim.SGD)
    assert isinstance(scales, torch.optim.Adam)
    assert scales.param_groups[0]["params"] == [model.weight_posterior.rho]
    assert scales.param_groups[0]["lr"] == 0.5


def test_scales_have_the_optimiser_that_was_named_and_never_decay():
    model = model_of()
    locations, scales = made(model, weight_decay=0.1, scale_optimizer="rmsprop")
    assert isinstance(locations, torch.optim.Adam)
    assert isinstance(scales, torch.optim.RMSprop)
    assert scales.param_groups[0]["weight_decay"] == 0
    (decoupled,) = made(model, scale_optimizer="adamw")[1].param_groups
    assert decoupled["weight_decay"] == 0
    with pytest.raises(LookupError, match="rmsprop"):
        made(model, scale_optimizer="rmsprob")


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_a_step_is_one_call_where_torch_has_one(name):
    assert are_fused(made(model_of(), optimizer=name)) == [True, True]


def test_other_optimisers_are_left_as_they_are():
    assert are_fused(made(model_of(), optimizer="rmsprop")) == [False, True]


def test_a_scaled_loss_keeps_the_adam_that_can_be_clipped():
    assert are_fused(made(model_of(), precision="16-mixed")) == [False, False]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_the_one_call_moves_parameters_as_the_plain_adam_does(dtype):
    torch.manual_seed(0)
    model = model_of(dtype)
    twin = convert(nn.Linear(3, 2).to(dtype), MeanField())
    twin.load_state_dict(model.state_dict())
    (locations, _), plain = made(model), torch.optim.Adam(twin.parameters(), 1e-3)
    assert locations.defaults["lr"] == 1e-3
    for _ in range(3):
        for one, other in zip(model.parameters(), twin.parameters(), strict=True):
            one.grad = torch.randn_like(one)
            other.grad = one.grad.clone()
        locations.step()
        plain.step()
    found, expected = model.weight_posterior.mean, twin.weight_posterior.mean
    # A unit of the last place for every step.
    torch.testing.assert_close(found, expected, rtol=4 * torch.finfo(dtype).eps, atol=1e-6)
