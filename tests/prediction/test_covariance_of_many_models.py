"""`by="covariance"` on models that do unusual things: right, or refused with the reason."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import bayesify as bf
from bayesify.conversion.scope import forward_by
from bayesify.prediction.by_covariance import _bytes_per_example
from scales import set_stds

LIKELIHOOD = bf.GaussianRegression(1.0)


def bayesian(net, std=0.05, **options):
    return set_stds(bf.convert(net, bf.MeanField(biases=True, **options)), std).eval()


def spread(model, x, by="covariance", **options):
    return bf.predict(model, x, by=by, likelihood=LIKELIHOOD, **options).epistemic


def ratio(model, x, num_samples=4000):
    """Return the variance over that of sampling; 4,000 draws find that to 2.2 %."""
    return spread(model, x) / spread(model, x, by="sample", num_samples=num_samples, seed=0)


class Layers(nn.Module):
    """Two layers, and something done between and behind them."""

    def __init__(self, between=torch.tanh, behind=lambda y: y):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(3, 6), nn.Linear(6, 2)
        self.between, self.behind = between, behind

    def forward(self, x):
        return self.behind(self.second(self.between(self.first(x))))


def test_any_layout_in_memory():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    model = bayesian(nn.Sequential(*net, nn.Linear(72, 3)))
    x = torch.randn(4, 3, 8, 8)
    wanted = spread(model, x)
    last = x.to(memory_format=torch.channels_last)
    torch.testing.assert_close(spread(model, last), wanted)
    torch.testing.assert_close(spread(model, last, memory_limit=1), wanted)
    model.to(memory_format=torch.channels_last)
    torch.testing.assert_close(spread(model, last), wanted)


class Token(nn.Module):
    """A token that starts at 0: at its mean the norm behind it has no slope to speak of."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.token = nn.Parameter(torch.zeros(1, 1, 8))
        self.norm, self.head = nn.LayerNorm(8, eps=1e-12), nn.Linear(8, 2)

    def forward(self, x):
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1)
        return self.head(self.norm(x)[:, 0])


def test_tensors_that_no_layer_reads_go_through_moments_too():
    model, x = bayesian(Token(), 0.01), torch.randn(3, 4, 8)
    found = ratio(model, x)
    assert ((found > 0.7) & (found < 1.2)).all()
    # At mean weights the slope is that of a division by nearly nothing.
    linearised = spread(model, x, by="linearised") / spread(model, x)
    assert linearised.min() > 1e4


