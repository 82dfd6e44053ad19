"""Gradient checkpoints in several forwards: each is repeated with its own draw, or refused."""

import copy
import gc
import pickle
import weakref
from dataclasses import dataclass

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from bayesify.conversion import one_sample
from bayesify.conversion.posterior import posteriors
from conversion.checkpointed import (
    InsideAndOutside,
    Net,
    assert_same,
    build,
    gradients,
    inputs,
    trained,
)

# A reentrant checkpoint says so in the forward of an outer one, and without gradients.
pytestmark = pytest.mark.filterwarnings(
    "ignore:None of the inputs have requires_grad=True:UserWarning"
)
reentrants = pytest.mark.parametrize("reentrant", [False, True], ids=["saved", "reentrant"])


@reentrants
def test_two_forwards_each_with_its_own_backward_are_told_apart(reentrant):
    model = build(InsideAndOutside)
    apart = [trained(model, None, seed=seed) for seed in (1, 2)]
    expected = [sum(pair) for pair in zip(*apart, strict=True)]
    for first_backward in (0, 1):
        both, x = copy.deepcopy(model), inputs()
        both.reentrant = reentrant
        losses = []
        for seed in (1, 2):
            torch.manual_seed(seed)
            losses.append(both(x).square().sum())
        losses[first_backward].backward()
        losses[1 - first_backward].backward()
        assert_same(gradients(both, x), expected)


@reentrants
def test_two_forwards_in_one_backward_raise_a_clear_error(reentrant):
    model, x = build(), inputs()
    model.reentrant = reentrant
    loss = model(x).sum() + model(x).sum()
    with pytest.raises(RuntimeError, match=r"two forward passes with different draws.*one_sample"):
        loss.backward()


@reentrants
def test_after_that_error_training_goes_on(reentrant):
    model, x = build(), inputs()
    model.reentrant = reentrant
    with pytest.raises(RuntimeError, match="two forward passes"):
        (model(x).sum() + model(x).sum()).backward()
    gc.collect()
    model.zero_grad()
    x.grad = None
    torch.manual_seed(7)
    model(x).square().sum().backward()
    assert_same(gradients(model, x), trained(model, None))


@reentrants
def test_two_forwards_in_one_backward_are_fine_inside_one_sample(reentrant):
    def forward(model, x):
        with one_sample(model):
            return model(x) * model(2 * x)

    model = build(InsideAndOutside)
    assert_same(trained(model, reentrant, forward), trained(model, None, forward))


def test_two_forwards_in_one_backward_are_fine_under_local_reparameterisation():
    def forward(model, x):
        return model(x) * model(2 * x)

    model = build(how="local")
    assert_same(trained(model, False, forward), trained(model, None, forward))


@reentrants
def test_an_abandoned_forward_does_no_harm(reentrant):
    def forward(model, x):
        model(x)
        return model(x)

    model = build()
    assert_same(trained(model, reentrant, forward), trained(model, None, forward))


@reentrants
def test_a_failed_forward_does_no_harm(reentrant):
    def forward(model, x):
        with pytest.raises(RuntimeError):
            model(x[:, :2])
        return model(x)

    model = build()
    assert_same(trained(model, reentrant, forward), trained(model, None, forward))


@pytest.mark.parametrize("no_gradients", [torch.no_grad, torch.inference_mode])
@reentrants
def test_a_forward_without_gradients_in_between_does_no_harm(reentrant, no_gradients):
    def forward(model, x):
        output = model(x)
        with no_gradients():
            model(x)
        return output

    model = build()
    assert_same(trained(model, reentrant, forward), trained(model, None, forward))


@reentrants
def test_reading_a_weight_in_between_does_no_harm(reentrant):
    def forward(model, x):
        output = model(x)
        assert model.a.weight.norm() > 0
        return output

    model = build()
    assert_same(trained(model, reentrant, forward), trained(model, None, forward))


