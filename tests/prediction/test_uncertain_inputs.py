"""Inputs with a variance: against closed forms, against draws of inputs and weights; refused."""

from collections import UserDict
from collections.abc import MutableMapping

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import DataLoader

import bayesify as bf
from bayesify.batches import cut, drawn, split_batch
from bayesify.conversion.posterior import posteriors
from bayesify.prediction.by_linearisation import _Linearised
from scales import set_stds

REGRESSION = bf.GaussianRegression(1.0)
NUM_DRAWS = 40_000


def images(number: int = 6) -> bf.Moments:
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(number, 1, 8, 8, generator=generator)
    return bf.Moments(mean, 0.3 * torch.rand(number, 1, 8, 8, generator=generator))


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 12), nn.Tanh(), nn.Linear(12, 3)
    )


def bayesian(**options) -> nn.Module:
    return bf.convert(network(), bf.MeanField(initial_std=0.01, **options))


def line() -> tuple[nn.Module, Tensor, Tensor, bf.Moments]:
    """Return a linear layer of random weights, their means and variances, and uncertain inputs."""
    torch.manual_seed(0)
    model = bf.convert(nn.Linear(5, 3, bias=False).double(), bf.MeanField(initial_std=0.3))
    (site,) = posteriors(model)
    x = bf.Moments(torch.randn(4, 5).double(), torch.rand(4, 5).double())
    return model, site.mean.detach(), site.dense_variance().detach(), x


@pytest.mark.parametrize("by", ["moments", "covariance"])
def test_of_a_linear_layer_the_variance_is_that_of_a_product(by):
    model, w, s, x = line()
    (m, v) = x.pair()
    found = bf.predict(model, x, by=by, likelihood=REGRESSION)
    torch.testing.assert_close(found.mean, m @ w.T)
    torch.testing.assert_close(found.epistemic, v @ w.T.square() + (m.square() + v) @ s.T)


def test_covariance_knows_what_outputs_share_of_an_input():
    """Logits of one noisy input move together: their difference is surer than their variances."""
    torch.manual_seed(0)
    model = bf.convert(nn.Linear(1, 2, bias=False), bf.MeanField(initial_std=1e-6))
    with torch.no_grad():
        posteriors(model)[0].mean.fill_(1.0)
    x = bf.Moments(torch.zeros(1, 1), torch.full((1, 1), 9.0))
    apart = bf.predict(model, x, by="moments", likelihood="classification")
    together = bf.predict(model, x, by="covariance", likelihood="classification")
    assert float(apart.variance.max()) > 0.1
    assert float(together.variance.max()) < 1e-4


@pytest.mark.parametrize("how", ["sample", "local"])
def test_draws_of_inputs_and_weights_agree_with_what_is_carried(how):
    model, x = bayesian(how=how), images()
    sampled = bf.predict(
        model, x, by=how, likelihood=REGRESSION, num_samples=NUM_DRAWS, seed=0, memory_limit=2**28
    )
    certain = bf.predict(model, x.expected, by="moments", likelihood=REGRESSION)
    for by in ("moments", "covariance"):
        found = bf.predict(model, x, by=by, likelihood=REGRESSION)
        # Noise of the inputs is most of it.
        assert (found.epistemic > 2 * certain.epistemic).all()
        ratio = found.epistemic / sampled.epistemic
        if by == "covariance":
            # Four standard errors of the variance of so many draws, and what first order leaves.
            assert (ratio - 1).abs().max() < 4 * (2 / NUM_DRAWS) ** 0.5 + 0.1
        else:
            # That one pixel is seen by many units and positions is lost.
            assert 0.8 < float(ratio.median()) < 1.1
        spread = 3 * (sampled.epistemic / NUM_DRAWS).sqrt() + 0.02 * sampled.epistemic.sqrt()
        assert ((found.mean - sampled.mean).abs() < spread).all()


