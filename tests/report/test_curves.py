"""Curves say what the numbers say, whatever the numbers are, and never import pyplot."""

import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg

from bayesify.report import (
    Line,
    energy_figure,
    error_by_samples_figure,
    log_uniform_kl_figure,
    regression_figure,
    reliability_panels_figure,
    sparsity_figure,
)
from bayesify.report.curves import (
    confidence_figure,
    sample_ticks,
    scores_figure,
    set_spread_figure,
)
from bayesify.report.measurements import Bands, RegressionMeasurement, ReliabilityBins

LINE = Line("first", [1, 2, 3], [90.0, 60.0, 50.0], [5.0, 4.0, 3.0])


def drawn(figure) -> np.ndarray:
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())


def band(collection) -> tuple[float, float]:
    heights = collection.get_paths()[0].vertices[:, 1]
    return float(heights.min()), float(heights.max())


def legend(figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].texts]


def test_energy_is_drawn_with_its_band():
    figure = energy_figure({"": [LINE, Line("second", [1, 2], [80.0, 70.0], colour=1, style=1)]})
    (axes,) = figure.axes
    first, second = axes.lines
    assert list(first.get_ydata()) == [90.0, 60.0, 50.0]
    assert band(axes.collections[0]) == (47.0, 95.0)
    assert len(axes.collections) == 1
    assert first.get_color() != second.get_color()
    assert first.get_linestyle() != second.get_linestyle()
    assert legend(figure) == ["first", "second"]
    assert axes.get_yscale() == "linear"


def test_energy_that_spans_a_lot_has_a_logarithmic_axis():
    assert energy_figure({"": [Line("x", [1, 2], [1e5, 10.0])]}).axes[0].get_yscale() == "log"
    # A logarithm of what is below zero cannot be drawn.
    assert energy_figure({"": [Line("x", [1, 2], [1e5, -10.0])]}).axes[0].get_yscale() == "linear"


@pytest.mark.parametrize(
    "values",
    [[math.nan, math.nan], [math.inf, 1.0], [1e30, 1e-30], [0.0, 0.0], [-math.inf, math.nan]],
)
def test_energy_that_diverged_can_be_drawn(values):
    figure = energy_figure({"": [Line("x", [1, 2], values, [0.0, 0.0])]})
    assert drawn(figure).std() > 0
    assert all(not math.isinf(each) for each in figure.axes[0].lines[0].get_ydata())


def test_one_epoch_is_drawn_as_a_dot():
    (line,) = energy_figure({"": [Line("x", [1], [5.0])]}).axes[0].lines
    assert line.get_marker() == "o"


def test_epochs_are_whole_numbers():
    figure = energy_figure({"": [Line("x", [1, 2], [5.0, 4.0])]})
    drawn(figure)
    assert all(float(tick).is_integer() for tick in figure.axes[0].get_xticks())


@pytest.mark.parametrize("num", [1, 2, 4, 5, 8])
def test_sparsity_has_a_panel_for_each_layer_in_percent(num):
    panels = {f"layer {index}": [Line("x", [1, 2], [0.0, 0.1 * index])] for index in range(num)}
    figure = sparsity_figure({"": panels})
    assert [axes.get_title(loc="left") for axes in figure.axes] == list(panels)
    assert figure.axes[-1].lines[0].get_ydata()[1] == pytest.approx(10.0 * (num - 1))


def test_rows_of_sparsity_have_one_axis_each_that_shows_their_curves():
    low = {"a": [Line("x", [1, 2], [0.0, 0.04])], "b": [Line("x", [1, 2], [0.0, 0.01])]}
    high = {"a": [Line("x", [1, 2], [0.0, 0.9])], "b": [Line("x", [1, 2], [0.0, 0.02])]}
    figure = sparsity_figure({"weak": low, "elbo": high})
    tops = [axes.get_ylim()[1] for axes in figure.axes]
    assert tops == pytest.approx([4.08, 4.08, 102.0, 102.0])
    assert [part.get_suptitle() for part in figure.subfigs] == ["weak", "elbo"]


def test_sparsity_that_stays_at_zero_can_be_drawn():
    figure = sparsity_figure({"": {"all": [Line("x", [1, 2], [0.0, math.nan])]}})
    low, high = figure.axes[0].get_ylim()
    assert low < 0 < high


def test_error_is_drawn_in_percent_with_a_band_of_one_std():
    figure = error_by_samples_figure({"": [Line("x", [1, 200], [0.03, 0.02], [0.004, 0.001])]})
    (axes,) = figure.axes
    np.testing.assert_allclose(axes.lines[0].get_ydata(), [3.0, 2.0])
    assert band(axes.collections[0]) == pytest.approx((1.9, 3.4))
    assert axes.lines[0].get_marker() == "o"


def test_error_with_many_points_has_few_ticks_and_no_markers():
    x = list(range(1, 201))
    figure = error_by_samples_figure({"": [Line("x", x, [0.1 / each for each in x])]})
    drawn(figure)
    (axes,) = figure.axes
    labels = [text.get_text() for text in axes.get_xticklabels()]
    assert labels == ["1", "2", "5", "10", "20", "50", "100", "200"]
    assert len(axes.get_xticks(minor=True)) == 0
    assert axes.lines[0].get_marker() == "None"


