"""Panels stand in rows, names fit above them, and the legend never takes their height."""

from itertools import pairwise

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from bayesify.report.panels import (
    NARROW,
    WIDE,
    legend_below,
    num_columns,
    one_panel,
    panels,
    share_heights,
    shortened,
)


@pytest.mark.parametrize(("num", "columns"), [(1, 1), (2, 2), (4, 4), (5, 3), (6, 3), (12, 4)])
def test_rows_are_as_full_as_they_can_be(num, columns):
    assert num_columns(num) == columns


def test_every_row_begins_anew_and_has_its_name():
    rows = {"first": dict.fromkeys("abcde", 1), "second": {"a": 2}}
    figure, places = panels(rows, height=3.0)
    assert [place.is_leftmost for place in places] == [True, False, False, True, False, True]
    assert [place.content for place in places] == [1] * 5 + [2]
    assert [place.row for place in places] == ["first"] * 5 + ["second"]
    assert [place.axes.get_title(loc="left") for place in places] == [*"abcde", "a"]
    assert [part.get_suptitle() for part in figure.subfigs] == list(rows)
    assert len(figure.axes) == 6
    assert figure.get_figwidth() == WIDE
    assert figure.get_figheight() >= 3 * 3.0


def test_one_panel_is_narrow():
    figure, _ = one_panel(3.0)
    assert (figure.get_figwidth(), figure.get_figheight()) == (NARROW, 3.0)


def test_long_names_stay_above_their_panels():
    names = [f"block.{index}.feed_forward.contract_and_normalise.weight" for index in range(4)]
    figure, places = panels({"": dict.fromkeys(names, 0)}, height=3.0)
    FigureCanvasAgg(figure).draw()
    for left, right in pairwise(places):
        end = left.axes._left_title.get_window_extent().x1
        assert end < right.axes._left_title.get_window_extent().x0


@pytest.mark.parametrize(
    ("names", "most", "expected"),
    [
        (["layers.a.weight", "all"], 20, ["layers.a.weight", "all"]),
        (["layers.a.weight", "b.weight"], 10, ["layers.a", "b"]),
        (["long.layers.a.weight"], 8, ["…ayers.a"]),
        ([], 8, []),
    ],
)
def test_names_are_shortened_alike_and_only_where_they_must_be(names, most, expected):
    assert list(shortened(names, most).values()) == expected


def test_a_legend_adds_its_own_height():
    figure, axes = one_panel(3.0)
    (line,) = axes.plot([0, 1])
    legend_below(figure, {f"a long name of a cell, number {index}": line for index in range(12)})
    FigureCanvasAgg(figure).draw()
    assert figure.get_figheight() > 4.0
    assert axes.get_window_extent().height / figure.dpi > 2.4


@pytest.mark.parametrize(
    ("scale", "first", "second", "is_shared"),
    [
        ("linear", (0.0, 10.0), (1.0, 7.0), True),
        ("linear", (0.0, 10.0), (1.0, 2.0), False),
        ("log", (1.0, 1e4), (1.0, 1e3), True),
        ("log", (1.0, 1e4), (1e5, 1e6), False),
    ],
)
def test_panels_share_an_axis_unless_it_would_press_one_flat(scale, first, second, is_shared):
    every = Figure().subplots(1, 2)
    for axes, limits in zip(every, (first, second), strict=True):
        axes.set(yscale=scale, ylim=limits)
    share_heights(every)
    assert (every[0].get_ylim() == every[1].get_ylim()) == is_shared


def test_panels_of_different_scales_share_nothing():
    left, right = Figure().subplots(1, 2)
    left.set(yscale="log", ylim=(1, 10))
    right.set(ylim=(0, 10))
    share_heights([left, right])
    assert left.get_ylim() == (1, 10)
    assert right.get_ylim() == (0, 10)
