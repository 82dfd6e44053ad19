"""One forward, one sample: how long a draw lives, and that nothing outlives its context."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bayesify.conversion import convert, mean_weights, one_sample
from bayesify.conversion.posterior import posteriors
from bayesify.conversion.scope import forward_by
from bayesify.methods import MeanField
from specimens import CalledTwice, Dense, SharedModule, TiedLanguageModel

X = torch.linspace(-1, 1, 12).view(3, 4)


class ReadsTwice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        difference = self.layer.weight - self.layer.weight
        return F.linear(x, difference), self.layer(x) - F.linear(x, self.layer.weight)


class RecordsWeights(nn.Module):
    """Keeps the weights that each of its parts reads in a forward."""

    def __init__(self, part):
        super().__init__()
        self.part = part
        self.seen = []
        for module in part.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                module.register_forward_hook(self.see)

    def see(self, module, args, output):
        self.seen.append(module.weight.detach().clone())

    def forward(self, x):
        self.seen.clear()
        return self.part(x)


class Fails(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.should_fail = False

    def forward(self, x):
        x = self.layer(x)
        if self.should_fail:
            raise RuntimeError("on purpose")
        return x


def converted(model, **options):
    return convert(model, MeanField(initial_std=0.5, **options))


def is_free(model):
    return all(not site._held and site._draw is None for site in posteriors(model))


def test_two_reads_in_one_forward_are_one_draw():
    model = nn.Sequential(converted(ReadsTwice()))
    zero, difference = model(X)
    assert (zero == 0).all()
    torch.testing.assert_close(difference, model[0].layer.bias.expand(3, 4))


def test_a_module_called_twice_uses_one_draw():
    model = converted(RecordsWeights(CalledTwice()))
    model(X)
    assert torch.equal(*model.seen)


@pytest.mark.parametrize("how", ["sample", "local"])
def test_a_module_under_two_names_uses_one_draw(how):
    model = converted(RecordsWeights(SharedModule()), how=how)
    model(X)
    assert torch.equal(*model.seen)


@pytest.mark.parametrize("how", ["sample", "local"])
def test_tied_weights_use_one_draw(how):
    model = converted(RecordsWeights(TiedLanguageModel()), how=how)
    model(torch.tensor([[0, 1, 2]]))
    table, _, head = model.seen
    assert torch.equal(table, head)
    assert model.part.embed.weight_posterior is model.part.head.weight_posterior


@pytest.mark.parametrize("how", ["sample", "local"])
def test_every_forward_draws_afresh(how):
    model = converted(Dense(), how=how)
    outputs = torch.stack([model(X) for _ in range(5)]).flatten(1)
    distances = torch.cdist(outputs, outputs) + torch.eye(5)
    assert (distances > 0).all()


def test_a_read_outside_a_forward_is_a_fresh_draw():
    layer = converted(nn.Linear(4, 4))
    assert not torch.equal(layer.weight, layer.weight)


def test_a_converted_model_inside_a_plain_one_draws_once_per_call_of_its_own():
    inner = converted(RecordsWeights(CalledTwice()))

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            first = self.inner(x)
            weights = [*self.inner.seen]
            return first, self.inner(x), [*weights, *self.inner.seen]

    first, second, (a, b, c, d) = Outer()(X)
    assert torch.equal(a, b)
    assert torch.equal(c, d)
    assert not torch.equal(a, c)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("how", ["sample", "local"])
def test_one_sample_holds_across_calls(how):
    model = converted(Dense(), how=how)
    with one_sample(model):
        first, second = model(X), model(X)
        assert torch.equal(first, second)
        rows = torch.cat([model(row[None]) for row in X])
        torch.testing.assert_close(rows, first)
    assert not torch.equal(model(X), first)
    assert is_free(model)
    assert all(site.how == how for site in posteriors(model))


def test_one_sample_draws_afresh_each_time_it_is_entered():
    model = converted(Dense())
    with one_sample(model):
        first = model(X)
    with one_sample(model):
        assert not torch.equal(model(X), first)


def test_an_inner_one_sample_keeps_the_outer_draw():
    model = converted(Dense())
    with one_sample(model):
        first = model(X)
        with one_sample(model):
            assert torch.equal(model(X), first)
        assert torch.equal(model(X), first)
    assert is_free(model)


def test_one_sample_of_a_part_leaves_the_rest_free():
    model = converted(Dense())
    with one_sample(model.hidden):
        first, second = model.hidden(X), model.hidden(X)
        assert torch.equal(first, second)
        assert not torch.equal(model(X), model(X))
    assert is_free(model)


def test_one_sample_gives_gradients_through_every_call():
    model = converted(Dense())
    with one_sample(model):
        (model(X).sum() + model(X).sum()).backward()
    together = [parameter.grad for parameter in model.parameters()]
    assert all(torch.isfinite(gradient).all() for gradient in together)
    assert all(gradient.abs().sum() > 0 for gradient in together)


@pytest.mark.parametrize("how", ["sample", "local"])
def test_mean_weights_have_no_noise_and_end_with_the_context(how):
    model = converted(Dense(), how=how)
    with mean_weights(model):
        assert torch.equal(model(X), model(X))
        with mean_weights(model):
            assert torch.equal(model(X), model(X))
        assert torch.equal(model(X), model(X))
    assert not torch.equal(model(X), model(X))
    assert all(site.how == how for site in posteriors(model))


def test_contexts_nest_in_either_order():
    model = converted(Dense())
    with one_sample(model):
        drawn = model(X)
        with mean_weights(model):
            mean = model(X)
        assert torch.equal(model(X), drawn)
    with mean_weights(model):
        with one_sample(model):
            assert torch.equal(model(X), mean)
        assert torch.equal(model(X), mean)
        with forward_by(model, "sample"), one_sample(model):
            assert not torch.equal(model(X), mean)
    assert is_free(model)


def test_forward_by_local_falls_back_where_there_is_no_rule():
    model = converted(TiedLanguageModel())
    with forward_by(model, "local"):
        ways = {site.how for site in posteriors(model)}
        assert ways == {"sample", "local"}
        assert model.embed.weight_posterior.how == "sample"
        assert model.mix.weight_posterior.how == "local"
    assert {site.how for site in posteriors(model)} == {"sample"}


def test_an_exception_in_forward_leaves_no_draw_behind():
    model = converted(Fails())
    model.should_fail = True
    for _ in range(2):
        with pytest.raises(RuntimeError, match="on purpose"):
            model(X)
        assert is_free(model)
    model.should_fail = False
    assert not torch.equal(model(X), model(X))


def test_an_exception_while_drawing_leaves_no_draw_behind():
    model = converted(Dense())
    good = model.head.weight_posterior.rho
    model.head.weight_posterior.rho = nn.Parameter(torch.zeros(2, 2))  # does not broadcast
    with pytest.raises(RuntimeError):
        model(X)
    assert is_free(model)
    with pytest.raises(RuntimeError), one_sample(model):
        pass
    assert is_free(model)
    model.head.weight_posterior.rho = good
    assert not torch.equal(model(X), model(X))


@pytest.mark.parametrize("context", [mean_weights, one_sample])
def test_an_exception_inside_a_context_ends_it(context):
    model = converted(Dense())
    with pytest.raises(RuntimeError, match="on purpose"), context(model):
        raise RuntimeError("on purpose")
    assert is_free(model)
    assert not torch.equal(model(X), model(X))


def test_a_copy_made_inside_a_context_is_free():
    model = converted(Dense())
    with one_sample(model):
        first = model(X)
        twin = copy.deepcopy(model)
        assert torch.equal(model(X), first)
    assert is_free(twin)
    assert not torch.equal(twin(X), twin(X))


def test_inference_mode_draws_and_leaves_training_possible():
    model = converted(Dense())
    with torch.inference_mode():
        assert not torch.equal(model(X), model(X))
        with one_sample(model):
            assert torch.equal(model(X), model(X))
    model(X).sum().backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters())
