import math

import numpy as np
import pytest

from bayesify.evaluation.significance import anova, interval, pairwise, rank_correlation


def test_interval_covers_the_mean_as_often_as_it_says():
    draws = np.random.default_rng(0).normal(3.0, 2.0, size=(2000, 5))
    covered = [found.low <= 3.0 <= found.high for found in map(interval, draws.tolist())]
    # 4 standard errors of a share of 0.95 among 2000.
    assert abs(np.mean(covered) - 0.95) < 4 * math.sqrt(0.95 * 0.05 / 2000)


def test_interval_of_one_run_is_endless():
    found = interval([0.5])
    assert (found.mean, found.low, found.high) == (0.5, -math.inf, math.inf)


def test_anova_rejects_as_often_as_its_level_when_nothing_differs():
    rows = np.random.default_rng(1).normal(size=(1500, 3, 5))
    rejected = [anova(dict(zip("abc", row.tolist(), strict=True))) < 0.05 for row in rows]
    assert abs(np.mean(rejected) - 0.05) < 4 * math.sqrt(0.05 * 0.95 / 1500)


def test_anova_sees_a_group_that_is_off():
    groups = {"a": [1.0, 1.1, 0.9], "b": [1.05, 0.95, 1.0], "c": [2.0, 2.1, 1.9]}
    assert anova(groups) < 1e-4
    assert anova({"a": [1.0, 1.0], "b": [1.0, 1.0]}) == 1.0


def test_pairs_are_mended_for_their_number():
    groups = {"a": [1.0, 1.1, 0.9], "b": [1.05, 0.95, 1.0], "c": [2.0, 2.1, 1.9]}
    found = pairwise(groups)
    assert set(found) == {("a", "b"), ("a", "c"), ("b", "c")}
    assert found["a", "b"] > 0.5
    assert found["a", "c"] < 0.01
    alone = pairwise({"a": groups["a"], "c": groups["c"]})["a", "c"]
    assert alone < found["a", "c"] <= 3 * alone
    rows = np.random.default_rng(2).normal(size=(600, 3, 5))
    family = [
        min(pairwise(dict(zip("abc", row.tolist(), strict=True))).values()) < 0.05 for row in rows
    ]
    assert np.mean(family) < 0.05 + 4 * math.sqrt(0.05 * 0.95 / 600)


def test_ranks_see_order_alone():
    statistic, p_value = rank_correlation([1, 2, 3, 4, 5, 6, 7], [1, 4, 9, 16, 25, 36, 49])
    assert statistic == pytest.approx(1.0)
    assert p_value < 0.01
    assert rank_correlation([1, 2, 3], [3, 2, 1])[0] == pytest.approx(-1.0)


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="b must hold 2 finite numbers or more"):
        anova({"a": [1.0, 2.0], "b": [1.0]})
    with pytest.raises(ValueError, match="a must hold 2 finite numbers"):
        pairwise({"a": [math.nan, 2.0], "b": [1.0, 2.0]})
    with pytest.raises(ValueError, match="anova needs two groups"):
        anova({"a": [1.0, 2.0]})
    with pytest.raises(ValueError, match="as long as each other, got 3 and 2"):
        rank_correlation([1, 2, 3], [1, 2])