@pytest.mark.parametrize("by", ["moments", "covariance", "sample", "mean"])
def test_inputs_of_no_variance_are_as_certain_ones(by):
    model, x = bayesian(), images().expected
    options = {"by": by, "likelihood": REGRESSION, "num_samples": 5, "seed": 0}
    plain = bf.predict(model, x, **options)
    none = bf.predict(model, bf.Moments(x), **options)
    torch.testing.assert_close(none.mean, plain.mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(none.epistemic, plain.epistemic, equal_nan=True)
    if by != "sample":  # the numbers of a draw are used otherwise
        zero = bf.predict(model, bf.Moments(x, 0.0), **options)
        torch.testing.assert_close(zero.mean, plain.mean, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(zero.epistemic, plain.epistemic, equal_nan=True)


def test_at_the_mean_weights_inputs_are_at_their_means():
    model, x = bayesian(), images()
    found = bf.predict(model, x, by="mean", likelihood=REGRESSION)
    torch.testing.assert_close(
        found.mean, bf.predict(model, x.expected, by="mean", likelihood=REGRESSION).mean
    )


@pytest.mark.parametrize("by", ["moments", "covariance", "linearised"])
def test_batches_loaders_and_tuples_of_uncertain_inputs_are_one(by):
    model, x = bayesian(), images()
    options = {"by": by, "likelihood": REGRESSION}
    whole = bf.predict(model, x, **options)
    rows = [(bf.Moments(*pair), 0) for pair in zip(*x.pair(), strict=True)]
    for data in ((x,), [(x, torch.zeros(6))], DataLoader(rows, 4), [x]):
        found = bf.predict(model, data, **options)
        torch.testing.assert_close(found.epistemic, whole.epistemic, rtol=1e-4, atol=1e-7)
    parts = bf.predict(model, x, batch_size=4, **options)
    torch.testing.assert_close(parts.epistemic, whole.epistemic, rtol=1e-4, atol=1e-7)


class TwoInputs(nn.Module):
    """Adds an uncertain input by name to a certain one."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 2)

    def forward(self, first, second):
        return self.head(first + second)


@pytest.mark.parametrize("by", ["moments", "covariance", "linearised", "sample"])
def test_one_of_several_inputs_may_be_uncertain(by):
    torch.manual_seed(0)
    model = bf.convert(TwoInputs(), bf.MeanField(initial_std=1e-7))
    inputs = {"first": torch.randn(5, 3), "second": bf.Moments(torch.randn(5, 3), 0.5)}
    found = bf.predict(
        model, inputs, by=by, likelihood=REGRESSION, num_samples=NUM_DRAWS, seed=0, batch_size=2
    )
    known = 0.5 * model.head.weight_posterior.mean.square().sum(1).expand(5, 2)
    error = 4 * (2 / NUM_DRAWS) ** 0.5 if by == "sample" else 1e-4
    torch.testing.assert_close(found.epistemic, known.detach(), rtol=error, atol=0.0)


class Scaled(nn.Module):
    """Multiplies its input by a number that is known so well."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 2)

    def forward(self, x, scale):
        return self.head(x * scale)


@pytest.mark.parametrize("kind", [tuple, dict, UserDict])
@pytest.mark.parametrize("by", ["moments", "covariance", "linearised"])
def test_an_uncertain_number_for_all(by, kind):
    torch.manual_seed(0)
    model = bf.convert(Scaled(), bf.MeanField(initial_std=1e-7))
    weight, x = model.head.weight_posterior.mean.detach(), torch.randn(3, 4)
    inputs = {"x": x, "scale": bf.Moments(torch.tensor(1.3), 0.2)}
    given = tuple(inputs.values()) if kind is tuple else kind(inputs)
    found = bf.predict(model, given, by=by, likelihood=REGRESSION).epistemic
    # Rules take what features share as their own.
    known = x.square() @ weight.square().T if by == "moments" else (x @ weight.T).square()
    torch.testing.assert_close(found, 0.2 * known, rtol=1e-4, atol=1e-9)


def test_uncertain_inputs_count_towards_the_memory_limit_of_derivatives():
    model, example = bf.convert(nn.Linear(1000, 3), bf.MeanField()), torch.zeros(1, 1000)
    sizes = [_Linearised(model, example, [], 3, noisy).bytes_per_example for noisy in ([], [[0]])]
    assert sizes[1] - sizes[0] >= 4 * 3 * 1000


@pytest.mark.parametrize("by", ["moments", "covariance", "linearised", "sample", "mean"])
def test_no_uncertain_input_gives_no_prediction(by):
    found = bf.predict(bayesian(), images(0), by=by, likelihood=REGRESSION, num_samples=2)
    assert found.mean.shape == (0, 3)


def test_the_linearised_network_takes_noise_at_the_input_to_first_order():
    model, x = bayesian(), images()
    mean, variance = (each.double() for each in x.pair())
    options = {"by": "linearised", "likelihood": REGRESSION}
    certain = bf.predict(model, bf.Moments(x.expected), **options)
    torch.testing.assert_close(
        bf.predict(model, x.expected, **options).epistemic, certain.epistemic
    )
    plain = bf.revert(model).double().eval()
    jacobians = [torch.autograd.functional.jacobian(plain, each[None])[0] for each in mean]
    known = torch.stack([each.flatten(1).square() for each in jacobians])
    known = (known @ variance.flatten(1)[:, :, None])[..., 0].float()
    found = bf.predict(model, x, **options)
    torch.testing.assert_close(found.epistemic, certain.epistemic + known, rtol=1e-4, atol=1e-7)
    torch.testing.assert_close(found.mean, certain.mean)
    few = {"by": "linearised", "likelihood": "classification", "num_outputs": 3}
    torch.testing.assert_close(
        bf.predict(model, x, **few).probs,
        bf.predict(model, x, by="linearised", likelihood="classification").probs,
    )


def test_the_linearised_network_knows_inputs_that_are_one():
    torch.manual_seed(0)
    model = bf.convert(TwoInputs(), bf.MeanField(initial_std=1e-7))
    weight = model.head.weight_posterior.mean.detach()
    one, of_all = bf.Moments(torch.randn(5, 3), 0.5), bf.Moments(torch.randn(3), 0.5)
    pairs = {
        4.0: (one, one),
        2.0: (one, bf.Moments(one.expected, 0.5)),
        1.0: (one.expected, of_all),
    }
    for factor, inputs in pairs.items():
        found = bf.predict(model, inputs, by="linearised", likelihood=REGRESSION).epistemic
        known = (factor * 0.5 * weight.square().sum(1)).expand(5, 2)
        torch.testing.assert_close(found, known, rtol=1e-4, atol=0.0)


def test_what_cannot_take_uncertain_inputs_says_so():
    model = bayesian()
    nothing = bf.Moments(torch.zeros(2, 1, 8, 8), -0.5)
    for by in ("moments", "covariance", "linearised", "sample"):
        with pytest.raises(ValueError, match=r"at least 0, got -0\.5"):
            bf.predict(model, nothing, by=by, likelihood=REGRESSION)
    norms = bf.convert(nn.Sequential(network(), nn.BatchNorm1d(3)), bf.MeanField())
    for verb in (bf.correct_moments, bf.refresh_norms):
        with pytest.raises(ValueError, match=r"at least 0, got -0\.5"):
            verb(norms, [nothing])
    with pytest.raises(TypeError, match="targets must be a tensor, got Moments"):
        split_batch((images(), images()))
    with pytest.raises(TypeError, match="variance must be a tensor, a number or None, got str"):
        bf.Moments(torch.ones(2), "large")


def by_all(model: nn.Module, inputs) -> dict[str, Tensor]:
    options = {"likelihood": REGRESSION, "num_samples": NUM_DRAWS, "seed": 0}
    ways = ("moments", "covariance", "sample")
    return {by: bf.predict(model, inputs, by=by, **options).epistemic for by in ways}


class CallsItself(nn.Module):
    """Flattens what it is given, or widens it, and begins anew."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, x, is_first=True):
        return self(self.first(x.flatten(1)), is_first=False) if is_first else self.second(x)


@pytest.mark.parametrize("variance", [None, 1.0])
def test_noise_enters_once_in_a_model_that_calls_itself(variance):
    torch.manual_seed(0)
    model = bf.convert(CallsItself(), bf.MeanField(initial_std=0.05))
    found = by_all(model, bf.Moments(torch.randn(4, 2, 3), variance))
    error = 5 * (2 / NUM_DRAWS) ** 0.5
    torch.testing.assert_close(found["covariance"], found["sample"], rtol=error, atol=0.0)


def test_inputs_are_noted_before_hooks_mix_them():
    torch.manual_seed(0)
    model = bf.convert(nn.Linear(4, 2), bf.MeanField(initial_std=1e-6))
    model.register_forward_pre_hook(lambda _, args: (args[0].mean(1, keepdim=True).expand(-1, 4),))
    found = by_all(model, bf.Moments(torch.randn(3, 4), 1.0))
    known = model.weight_posterior.mean.sum(1).square().expand(3, 2).detach() / 4
    torch.testing.assert_close(found["covariance"], known, rtol=1e-4, atol=0.0)
    error = 5 * (2 / NUM_DRAWS) ** 0.5
    torch.testing.assert_close(found["sample"], known, rtol=error, atol=0.0)


def test_one_input_given_twice_is_one():
    class Difference(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(3, 2)

        def forward(self, first, second):
            return self.head(first - second)

    model = bf.convert(Difference(), bf.MeanField(initial_std=1e-7))
    one = bf.Moments(torch.ones(2, 3), 1.0)
    for by, spread in by_all(model, (one, one)).items():
        assert float(spread.max()) < 1e-10, by
    other = bf.Moments(torch.ones(2, 3), 1.0)
    for by, spread in by_all(model, (one, other)).items():
        assert float(spread.min()) > 0.01, by


def test_a_limit_of_memory_counts_inputs_that_are_drawn():
    model = bf.convert(nn.Linear(1000, 2), bf.MeanField())
    x = bf.Moments(torch.zeros(100, 1000), 1.0)
    found = bf.predict(
        model, x, by="sample", likelihood=REGRESSION, num_samples=9, memory_limit=4 * 2**20
    )
    # An input of 0.4 MB and its noise, three times over: three draws at once, not nine.
    assert "in chunks of 3" in found.made_by
    plain = bf.predict(
        model, x.expected, by="sample", likelihood=REGRESSION, num_samples=9, memory_limit=4 * 2**20
    )
    assert "in chunks of 9" in plain.made_by


class Own(MutableMapping):
    """A mapping that keeps its entries elsewhere, so that a copy of it has the same."""

    def __init__(self, **entries) -> None:
        self.entries = entries

    def __getitem__(self, key):
        return self.entries[key]

    def __setitem__(self, key, value):
        self.entries[key] = value

    def __delitem__(self, key):
        del self.entries[key]

    def __iter__(self):
        return iter(self.entries)

    def __len__(self):
        return len(self.entries)


@pytest.mark.parametrize("kind", [dict, UserDict, Own])
@pytest.mark.parametrize("by", ["sample", "moments", "mean"])
def test_a_mapping_of_the_users_is_left_as_it_was(kind, by):
    torch.manual_seed(0)
    model = bf.convert(nn.Linear(3, 2), bf.MeanField(initial_std=1e-6))
    x = bf.Moments(torch.randn(10, 3), 1.0)
    inputs = kind(input=x)
    found = bf.predict(
        model, inputs, by=by, likelihood=REGRESSION, batch_size=4, num_samples=20, seed=0
    )
    assert found.mean.shape == (10, 2)
    assert inputs["input"] is x
    if by != "mean":
        assert (found.epistemic > 0.01).all()


def test_packed_sequences_are_cut_by_sequence():
    class Reads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.reader, self.head = nn.LSTM(3, 5), nn.Linear(5, 2)

        def forward(self, x):
            return self.head(self.reader(x)[1][0][0])

    torch.manual_seed(0)
    model = bf.convert(Reads(), bf.MeanField())
    rows = [torch.randn(length, 3) for length in (2, 6, 5, 1, 5, 3)]
    packed = pack_sequence(rows, enforce_sorted=False)
    whole = bf.predict(model, packed, by="mean", likelihood=REGRESSION).mean
    for size in (1, 4, 6):
        parts = bf.predict(model, packed, by="mean", likelihood=REGRESSION, batch_size=size)
        torch.testing.assert_close(parts.mean, whole)


WAYS = ["moments", "covariance", "sample", "local", "mean"]


@pytest.mark.parametrize("by", [*WAYS, "linearised"])
def test_norms_are_measured_on_inputs_as_the_way_reads_them(by):
    torch.manual_seed(0)
    model = bf.convert(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)), bf.MeanField())
    set_stds(model, 0.3)
    batches = [bf.Moments(torch.randn(100, 2), 4.0) for _ in range(200)]
    assert bf.refresh_norms(model, batches, by=by) == 1
    found = model[1].running_var
    w, s = model[0].weight_posterior.mean, model[0].weight_posterior.dense_variance()
    is_at_means = by in ("mean", "linearised")
    seen = 1.0 if is_at_means else 5.0
    known = seen * w.square().sum(1)
    if not is_at_means:
        known = known + seen * s.sum(1)
    # Of draws of weights there are 200, with squares of a relative deviation below 1.5.
    error = 4 * 1.5 / 200**0.5 if by == "sample" else 0.05
    torch.testing.assert_close(found, known.detach(), rtol=error, atol=0.0)


def test_factors_are_fitted_to_draws_of_inputs_too():
    model, x = bayesian(), images(32)
    torch.manual_seed(0)
    factors = bf.correct_moments(model, x, num_samples=400)
    # Behind one layer, whose outputs are normal, there is nothing to mend.
    assert factors["0"] == pytest.approx(1.0, abs=0.05)


def test_what_may_be_done_to_a_batch_is_done_to_both_tensors():
    x = images()
    inputs, targets = split_batch([x, torch.zeros(6)])
    assert inputs is x
    assert targets is not None
    assert split_batch(x) == (x, None)
    some = cut({"a": x, "b": torch.zeros(6), "c": torch.zeros(2)}, 6, 2, 5)
    assert torch.equal(some["a"].variance, x.variance[2:5])
    assert (len(some["b"]), len(some["c"])) == (3, 2)


def test_a_draw_has_the_mean_and_the_variance():
    torch.manual_seed(0)
    x = bf.Moments(torch.full((100_000,), 2.0), 0.25)
    draw = drawn((x, torch.ones(2)))[0]
    assert float(draw.mean()) == pytest.approx(2.0, abs=4 * 0.5 / 100_000**0.5)
    assert float(draw.var()) == pytest.approx(0.25, rel=4 * (2 / 100_000) ** 0.5)
    assert torch.equal(bf.Moments(torch.ones(3)).draw(), torch.ones(3))
    assert bf.Moments(torch.ones(3, dtype=torch.float16), 1.0).draw().dtype == torch.float16
