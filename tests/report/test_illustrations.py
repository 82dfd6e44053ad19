"""Every figure a study has numbers for is drawn, once per protocol, and says what it shows."""

import base64

import pytest

from bayesify.report.curves import Line, energy_figure
from bayesify.report.illustration import embedded
from bayesify.report.illustrations import (
    history_lines,
    log_uniform_illustration,
    pooled,
    study_illustrations,
)
from bayesify.report.looks import Looks
from bayesify.report.measurements import ReliabilityBins


def captions(folder):
    return [
        each.caption.split(":")[0].split(";")[0] for each in study_illustrations(folder.study())
    ]


def test_a_pruning_study_has_four_figures_for_each_protocol(folder):
    folder.write()
    folder.write(cell="other", labels={"layer": "dense", "protocol": "tempered"})
    assert captions(folder) == [
        f"{what} ({protocol}){end}"
        for protocol in ("elbo", "tempered")
        for what, end in (
            ("Energy during training", "."),
            ("Test error against the number of weight samples", ""),
            ("Sparsity during training", "."),
            ("Reliability on test data", ""),
        )
    ]


def test_a_regression_is_drawn_for_each_cell(folder):
    folder.write("regression", history=[])
    folder.write("regression", history=[], cell="b", labels={"layer": "dense"})
    folder.write("regression", history=[], cell="b", labels={"layer": "dense"}, seed=1)
    assert captions(folder) == ["dense, seed 0", "frequentist, additive, elbo"]


@pytest.mark.parametrize("kind", ["speed", "gap"])
def test_a_study_without_curves_has_no_figures(folder, kind):
    folder.write(kind, history=[])
    assert study_illustrations(folder.study()) == ()


def test_what_was_not_measured_is_not_drawn(folder, cell):
    measured = cell()["measured"]
    del measured["error_by_samples"], measured["reliability"]
    folder.write(
        measured=measured, history=[{"epoch": 1, "nll": 0.1, "note": "x"}, {"energy": None}]
    )
    assert study_illustrations(folder.study()) == ()


def test_curves_of_seeds_are_averaged_where_all_are_known(folder):
    first = [{"epoch": 1, "energy": 10.0}, {"epoch": 2, "energy": 6.0}, {"epoch": 3, "energy": 5}]
    folder.write(seed=0, history=first)
    folder.write(seed=1, history=[{"epoch": 2, "energy": 8.0}, {"epoch": 1, "energy": 10.0}])
    study = folder.study()
    (line,) = history_lines(Looks(study), study.groups, "energy")
    assert (line.x, line.mean) == ([1.0, 2.0], [10.0, 7.0])
    assert line.std == [0.0, pytest.approx(2**0.5)]


def test_cells_of_one_kl_stand_together_in_words_and_figures(folder):
    for kl, energy in (("elbo", 500.0), ("weak", 1.0)):
        for layer in ("additive", "dense"):
            history = [{"epoch": 1, "energy": 2 * energy}, {"epoch": 2, "energy": energy}]
            labels = {"layer": layer, "kl": kl}
            folder.write(cell=f"{layer}-{kl}", labels=labels, history=history)
    energy, error, reliability = study_illustrations(folder.study())
    assert energy.alternative == (
        "Energy against the epoch. kl: elbo, additive ends at 500; kl: elbo, dense ends at 500; "
        "kl: weak, additive ends at 1; kl: weak, dense ends at 1."
    )
    assert energy.caption == "Energy during training; vertical axes differ."
    assert error.caption.endswith("deviation over repeats.")
    assert "kl: weak, dense: ECE 2.00 %" in reliability.alternative
    assert "fewer than 10 and are not joined" in reliability.caption
    assert energy.is_wide
    assert error.is_wide


def test_the_error_of_calibration_is_that_of_the_scores_where_bins_have_none(folder, cell):
    measured = cell()["measured"]
    del measured["reliability"]["ece"]
    folder.write(measured=measured)
    assert study_illustrations(folder.study())[-1].alternative.endswith("ECE 1.23 %.")


def test_bins_of_seeds_are_pooled_by_what_they_hold():
    first = ReliabilityBins((None, 0.5), (None, 0.4), (0, 30), 0.02)
    second = ReliabilityBins((0.1, 0.6), (0.0, 0.8), (5, 10), 0.04)
    found = pooled([first, second])
    assert found.count == (5, 40)
    assert found.confidence == (0.1, pytest.approx((0.5 * 30 + 0.6 * 10) / 40))
    assert found.accuracy == (0.0, pytest.approx((0.4 * 30 + 0.8 * 10) / 40))
    assert found.ece == pytest.approx(0.03)
    assert pooled([ReliabilityBins((None,), (None,), (0,), None)]).confidence == (None,)


def test_a_figure_is_an_image_of_its_own_and_the_same_each_time():
    first, second = (
        embedded(energy_figure({"": [Line("x", [1, 2], [2.0, 1.0])]})) for _ in range(2)
    )
    assert first == second
    kind, _, content = first.partition(",")
    assert kind == "data:image/svg+xml;base64"
    assert b"<svg" in base64.b64decode(content)


def test_words_tell_what_a_figure_shows(folder):
    folder.write()
    energy, error, sparsity, reliability = study_illustrations(folder.study())
    assert energy.alternative.endswith("frequentist, additive ends at 100.")
    assert error.alternative.endswith("frequentist, additive ends at 2 %.")
    assert sparsity.alternative == (
        "Sparsity against the epoch, in all layers, first. frequentist, additive ends at 60 %."
    )
    assert reliability.alternative == "One panel per network. frequentist, additive: ECE 2.00 %."
    assert [each.is_wide for each in (energy, error, sparsity, reliability)] == [
        False,
        False,
        True,
        False,
    ]
    assert "beyond, it falls without bound" in log_uniform_illustration().caption