def test_a_retained_graph_can_be_walked_again_after_another_forward():
    def forward(model, x):
        loss = model(x).square().sum()
        loss.backward(retain_graph=True)
        model(x).sum().backward()
        return loss.sqrt()

    model = build(InsideAndOutside)
    assert_same(trained(model, False, forward), trained(model, None, forward))


def test_second_derivatives_are_those_of_the_same_draw():
    def forward(model, x):
        (slope,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
        return slope

    model = build(InsideAndOutside)
    assert_same(trained(model, False, forward), trained(model, None, forward))


@reentrants
def test_a_layer_called_by_itself_under_a_checkpoint_draws_its_own(reentrant):
    model, x = build(), inputs()
    held = model(x).sum()
    held.backward()
    model.zero_grad()
    torch.manual_seed(3)
    model.a(x).square().sum().backward()
    expected = gradients(model.a)
    model.zero_grad()
    torch.manual_seed(3)
    checkpoint(model.a, x, use_reentrant=reentrant).square().sum().backward()
    assert_same(gradients(model.a), expected)


@dataclass
class Answer:
    logits: torch.Tensor
    name: str = "answer"


@pytest.mark.parametrize(
    "wrap",
    [
        lambda y: (y, None),
        lambda y: {"logits": [y]},
        lambda y: Answer(y),
        lambda y: y[:, :2],
    ],
    ids=["tuple", "mapping", "record", "view"],
)
def test_any_kind_of_output_tells_forwards_apart(wrap):
    class Wrapped(Net):
        def forward(self, x):
            return wrap(super().forward(x))

    def tensor(output):
        while not isinstance(output, torch.Tensor):
            output = (
                output.logits
                if isinstance(output, Answer)
                else next(iter(output.values() if isinstance(output, dict) else output))
            )
        return output

    def forward(model, x):
        first, second = tensor(model(x)), tensor(model(x))
        second.sum().backward()
        return first

    model = build(Wrapped)
    assert_same(trained(model, False, forward), trained(model, None, forward))


def test_an_inner_tensor_alone_can_be_differentiated():
    class Auxiliary(Net):
        def forward(self, x):
            self.inner = self.through(self.block, x)
            return self.b(self.inner)

    def forward(model, x):
        model(x)
        return model.inner

    model = build(Auxiliary)
    assert_same(trained(model, False, forward), trained(model, None, forward))


def test_draws_are_freed_with_the_graph_and_records_do_not_pile_up():
    class Watched(Net):
        def block(self, x):
            self.draw = weakref.ref(self.a.weight)
            return super().block(x)

    model = build(Watched)
    model.reentrant = False
    output = model(inputs())
    assert model.draw() is None, "only a checkpoint has used it"
    for _ in range(5):
        output = model(inputs())
    output.sum().backward()
    del output
    model(inputs())
    assert all(len(site._records) <= 2 for site in posteriors(model))


def test_copies_carry_no_memory_of_past_forwards():
    model = build()
    output = model(inputs())
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert all(not site._records and not site._held for site in posteriors(twin))
    output.sum().backward()


def test_gradients_accumulate_over_checkpointed_forwards():
    model = build(InsideAndOutside)
    expected = [
        sum(parts) for parts in zip(*(trained(model, None, seed=s) for s in range(3)), strict=True)
    ]
    model.reentrant, x = False, inputs()
    for seed in range(3):
        torch.manual_seed(seed)
        model(x).square().sum().backward()
    assert_same(gradients(model, x), expected)


def test_a_draw_whose_generator_could_not_be_read_is_not_made_up(monkeypatch):
    # While a CUDA graph is captured nobody may look at the generator.
    monkeypatch.setattr("bayesify.conversion.posterior.generator_state", lambda device: None)
    model = build()
    model.reentrant = False
    with pytest.raises(RuntimeError, match="the state of the random generator at its draw is unk"):
        model(inputs()).sum().backward()
