"""The conversion contract, on every specimen: same outputs, same ties, a way back."""

import copy
import inspect
import io
import pickle

import pytest
import torch
from torch import nn

from bayesify.conversion import convert, convert_, kl, mean_weights, revert
from bayesify.conversion.convert import record_of, require_record
from bayesify.conversion.posterior import posteriors
from bayesify.methods import MeanField
from bayesify.types import ConversionError
from specimens import SPECIMENS, Specimen

specimens = pytest.mark.parametrize("specimen", SPECIMENS, ids=str)
hows = pytest.mark.parametrize("how", ["sample", "local"])
scales = pytest.mark.parametrize("scale", ["weight", "out"])


def build(specimen: Specimen, how: str = "sample", scale: str = "weight", biases: bool = True):
    torch.manual_seed(3)
    plain = specimen.build()
    return plain, convert(plain, MeanField(how=how, scale=scale, biases=biases))


def snapshot(model: nn.Module):
    return {name: value.clone() for name, value in model.state_dict().items()}


def ties(model: nn.Module) -> list[int]:
    """Return, for every name a parameter has, the position of the first name it has."""
    every = list(model.named_parameters(remove_duplicate=False))
    first = {}
    return [first.setdefault(id(value), place) for place, (_, value) in enumerate(every)]


def silence(model: nn.Module) -> None:
    for site in posteriors(model):
        for rho in site.scale_parameters():
            rho.data.fill_(-torch.inf)


