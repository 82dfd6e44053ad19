import dataclasses
import io
import sys

import pytest
import torch
from torch import nn

from bayesify.conversion import convert, kl, summary
from bayesify.conversion.posterior import Posterior, posteriors
from bayesify.distributions import Normal, NormalPrior
from bayesify.methods import Deterministic, MeanField
from specimens import SPECIMENS, Dense, TiedLanguageModel


def test_rows_hold_what_the_posteriors_say_now():
    model = convert(Dense(), MeanField(how="local", prior_std=0.5, initial_std=0.1))
    first, second = summary(model).rows
    assert first.path == "hidden.weight"
    assert first.shape == (5, 4)
    assert first.module == "Linear"
    assert first.family == "normal"
    assert first.prior == "normal(mean=0, std=0.5)"
    assert first.how == "local"
    assert (first.num_random, first.num_live, first.num_total) == (20, 20, 20)
    assert first.mean_std == pytest.approx(0.1, rel=1e-6)
    nn.init.constant_(model.head.weight_posterior.rho, 0.0)
    assert summary(model).rows[1].mean_std == pytest.approx(torch.tensor(2.0).log().item())
    assert second.mean_std == pytest.approx(0.1, rel=1e-6), "a summary is a record, not a view"


def test_totals_add_up():
    model = convert(Dense(), MeanField())
    result = summary(model)
    assert result.num_weights == sum(p.numel() for p in Dense().parameters()) == 43
    assert result.num_random == 35
    assert result.num_deterministic == 8
    assert result.kl == pytest.approx(kl(model).item())
    assert result.method == "mean_field"


def test_skipped_tensors_come_with_their_reasons():
    result = summary(convert(Dense(), MeanField(where="head")))
    assert {skip.path: skip.reason for skip in result.skipped} == {
        "hidden.weight": "not selected",
        "hidden.bias": "not selected",
        "head.bias": "bias or vector (biases=True makes biases Bayesian)",
    }


def test_tied_tensors_are_one_row_under_all_their_names():
    result = summary(convert(TiedLanguageModel(), MeanField()))
    assert result.rows[0].paths == ("embed.weight", "head.weight")
    assert "embed.weight = head.weight" in str(result)
    assert result.num_weights == sum(p.numel() for p in TiedLanguageModel().parameters())


def test_sparse_and_partial_tensors_are_counted_as_stored():
    model = convert(nn.Linear(4, 3, bias=False), MeanField())
    tensor = torch.randn(3, 4)
    model._modules["weight_posterior"] = Posterior(
        tensor,
        torch.full((3, 4), 0.2),
        Normal(),
        NormalPrior(),
        index=torch.arange(6),
        random_index=torch.arange(2),
    )
    result = summary(model)
    (row,) = result.rows
    assert (row.num_random, row.num_live, row.num_total) == (2, 6, 12)
    assert (result.num_weights, result.num_random, result.num_deterministic) == (12, 2, 4)
    assert row.mean_std == pytest.approx(0.2, rel=1e-6)


def test_a_tensor_with_nothing_random_has_no_std():
    model = convert(nn.Linear(2, 2, bias=False), MeanField())
    none = torch.empty(0, dtype=torch.long)
    model._modules["weight_posterior"] = Posterior(
        torch.ones(2, 2), torch.ones(2, 2), Normal(), NormalPrior(), random_index=none
    )
    assert summary(model).rows[0].mean_std is None
    assert str(summary(model)).splitlines()[3].endswith("0     4      4         -")


def test_the_text_is_an_aligned_table():
    model = convert(Dense(), MeanField(initial_std=0.125))
    assert str(summary(model)) == (
        "Dense: 2 of 4 tensors Bayesian by mean_field\n"
        "\n"
        "site           shape  module  family  prior                  KL      how     "
        "random  live  total  mean std\n"
        "hidden.weight  5x4    Linear  normal  normal(mean=0, std=1)  closed  sample  "
        "    20    20     20     0.125\n"
        "head.weight    3x5    Linear  normal  normal(mean=0, std=1)  closed  sample  "
        "    15    15     15     0.125\n"
        "\n"
        "deterministic  shape  why\n"
        "hidden.bias    5      bias or vector (biases=True makes biases Bayesian)\n"
        "head.bias      3      bias or vector (biases=True makes biases Bayesian)\n"
        "\n"
        f"43 weights: 35 random, 8 deterministic; KL {kl(model):.2f} nats"
    )


def test_a_plain_model_is_called_plain():
    result = summary(Dense())
    assert result.is_plain
    assert not result.rows
    assert str(result) == (
        "Dense: a plain model, not converted\n"
        "\n"
        "43 weights: 0 random, 43 deterministic; KL 0.00 nats"
    )


def test_a_lazy_or_empty_model_has_a_summary():
    assert summary(nn.LazyLinear(3)).num_weights == 0
    assert summary(nn.ReLU()).num_weights == 0


def test_a_method_without_a_posterior_lists_every_tensor():
    result = summary(convert(Dense(), Deterministic()))
    assert not result.is_plain
    assert len(result.skipped) == 4
    assert "0 of 4 tensors Bayesian by deterministic" in str(result)


def test_a_converted_model_inside_a_plain_one_is_found():
    outer = nn.Sequential(convert(nn.Linear(2, 2), MeanField()), nn.Linear(2, 2))
    result = summary(outer)
    assert [row.path for row in result.rows] == ["0.weight"]
    assert [skip.path for skip in result.skipped] == ["0.bias", "1.weight", "1.bias"]
    assert result.method is None


@pytest.mark.parametrize("specimen", SPECIMENS, ids=str)
def test_every_specimen_has_a_summary(specimen):
    plain = specimen.build()
    model = convert(plain, MeanField())
    result = summary(model)
    assert result.num_weights == sum(parameter.numel() for parameter in plain.parameters())
    assert result.num_random == sum(site.num_random for site in posteriors(model))
    assert result.num_random + result.num_deterministic == result.num_weights
    assert {row.path for row in result.rows} == {site.path for site in model.bayesify.plan.sites}
    assert "the method leaves it as it is" not in str(result)


def test_the_rows_cannot_be_changed():
    result = summary(Dense())
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.kl = 1.0


@pytest.mark.parametrize("width", [80, 140])
def test_rich_shows_the_same(width):
    file = io.StringIO()
    console = pytest.importorskip("rich.console").Console(width=width, file=file)
    model = convert(TiedLanguageModel(), MeanField(initial_std=0.125))
    console.print(summary(model))
    console.print(summary(Dense()))
    shown = file.getvalue()
    for part in ("2 of 3 tensors Bayesian", "mix.weight", "0.125", "biases=True", "a plain model"):
        assert part in shown
    assert max(map(len, shown.splitlines())) <= width


def test_plain_text_needs_no_rich(monkeypatch):
    for name in ("rich", *(name for name in sys.modules if name.startswith("rich."))):
        monkeypatch.setitem(sys.modules, name, None)
    result = summary(convert(nn.Linear(2, 2), MeanField()))
    assert str(result).startswith("Linear: 1 of 2 tensors Bayesian by mean_field")
    with pytest.raises(ImportError):
        result.__rich__()
