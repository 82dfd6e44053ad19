"""Gradient checkpoints: the layers they call again see the draw of the forward they belong to."""

import copy
import gc
import pickle
import weakref
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from bayesify.conversion import convert, mean_weights, one_sample
from bayesify.conversion.posterior import posteriors
from bayesify.methods import MeanField
from specimens import SPECIMENS

# A reentrant checkpoint says so in the forward of an outer one, and without gradients.
pytestmark = pytest.mark.filterwarnings(
    "ignore:None of the inputs have requires_grad=True:UserWarning"
)
hows = pytest.mark.parametrize("how", ["sample", "local"])
reentrants = pytest.mark.parametrize("reentrant", [False, True], ids=["saved", "reentrant"])


class Net(nn.Module):
    """Two layers; the first one, or whatever `block` says, under a checkpoint."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 4)
        self.dropout = nn.Dropout(dropout)
        self.reentrant = None

    def block(self, x):
        return self.dropout(torch.tanh(self.a(x)))

    def through(self, function, x):
        if self.reentrant is None:
            return function(x)
        return checkpoint(function, x, use_reentrant=self.reentrant)

    def forward(self, x):
        return self.b(self.through(self.block, x))


class InsideAndOutside(Net):
    def forward(self, x):
        return self.b(self.a(self.through(self.block, self.a(x))))


class TwoRegions(Net):
    def forward(self, x):
        return self.b(self.through(self.block, self.through(self.block, x)))


class ReadsInside(Net):
    """Asks a layer for its weight's type: under "local" that draws inside the checkpoint."""

    def block(self, x):
        assert self.a.weight.dtype == torch.float64
        return self.dropout(torch.tanh(self.a(x) + x @ self.a.weight))

    def forward(self, x):
        return self.b(self.through(self.block, x)) @ self.a.weight


class Nested(Net):
    def block(self, x):
        return self.through(super().block, torch.tanh(self.b(x)))


NETS = (Net, InsideAndOutside, TwoRegions, ReadsInside, Nested)


def build(kind=Net, how="sample", dropout=0.0, **options):
    torch.manual_seed(2)
    net = kind(dropout).double()
    return convert(net, MeanField(how=how, initial_std=0.5, **options))


def inputs(seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(3, 4, dtype=torch.float64, generator=generator)
    return x.requires_grad_()  # a reentrant checkpoint wants an input with a gradient


def gradients(model, *extra):
    parameters = [*extra, *model.parameters()]
    return [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in parameters]


def trained(model, reentrant, forward=None, seed=7):
    """Return the gradients of one forward and backward on a copy of a model."""
    model, x = copy.deepcopy(model), inputs()
    model.reentrant = reentrant
    torch.manual_seed(seed)
    output = (forward or nn.Module.__call__)(model, x)
    output.square().sum().backward()
    return gradients(model, x)


def assert_same(left, right):
    assert len(left) == len(right)
    for a, b in zip(left, right, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


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


@hows
@reentrants
def test_gradient_checkpointing_of_a_hugging_face_model(how, reentrant):
    specimen = next(specimen for specimen in SPECIMENS if specimen.name == "gpt2")
    plain = specimen.build().double()
    model = convert(plain, MeanField(how=how, initial_std=0.1))
    twin = copy.deepcopy(model)
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    for each in (model, twin):
        torch.manual_seed(4)
        specimen.call(each.train())[0].square().sum().backward()
    assert_same(gradients(model), gradients(twin))