@pytest.mark.parametrize(
    ("x", "ticks"),
    [
        ([], []),
        ([0, 1], []),
        ([1], [1]),
        ([3, 4], [3, 4]),
        ([3, 12], [5, 10]),
        ([1, 10], [1, 2, 5, 10]),
    ],
)
def test_ticks_stay_within_what_was_measured(x, ticks):
    assert sample_ticks(x) == ticks


@pytest.mark.parametrize("draw", [energy_figure, error_by_samples_figure])
def test_panels_share_the_horizontal_axis_and_one_legend(draw):
    curves = {
        "kl: elbo": [Line("a", [1, 9], [5.0, 4.0]), Line("b", [1, 9], [5.0, 3.0], style=1)],
        "kl: weak": [Line("b", [1, 2], [5.0, 3.0], style=1), Line("c", [1, 2], [4, 3], colour=1)],
    }
    figure = draw(curves)
    left, right = figure.axes
    assert left.get_xlim() == right.get_xlim()
    assert [axes.get_title(loc="left") for axes in figure.axes] == list(curves)
    assert legend(figure) == ["a", "b", "c"]
    assert left.get_ylabel()
    assert not right.get_ylabel()
    drawn(figure)
    height = left.get_window_extent().height / figure.dpi
    assert height > 2.4


def test_panels_have_their_own_height_where_scales_differ_a_lot():
    def limits(second):
        curves = {"a": [Line("x", [1, 2], [0.1, 0.2])], "b": [Line("x", [1, 2], second)]}
        return [axes.get_ylim() for axes in error_by_samples_figure(curves).axes]

    near, also_near = limits([0.1, 0.18])
    assert near == also_near
    far, own = limits([0.1, 0.101])
    assert far != own
    assert own[1] - own[0] < 1.0


def regression(scale: float = 1.0) -> RegressionMeasurement:
    bands = Bands((0.0, 1.0), (0.0, 1.0), (0.5 * scale,) * 2, (0.1 * scale,) * 2, (0.0, 1.0))
    return RegressionMeasurement(bands, (0.2, 0.6), (0.3, 0.5), {}, 0.1, 0.1)


def test_regression_has_bands_of_two_std_the_truth_and_its_points():
    figure = regression_figure(regression())
    (axes,) = figure.axes
    total, epistemic, points = axes.collections
    assert band(total) == pytest.approx((-1.0, 2.0))
    assert band(epistemic) == pytest.approx((-0.2, 1.2))
    np.testing.assert_allclose(points.get_offsets(), [[0.2, 0.3], [0.6, 0.5]])
    assert len(axes.lines) == 2


def test_a_band_that_strays_does_not_hide_the_data():
    low, high = regression_figure(regression(scale=1e6)).axes[0].get_ylim()
    assert (low, high) == pytest.approx((-0.5, 1.5))


def test_reliability_leaves_empty_bins_out_and_sizes_dots_by_count():
    bins = ReliabilityBins((None, 0.5, 0.9), (None, 0.4, 1.0), (0, 25, 100), 0.0213)
    empty = ReliabilityBins((None,), (None,), (0,), None)
    figure = reliability_panels_figure({"": {"net": bins, "nothing": empty}})
    first, second = figure.axes
    np.testing.assert_allclose(first.lines[1].get_xdata(), [0.5, 0.9])
    np.testing.assert_allclose(first.lines[1].get_ydata(), [0.4, 1.0])
    small, large = first.collections[0].get_sizes()
    assert small < large
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["net", "nothing"]
    assert [text.get_text() for text in first.texts] == ["ECE 2.13 %"]
    assert not second.texts
    assert len(second.lines[1].get_xdata()) == 0
    assert drawn(figure).std() > 0


def test_bins_of_few_predictions_are_faint_and_not_joined():
    bins = ReliabilityBins((0.2, 0.5, 0.7, 0.9), (1.0, 0.4, 0.0, 1.0), (9, 10, 1, 90), None)
    (axes,) = reliability_panels_figure({"": {"net": bins}}).axes
    np.testing.assert_allclose(axes.lines[1].get_xdata(), [0.5, 0.9])
    many, few = axes.collections
    np.testing.assert_allclose(few.get_offsets(), [[0.2, 1.0], [0.7, 0.0]])
    assert few.get_alpha() < many.get_alpha()


def exact_kl(log_alpha: np.ndarray) -> np.ndarray:
    """Return 2 ∫₀ˣ D(u) du with x = (2 alpha)^(-1/2), by quadrature."""
    from scipy.integrate import quad
    from scipy.special import dawsn

    ends = (2 * np.exp(log_alpha)) ** -0.5
    return np.array([2 * quad(dawsn, 0, end, limit=200)[0] for end in ends])


