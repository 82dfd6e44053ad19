"""Means over seeds are means, and numbers are written alike everywhere."""

import math

import pytest

from bayesify.report.averages import (
    Average,
    Written,
    average,
    counted,
    decimal,
    duration,
    percent,
    significant,
)


def test_average_is_the_mean_with_the_sample_std():
    found = average([1.0, 2.0, 6.0, None])
    assert found == Average(3.0, pytest.approx(math.sqrt(7.0)), 3)


def test_average_of_one_has_no_std_and_of_none_is_none():
    assert average([0.5]) == Average(0.5, None, 1)
    assert average([None, None]) is None
    assert average([]) is None


def test_a_run_that_diverged_shows_in_the_mean():
    found = average([1.0, math.nan])
    assert math.isnan(found.mean)
    assert found.std is None
    assert percent(found).text == "NaN"
    assert decimal(average([1.0, math.inf]), 2).text == "∞"
    assert decimal(-math.inf, 2).text == "\N{MINUS SIGN}∞"


def test_percent_has_two_decimals_and_the_spread_as_many():
    assert percent(0.98444) == Written("98.44")
    assert percent(Average(0.98444, 0.00052, 3)) == Written("98.44", "± 0.05")
    assert percent(0.5736, 1) == Written("57.4")
    assert percent(None) == Written("\N{EN DASH}")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (37.84, "37.8"),
        (313.4, "313"),
        (24600.0, "24,600"),
        (0.01234, "0.0123"),
        (0.0, "0"),
        (1e-9, "1.00e\N{MINUS SIGN}09"),
        (-1.234, "\N{MINUS SIGN}1.23"),
    ],
)
def test_significant_keeps_three_digits(value, text):
    assert significant(value).text == text


def test_huge_numbers_stay_short_and_zero_has_no_sign():
    assert decimal(1.5e30, 4).text == "1.50e+30"
    assert decimal(-0.001, 1).text == "0.0"


def test_durations_and_counts_are_words():
    assert [duration(each) for each in (3.21, 90, 3725)] == ["3.2 s", "1 min 30 s", "1 h 2 min"]
    assert [counted(num, "run") for num in (0, 1, 2)] == ["0 runs", "1 run", "2 runs"]
    assert counted(2, "study", "studies") == "2 studies"