def assert_same(left, right, tolerance=0.0):
    assert len(left) == len(right) > 0
    for a, b in zip(left, right, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def assert_same_outputs(specimen: Specimen, model: nn.Module, plain: nn.Module) -> None:
    """Compare in training, in evaluation, and without gradients, which some layers take apart."""
    assert_same(specimen.call(model.train()), specimen.call(plain.train()), 1e-6)
    assert_same(specimen.call(model.eval()), specimen.call(plain.eval()), 1e-6)
    with torch.no_grad():
        assert_same(specimen.call(model), specimen.call(plain), 1e-6)


@specimens
@hows
@scales
def test_outputs_at_zero_scale_equal_those_of_the_plain_model(specimen, how, scale):
    plain, model = build(specimen, how, scale)
    silence(model)
    assert_same_outputs(specimen, model, plain)


@specimens
@hows
@scales
def test_mean_weights_give_the_outputs_of_the_plain_model(specimen, how, scale):
    plain, model = build(specimen, how, scale)
    with mean_weights(model):
        assert_same_outputs(specimen, model, plain)


@specimens
@hows
@scales
def test_noise_flows_and_gradients_reach_every_mean_and_scale(specimen, how, scale):
    _, model = build(specimen, how, scale)
    for evaluating in (False, True):
        model.train(not evaluating)
        assert not torch.equal(specimen.call(model)[0], specimen.call(model)[0])
    with torch.no_grad():
        assert not torch.equal(specimen.call(model)[0], specimen.call(model)[0])
    outputs = specimen.call(model)
    # No symmetric loss: layers before a norm or a softmax must not cancel out of it.
    loss = sum((out * torch.rand_like(out)).square().sum() for out in outputs)
    loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
        if name.endswith("_posterior.rho"):
            assert parameter.grad.abs().sum() > 0, name


@specimens
@hows
@scales
def test_convert_leaves_the_input_model_untouched(specimen, how, scale):
    torch.manual_seed(3)
    plain = specimen.build()
    before, classes = snapshot(plain), [type(module) for module in plain.modules()]
    identities = [id(parameter) for parameter in plain.parameters()]
    model = convert(plain, MeanField(how=how, scale=scale, biases=True))
    specimen.call(model)
    silence(model)
    assert [type(module) for module in plain.modules()] == classes
    assert [id(parameter) for parameter in plain.parameters()] == identities
    assert list(plain.state_dict()) == list(before)
    assert all(torch.equal(plain.state_dict()[name], value) for name, value in before.items())
    assert record_of(plain) is None


@specimens
@hows
@scales
def test_revert_gives_the_plain_model_back_exactly(specimen, how, scale):
    plain, model = build(specimen, how, scale)
    classes = [type(module) for module in model.modules()]
    specimen.call(model.eval())
    back = revert(model)
    assert vars(back).keys() == vars(plain).keys()
    assert [type(module) for module in back.modules()] == [type(m) for m in plain.modules()]
    assert list(back.state_dict()) == list(plain.state_dict())
    for name, value in plain.named_parameters():
        assert torch.equal(back.get_parameter(name), value), name
        assert back.get_parameter(name).requires_grad
    assert [name for name, _ in back.named_parameters()] == [n for n, _ in plain.named_parameters()]
    assert ties(back) == ties(plain)
    assert record_of(back) is None
    assert_same(specimen.call(back.eval()), specimen.call(plain.eval()))
    assert [type(module) for module in model.modules()] == classes, "revert works on a copy"


@specimens
@hows
@scales
def test_tied_tensors_are_one_posterior_counted_once(specimen, how, scale):
    plain, model = build(specimen, how, scale)
    plan = require_record(model).plan
    assert len(posteriors(model)) == len(plan.sites)
    assert len(plan.sites) + len(plan.skipped) == len(list(plain.parameters()))
    expected = 0.0
    for site in plan.sites:
        tensor = plain.get_parameter(site.path).detach().double()
        if site.fixed_row is not None:
            keep = torch.arange(len(tensor)) != site.fixed_row
            tensor = tensor[keep]
        posterior = torch.distributions.Normal(tensor, site.initial_std)
        prior = torch.distributions.Normal(torch.zeros_like(tensor), 1.0)
        expected += torch.distributions.kl_divergence(posterior, prior).sum()
    torch.testing.assert_close(kl(model).double(), torch.as_tensor(expected), rtol=1e-5, atol=0)


@specimens
@hows
@scales
def test_state_dict_round_trip_keeps_means_and_scales(specimen, how, scale):
    _, model = build(specimen, how, scale)
    for parameter in model.parameters():
        parameter.data.add_(0.01 * torch.randn_like(parameter))
    torch.manual_seed(99)
    other = convert(specimen.build(), MeanField(how=how, scale=scale, biases=True))
    other.load_state_dict(model.state_dict(), strict=True)
    for (name, value), (_, copied) in zip(
        model.state_dict().items(), other.state_dict().items(), strict=True
    ):
        assert torch.equal(value, copied), name
    assert_same_draw(specimen, model.eval(), other.eval())


@specimens
@hows
def test_deepcopy_and_pickle_keep_behaviour(specimen, how):
    _, model = build(specimen, how)
    specimen.call(model.eval())
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert type(twin) is type(model)
        assert ties(twin) == ties(model)
        assert record_of(twin).plan == record_of(model).plan
        assert_same_draw(specimen, model, twin)
        assert not {id(p) for p in twin.parameters()} & {id(p) for p in model.parameters()}


def assert_same_draw(specimen: Specimen, left: nn.Module, right: nn.Module) -> None:
    torch.manual_seed(5)
    expected = specimen.call(left)
    torch.manual_seed(5)
    assert_same(specimen.call(right), expected)


@specimens
def test_a_converted_model_is_of_the_users_class_with_its_signature(specimen):
    plain, model = build(specimen)
    assert isinstance(model, type(plain))
    assert type(model).__name__ == type(plain).__name__
    assert type(model).__module__ == type(plain).__module__
    assert type(model).__doc__ == type(plain).__doc__
    assert inspect.signature(model.forward) == inspect.signature(plain.forward)
    for converted, original in zip(_layers(model), plain.modules(), strict=True):
        assert isinstance(converted, type(original))


def _layers(model: nn.Module) -> list[nn.Module]:
    sites = set(posteriors(model))
    return [module for module in model.modules() if module not in sites]


@specimens
def test_a_whole_model_file_brings_the_model_back(specimen):
    _, model = build(specimen)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    assert_same_draw(specimen, model.eval(), torch.load(file, weights_only=False).eval())


def test_convert_in_place_changes_the_model_itself():
    plain = nn.Sequential(nn.Linear(2, 2))
    assert convert_(plain, MeanField()) is plain
    assert len(posteriors(plain)) == 1


def test_buffers_and_hooks_still_act():
    specimen = next(s for s in SPECIMENS if s.name == "hooked")
    plain, model = build(specimen)
    with mean_weights(model):
        before = model(torch.zeros(1, 4))
        model.shift.zero_()
        assert not torch.equal(before, model(torch.zeros(1, 4)))
        torch.testing.assert_close(model(torch.zeros(1, 4)), plain.layer.bias[None] + 1.0)


def test_recurrent_layers_keep_no_stale_copy_of_their_weights():
    model = convert(nn.LSTM(3, 4), MeanField(biases=True))
    assert "_flat_weights" not in vars(model)
    assert model.to(torch.float64)(torch.randn(2, 1, 3).double())[0].dtype == torch.float64


def test_revert_gives_a_frozen_posterior_back_frozen():
    model = convert(nn.Linear(2, 2), MeanField())
    model.requires_grad_(False)
    assert not revert(model).weight.requires_grad


def test_revert_of_a_model_that_holds_a_converted_one_forgets_the_inner_record():
    outer = nn.Sequential(convert(nn.Linear(2, 2), MeanField()))
    back = revert(outer)
    assert type(back[0]) is nn.Linear
    assert convert(back[0], MeanField()) is not None


def test_revert_of_a_plain_model_is_a_copy():
    plain = nn.Linear(2, 2)
    assert torch.equal(revert(plain).weight, plain.weight)
    assert revert(plain) is not plain


def test_memory_format_survives_the_round_trip():
    plain = nn.Conv2d(4, 4, 3).to(memory_format=torch.channels_last)
    model = convert(plain, MeanField())
    assert model.weight.is_contiguous(memory_format=torch.channels_last)
    assert revert(model).weight.is_contiguous(memory_format=torch.channels_last)


def test_converting_twice_is_refused():
    model = convert(nn.Linear(2, 2), MeanField())
    with pytest.raises(ConversionError, match="it is converted already: call revert first"):
        convert(model, MeanField())
    with pytest.raises(ConversionError, match="it is Bayesian already: call revert first"):
        convert(nn.Sequential(model), MeanField())


def test_convert_wants_a_module():
    with pytest.raises(TypeError, match=r"model must be a torch\.nn\.Module, got int"):
        convert(3, MeanField())


def test_convert_wants_a_method_and_suggests_the_instance():
    with pytest.raises(TypeError, match=r"method must be a bayesify method.*MeanField\(\)\?"):
        convert(nn.Linear(2, 2), MeanField)
    with pytest.raises(TypeError, match="method must be a bayesify method, got 'mean_field'"):
        convert(nn.Linear(2, 2), "mean_field")


class Uncopyable(nn.Linear):
    def __deepcopy__(self, memo):
        raise RuntimeError("no copies")


def test_a_model_that_cannot_be_copied_can_be_converted_in_place():
    plain = Uncopyable(2, 2)
    with pytest.raises(ConversionError, match=r"cannot be copied \(no copies\); convert_"):
        convert(plain, MeanField())
    assert type(plain) is Uncopyable
    assert len(posteriors(convert_(plain, MeanField()))) == 1


def test_a_plain_model_has_no_record():
    with pytest.raises(TypeError, match=r"model must come from bayesify\.convert, got a plain Lin"):
        require_record(nn.Linear(2, 2))


def test_class_that_refuses_to_be_subclassed_leaves_the_model_unchanged():
    class Stubborn(nn.Linear):
        def __init_subclass__(cls, *, tag, **options):
            super().__init_subclass__(**options)

    model = nn.Sequential(nn.Linear(3, 3), Stubborn(3, 2))
    with pytest.raises(TypeError, match="tag"):
        convert_(model, MeanField())
    assert [name for name, _ in model.named_parameters()] == [
        "0.weight",
        "0.bias",
        "1.weight",
        "1.bias",
    ]
    assert type(model) is nn.Sequential
