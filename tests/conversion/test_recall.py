"""Gradient checkpoints: the layers they call again see the draw of the forward they belong to."""

import copy

import pytest
import torch
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from bayesify.conversion import convert, mean_weights, one_sample
from bayesify.methods import MeanField
from conversion.checkpointed import (
    NETS,
    InsideAndOutside,
    assert_same,
    build,
    gradients,
    inputs,
    trained,
)
from specimens import SPECIMENS

# A reentrant checkpoint says so in the forward of an outer one, and without gradients.
pytestmark = pytest.mark.filterwarnings(
    "ignore:None of the inputs have requires_grad=True:UserWarning"
)
hows = pytest.mark.parametrize("how", ["sample", "local"])
reentrants = pytest.mark.parametrize("reentrant", [False, True], ids=["saved", "reentrant"])


@pytest.mark.parametrize("kind", NETS)
@hows
@reentrants
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_checkpoint_gives_the_gradients_of_the_same_draw(kind, how, reentrant, dropout):
    model = build(kind, how, dropout, biases=True)
    expected = trained(model, None)
    assert_same(trained(model, reentrant), expected)
    assert not torch.allclose(trained(model, reentrant, seed=8)[1], expected[1])


@hows
@reentrants
def test_the_generator_is_left_as_a_plain_backward_leaves_it(how, reentrant):
    model = build(InsideAndOutside, how, dropout=0.5)
    trained(model, None)
    expected = torch.get_rng_state()
    trained(model, reentrant)
    assert torch.equal(torch.get_rng_state(), expected)


@pytest.mark.parametrize("kind", NETS)
@reentrants
def test_frozen_posteriors_are_repeated_too(kind, reentrant):
    model = build(kind)
    model.a.requires_grad_(False)
    assert_same(trained(model, reentrant), trained(model, None))


@hows
@reentrants
@pytest.mark.parametrize("context", [mean_weights, one_sample])
def test_a_context_may_end_before_the_backward_pass(how, reentrant, context):
    def forward(model, x):
        with context(model):
            return model(x)

    model = build(InsideAndOutside, how)
    assert_same(trained(model, reentrant, forward), trained(model, None, forward))


def test_a_backward_pass_inside_one_sample_uses_its_draw():
    def forward(model, x):
        with one_sample(model):
            model(x).sum().backward(retain_graph=True)
            return model(x)

    model = build()
    assert_same(trained(model, False, forward), trained(model, None, forward))


@hows
@reentrants
@pytest.mark.parametrize("inner", [None, False, True], ids=["", "inner_saved", "inner_reentrant"])
def test_a_whole_model_under_a_checkpoint_draws_the_same_again(how, reentrant, inner):
    model = build(InsideAndOutside, how, dropout=0.5)

    def forward(model, x):
        return checkpoint(model, x, use_reentrant=reentrant)

    expected = trained(model, None)
    assert_same(trained(model, inner, forward), expected)
    if not reentrant:
        with set_checkpoint_early_stop(False):
            assert_same(trained(model, inner, forward), expected)


@reentrants
def test_later_steps_are_right_too(reentrant):
    model, x = build(InsideAndOutside), inputs()
    twin = copy.deepcopy(model)
    model.reentrant = reentrant
    for step in range(3):
        for each in (model, twin):
            torch.manual_seed(step)
            each(x).square().sum().backward()
            with torch.no_grad():
                each(x)
    assert_same(gradients(model), gradients(twin))


@hows
@reentrants
def test_gradient_checkpointing_of_a_hugging_face_model(how, reentrant):
    specimen = next(specimen for specimen in SPECIMENS if specimen.name == "gpt2")
    plain = specimen.build().double()
    model = convert(plain, MeanField(how=how, initial_std=0.1))
    twin = copy.deepcopy(model)
    # Its name from transformers 5.23 on; the one before warns there.
    name = "activation_checkpointing_enable"
    enable = getattr(model, name, None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": reentrant})
    for each in (model, twin):
        torch.manual_seed(4)
        specimen.call(each.train())[0].square().sum().backward()
    assert_same(gradients(model), gradients(twin))