def test_kl_figure_shows_the_exact_kl_and_the_fits_beyond_alpha_one():
    values, errors = log_uniform_kl_figure().axes
    curves = {line.get_label(): line for line in values.lines}
    x, y = (np.asarray(torch.as_tensor(each)) for each in curves["exact"].get_data())
    assert (x[0], x[-1]) == (-8.0, 8.0)
    np.testing.assert_allclose(y[::80], exact_kl(x[::80]), rtol=1e-6)
    # Published errors of the fits: within 0.0095 everywhere, and without bound beyond alpha = 1.
    for line in errors.lines:
        error = np.abs(np.asarray(line.get_ydata()))
        if line.get_label() == "Molchanov's fit":
            assert 0.009 < error.max() < 0.0095
        if line.get_label() == "Kingma's cubic":
            assert error.max() < 0.036
        if line.get_label() == "Kingma's cubic beyond alpha = 1":
            assert error.max() > 1e6


@pytest.mark.parametrize("name", ["$x", r"\frac{$", "_hidden", ""])
def test_any_name_can_stand_in_a_legend(name):
    figure = energy_figure({"": [Line(name, [1, 2], [3.0, 2.0]), LINE]})
    assert drawn(figure).std() > 0
    assert len(legend(figure)) == (2 if name else 1)


def test_a_legend_of_many_long_names_stays_inside_the_figure():
    names = [f"frequentist start, multiplicative layer {index}" for index in range(8)]
    figure = energy_figure({"": [Line(name, [1, 2], [3.0, 2.0]) for name in names]})
    pixels = drawn(figure)
    box = figure.legends[0].get_window_extent()
    height, width = pixels.shape[:2]
    assert box.x0 >= 0
    assert box.x1 <= width
    assert box.y0 >= 0
    assert figure.axes[0].get_window_extent().height > 0.25 * height


def test_confidence_of_one_panel_stands_beside_its_size():
    accuracy = Line("x", [0.5, 1.0], [0.9, math.nan], [0.01, 0.0])
    figure = confidence_figure({"": [accuracy]}, {"": [Line("x", [0.5, 1.0], [0.98, 0.0])]})
    right, size = figure.axes
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == ["accuracy of the set", "size of the set, of all test data"]
    np.testing.assert_allclose(right.lines[0].get_ydata(), [90.0, math.nan])
    np.testing.assert_allclose(size.lines[0].get_ydata(), [98.0, 0.0])
    assert [text.get_text() for text in size.get_xticklabels()] == ["50", "100"]
    assert legend(figure) == ["x"]
    assert drawn(figure).std() > 0


def test_confidence_of_several_panels_stands_above_its_size_on_one_axis_each():
    accuracy = {
        name: [Line("x", [0.5, 1.0], [low, 0.99])] for name, low in (("a", 0.9), ("b", 0.93))
    }
    size = {name: [Line("x", [0.5, 1.0], [1.0, low])] for name, low in (("a", 0.5), ("b", 0.6))}
    figure = confidence_figure(accuracy, size)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["a", "b", "a", "b"]
    limits = [axes.get_ylim() for axes in figure.axes]
    assert limits[0] == limits[1] != limits[2] == limits[3]
    assert [part.get_suptitle() for part in figure.subfigs] == [
        "accuracy of the set",
        "size of the set, of all test data",
    ]


def test_a_spread_is_drawn_in_points_from_zero():
    figure = set_spread_figure({"": [Line("x", [0.5, 1.0], [0.004, 0.01])]})
    (axes,) = figure.axes
    np.testing.assert_allclose(axes.lines[0].get_ydata(), [0.4, 1.0])
    assert axes.get_ylim()[0] == 0.0


@pytest.mark.parametrize("is_log", [False, True])
def test_scores_stand_side_by_side_over_their_own_ticks(is_log):
    lines = [Line("a", [1, 10], [90.0, 95.0], [1.0, 2.0]), Line("b", [1], [80.0], colour=1)]
    rows = {"": {"accuracy, %": lines, "NLL": lines[:1]}}
    figure = scores_figure(rows, "$density", [1, 10], is_log=is_log)
    drawn(figure)
    first, second = figure.axes
    assert [axes.get_title(loc="left") for axes in (first, second)] == ["accuracy, %", "NLL"]
    for axes in (first, second):
        assert [text.get_text() for text in axes.get_xticklabels()] == ["1", "10"]
        assert axes.get_xlabel() == r"\$density"
        assert axes.get_xscale() == ("log" if is_log else "linear")
        assert len(axes.xaxis.get_minorticklocs()) == 0
    assert first.get_xlim() == second.get_xlim()
    assert list(first.lines[0].get_ydata()) == [90.0, 95.0]
    assert legend(figure) == ["a", "b"]


def test_drawing_never_imports_pyplot():
    code = (
        "import sys\n"
        "from bayesify.report import Line, energy_figure\n"
        "from bayesify.report.illustration import embedded\n"
        "assert 'matplotlib' not in sys.modules\n"
        "embedded(energy_figure({'': [Line('x', [1, 2], [3.0, 2.0])]}))\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