class Asking(nn.Module):
    """Asks for a value, as models of language do of their masks, and reads a table."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.mix, self.head = nn.Embedding(7, 5), nn.Linear(5, 5), nn.Linear(5, 2)

    def forward(self, tokens, mask):
        mask = torch.ones_like(mask) if bool(mask.all()) else mask
        x = self.table(tokens) * mask[..., None]
        return self.head(F.gelu(self.mix(x)).mean(1))


def test_a_model_that_asks_for_values():
    model = bayesian(Asking())
    mask = torch.tensor([[1.0, 1, 1], [1, 1, 0]])
    inputs = {"tokens": torch.tensor([[1, 2, 1], [3, 4, 0]]), "mask": mask}
    assert (ratio(model, inputs).log().abs() < 0.12).all()


def test_what_is_dropped_while_it_predicts_is_noise():
    model = bayesian(Layers(lambda h: F.dropout(F.relu(h), 0.2)))
    assert (ratio(model, torch.randn(5, 3)).log().abs() < 0.15).all()


def test_what_is_dropped_for_certain_is_no_noise():
    model = bayesian(Layers(lambda h: torch.relu(F.dropout(h, 1.0, training=True))))
    x = torch.randn(5, 3)
    torch.testing.assert_close(spread(model, x), spread(model, x, "moments"))  # of the last bias


@pytest.mark.parametrize("by", ["covariance", "linearised"])
def test_hooks_of_the_user_are_heeded(by):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 40), nn.ReLU(), nn.Linear(40, 3))
    model, x = bayesian(net, 0.3), torch.randn(5, 6)
    wanted = spread(model, x, by)
    for layer in (model[0], model[2]):
        layer.register_forward_hook(lambda *call: None)
    torch.testing.assert_close(spread(model, x, by), wanted)
    model[2].register_forward_hook(lambda layer, given, output: 2.0 * output)
    torch.testing.assert_close(spread(model, x, by), 4.0 * wanted)
    model[0].register_forward_pre_hook(lambda layer, given: (0.5 * given[0],))
    torch.testing.assert_close(spread(model, 2.0 * x, by), 4.0 * wanted)


@pytest.mark.parametrize("by", ["covariance", "linearised"])
def test_half_precision_by_autocast_leaves_a_root(by):
    torch.manual_seed(0)
    model = bayesian(nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 100)))
    set_stds(model[2], 1e-6)
    x = torch.randn(3, 16)
    wanted = spread(model, x, by)
    with torch.autocast("cpu", torch.bfloat16):
        found = bf.predict(model, x, by=by, likelihood="classification")
        assert found.probs.isfinite().all()
        torch.testing.assert_close(spread(model, x, by), wanted, rtol=0.1, atol=0.05 * wanted.max())


def test_compiled_parts_are_looked_at():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 40), nn.ReLU(), nn.Linear(40, 3))
    model, x = bayesian(net, 0.3), torch.randn(5, 6)
    wanted = spread(model, x)
    model[1].compile(backend="eager")
    torch.testing.assert_close(spread(model, x), wanted)
    model.compile(backend="aot_eager")
    torch.testing.assert_close(spread(model, x), wanted)


def test_detached_values_keep_their_noise():
    model, x = bayesian(Layers(lambda h: torch.tanh(h).detach())), torch.randn(5, 3)
    torch.testing.assert_close(spread(model, x), spread(bayesian(Layers()), x))


@torch.no_grad()
def _scaled(y):
    return 2 * y + 1


@torch.no_grad()
def _bent(h):
    return torch.tanh(h)


@pytest.mark.parametrize("parts", [{"behind": _scaled}, {"between": _bent}])
def test_parts_without_gradients_are_refused(parts):
    with pytest.raises(RuntimeError, match="without gradients"):
        spread(bayesian(Layers(**parts)), torch.randn(4, 3))


def test_checkpoints_are_refused():
    def again(h):
        return checkpoint(torch.tanh, h, use_reentrant=False)

    with pytest.raises(RuntimeError, match="gradient checkpoints"):
        spread(bayesian(Layers(again)), torch.randn(4, 3))


def test_what_is_written_over_is_refused():
    class Over(Layers):
        def forward(self, x):
            x = x.clone()
            h = torch.tanh(self.first(x))
            x.zero_()
            return self.second(h)

    with pytest.raises(RuntimeError, match="'first' was given is written over"):
        spread(bayesian(Over()), torch.randn(4, 3))


class Sorted(Layers):
    """Examples change places inside, and come back."""

    def forward(self, x, lengths):
        order = lengths.argsort()
        return super().forward(x[order])[order.argsort()]


def test_examples_that_change_places():
    x = torch.randn(4, 3) * torch.tensor([[0.1], [1.0], [3.0], [10.0]])
    model, plain = bayesian(Sorted()), bayesian(Layers())
    found = spread(model, (x, torch.tensor([4, 2, 3, 1])))
    torch.testing.assert_close(found, spread(plain, x))


def test_examples_that_see_each_other_are_refused():
    model = bayesian(Layers(lambda h: torch.tanh(h - h.mean(0))))
    for options in ({}, {"memory_limit": 1}):
        with pytest.raises(RuntimeError, match="they see each other"):
            spread(model, torch.randn(4, 3), **options)

    # In groups, and one on the other but not the other way round.
    def in_halves(h):
        return torch.cat([part - part.mean(0) for part in h.chunk(2)])

    def on_the_last(h):
        return torch.tanh(h) + F.pad(h[:-1], (0, 0, 1, 0))

    for between, number in ((in_halves, 4), (in_halves, 40), (on_the_last, 2), (on_the_last, 40)):
        with pytest.raises(RuntimeError, match="they see each other"):
            spread(bayesian(Layers(between)), torch.randn(number, 3))
    # An output of a sequence that is given by positions: its rows are no examples.
    torch.manual_seed(0)
    encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0)
    with pytest.raises(RuntimeError, match="do not come first"):
        spread(bayesian(encoder), torch.randn(5, 3, 8))


@pytest.mark.parametrize("number", [1, 4])
def test_rows_that_are_no_examples_are_refused(number):
    model = bayesian(Layers(behind=lambda y: y.flatten(0, 1)))
    with pytest.raises(ValueError, match=r"a row for each example, got outputs of shape"):
        spread(model, torch.randn(number, 5, 3))


def test_an_error_of_the_first_example_alone_says_so():
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, track_running_stats=False))
    with pytest.raises(ValueError, match="more than one") as caught:
        spread(bayesian(net), torch.randn(4, 3))
    assert "the first example alone" in "".join(caught.value.__notes__)


def test_an_example_that_is_no_number_leaves_the_others_alone():
    model, x = bayesian(Layers()), torch.randn(3, 3)
    x[1, 0] = torch.nan
    found = bf.predict(model, x, by="covariance", likelihood="classification")
    assert found.probs.isfinite().all(1).tolist() == [True, False, True]


def test_a_thousand_classes_that_share_their_noise():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1000))
    net[2].weight.data.add_(0.3)
    model = bayesian(net)
    set_stds(model[2], 1e-6)
    found = bf.predict(model, torch.randn(2, 16), by="covariance", likelihood="classification")
    assert found.probs.isfinite().all()


def test_what_lies_between_layers_counts_as_memory():
    class Wide(nn.Module):
        def __init__(self, factor):
            super().__init__()
            self.layer, self.head, self.factor = nn.Conv2d(1, 2, 1), nn.Linear(2, 10), factor

        def forward(self, x):
            x = F.interpolate(self.layer(x), scale_factor=float(self.factor))
            return self.head((x * x).mean((2, 3)))

    x = torch.randn(2, 1, 8, 8)
    taken = []
    for factor in (1, 8):
        model = bayesian(Wide(factor))
        with forward_by(model, "moments"):
            taken.append(_bytes_per_example(model, x, None))
    small, large = taken
    # Maps of 64 times the size, and gradients of ten outputs in them.
    assert large > 20 * small
    assert large > 4 * 10 * 2 * 64 * 64
