"""Means over seeds, and how numbers are written on the page."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

NOTHING = "\N{EN DASH}"
MINUS = "\N{MINUS SIGN}"
_MOST_DECIMALS = 6


@dataclass(frozen=True)
class Average:
    """A mean over runs, with the std between them where there are several."""

    mean: float
    std: float | None
    num: int


@dataclass(frozen=True)
class Written:
    """A number as it stands on the page, and its spread where it has one."""

    text: str
    spread: str = ""


def average(values: Iterable[float | None]) -> Average | None:
    """Return the mean of what is there, with the sample std, or None if nothing is there."""
    present = [value for value in values if value is not None]
    if not present:
        return None
    is_finite = all(map(math.isfinite, present))
    mean = statistics.fmean(present) if is_finite else sum(present) / len(present)
    std = statistics.stdev(present) if is_finite and len(present) > 1 else None
    return Average(mean, std, len(present))


def decimal(value: Average | float | None, decimals: int, scale: float = 1.0) -> Written:
    """Write a number with so many decimals, after it was multiplied by `scale`."""
    if value is None:
        return Written(NOTHING)
    if not isinstance(value, Average):
        value = Average(value, None, 1)
    spread = "" if value.std is None else f"± {_fixed(value.std * scale, decimals)}"
    return Written(_fixed(value.mean * scale, decimals), spread)


def percent(value: Average | float | None, decimals: int = 2) -> Written:
    """Write a fraction in percent, without the sign."""
    return decimal(value, decimals, scale=100.0)


def significant(value: Average | float | None, digits: int = 3) -> Written:
    """Write a number with at least so many significant digits, and its spread alike."""
    mean = value.mean if isinstance(value, Average) else value
    if mean is None or mean == 0 or not math.isfinite(mean):
        return decimal(value, 0)
    decimals = digits - 1 - math.floor(math.log10(abs(mean)))
    return decimal(value, max(decimals, 0))


def duration(seconds: float) -> str:
    """Write a time in the two units that matter."""
    minutes, hours = seconds / 60, seconds / 3600
    if hours >= 1:
        return f"{int(hours)} h {int(minutes % 60)} min"
    if minutes >= 1:
        return f"{int(minutes)} min {int(seconds % 60)} s"
    return f"{seconds:.1f} s"


def counted(num: int, one: str, many: str | None = None) -> str:
    """Write how many of something there are."""
    return f"{num} {one}" if num == 1 else f"{num} {many or f'{one}s'}"


def _fixed(value: float, decimals: int) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else f"{MINUS}∞"
    # Beyond this, digits are noise and only widen the table.
    is_plain = abs(value) < 1e7 and decimals <= _MOST_DECIMALS
    text = f"{value:,.{decimals}f}" if is_plain else f"{value:.2e}"
    is_zero = not text.strip("-0.,")
    return text.lstrip("-") if is_zero else text.replace("-", MINUS)
