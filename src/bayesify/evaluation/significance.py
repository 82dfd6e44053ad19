"""Do several runs differ by more than chance? Analysis of variance, pairs, ranks, intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

LEVEL = 0.01
"""The level below which the studies call a difference significant."""


@dataclass(frozen=True)
class Interval:
    """A mean over runs with its confidence interval, by Student's t."""

    mean: float
    low: float
    high: float


def interval(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """Return the mean and its confidence interval; one run alone has an endless one."""
    _check({"values": values}, least=1)
    mean = sum(values) / len(values)
    if len(values) == 1:
        return Interval(mean, -math.inf, math.inf)
    variance = sum((value - mean) ** 2 for value in values) / (len(values) - 1)
    reach = _stats().t.ppf(0.5 + confidence / 2, len(values) - 1) * math.sqrt(
        variance / len(values)
    )
    return Interval(mean, mean - float(reach), mean + float(reach))


def anova(groups: Mapping[str, Sequence[float]]) -> float:
    """Return the p-value of a one-way analysis of variance: do all groups have one mean?"""
    _check(groups, least=2)
    if len(groups) < 2:
        raise ValueError(f"anova needs two groups or more, got {sorted(groups)}")
    if len({value for values in groups.values() for value in values}) == 1:
        return 1.0  # nothing differs, and there is no variance to compare it with
    return float(_stats().f_oneway(*groups.values()).pvalue)


def pairwise(groups: Mapping[str, Sequence[float]]) -> dict[tuple[str, str], float]:
    """Return p-values of Welch's t-test for every two groups, mended for their number (Holm)."""
    _check(groups, least=2)
    pairs = list(combinations(groups, 2))
    raw = {
        pair: 1.0
        if len({*groups[pair[0]], *groups[pair[1]]}) == 1
        else float(_stats().ttest_ind(groups[pair[0]], groups[pair[1]], equal_var=False).pvalue)
        for pair in pairs
    }
    mended: dict[tuple[str, str], float] = {}
    largest = 0.0
    for place, pair in enumerate(sorted(pairs, key=raw.__getitem__)):
        largest = max(largest, min(1.0, raw[pair] * (len(pairs) - place)))
        mended[pair] = largest
    return {pair: mended[pair] for pair in pairs}


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> tuple[float, float]:
    """Return Spearman's rank correlation of two rows of numbers, and its p-value."""
    if len(first) != len(second) or len(first) < 3:
        raise ValueError(
            f"rank_correlation needs two rows of three numbers or more, as long as each other, got "
            f"{len(first)} and {len(second)}"
        )
    found = _stats().spearmanr(first, second)
    return float(found.statistic), float(found.pvalue)


def _stats() -> Any:
    from scipy import stats

    return stats


def _check(groups: Mapping[str, Sequence[float]], least: int) -> None:
    for name, values in groups.items():
        if len(values) < least or not all(math.isfinite(value) for value in values):
            raise ValueError(
                f"{name} must hold {least} finite numbers or more, one per run, got {list(values)}"
            )
