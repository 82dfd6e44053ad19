"""Schedules: a number as a function of how far training has come, from 0 to 1.

One kind serves both the weight of the KL (`beta`) and the learning rate. A recipe names one with
its options in a table: `beta = {name = "warm_up", start = 0.5}`. A schedule keeps no
state, so an interrupted run that resumes is at the same value.
"""

from __future__ import annotations

import inspect
import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bayesify.registry import Registry, unknown

Schedule = Callable[[float], float]
schedules: Registry[Callable[..., Schedule]] = Registry("schedule")


@schedules.register("constant")
def constant(value: float = 1.0) -> Schedule:
    """Return one value throughout."""
    return lambda _: value


@schedules.register("warm_up")
def warm_up(value: float = 1.0, *, start: float = 0.0, fraction: float = 0.5) -> Schedule:
    """Rise linearly from 0, beginning at `start` of the run, over `fraction` of it; then stay."""
    _check_fraction("start", start)
    _check_fraction("fraction", fraction)
    if start + fraction > 1.0 + 1e-9:
        raise ValueError(
            f"start + fraction must be at most 1, the whole run, got {start} + {fraction}"
        )
    if fraction == 0:
        return lambda progress: value if progress >= start else 0.0
    return lambda progress: value * min(max((progress - start) / fraction, 0.0), 1.0)


@schedules.register("linear")
def linear(start: float = 0.0, end: float = 1.0, *, hold: float = 0.0) -> Schedule:
    """Stay at `start` for `hold` of the run, then go to `end` in a straight line."""
    _check_fraction("hold", hold)

    def at(progress: float) -> float:
        rest = max(progress - hold, 0.0) / max(1.0 - hold, 1e-12)
        return start + (end - start) * min(rest, 1.0)

    return at


@schedules.register("steps")
def steps(values: Sequence[float] = (1.0, 0.1), *, at: Sequence[float] = (0.5,)) -> Schedule:
    """Take the first value, and each next one from its share `at` of the run on."""
    if len(values) != len(at) + 1 or list(at) != sorted(at):
        raise ValueError(
            "values must be one more than the ascending shares of the run in at, got "
            f"values={list(values)}, at={list(at)}"
        )
    for share in at:
        _check_fraction("at", share)
    return lambda progress: values[bisect_right(at, progress)]


@schedules.register("cosine")
def cosine(value: float = 1.0, *, end: float = 0.0, warm_up: float = 0.0) -> Schedule:
    """Rise linearly over `warm_up` of the run, then fall along half a cosine to `end`."""
    _check_fraction("warm_up", warm_up)

    def at(progress: float) -> float:
        if progress < warm_up:
            return value * progress / warm_up
        rest = (progress - warm_up) / max(1.0 - warm_up, 1e-12)
        return end + (value - end) * 0.5 * (1.0 + math.cos(math.pi * min(rest, 1.0)))

    return at


@schedules.register("cyclic")
def cyclic(value: float = 1.0, *, num_cycles: int = 4, ramp: float = 0.5) -> Schedule:
    """Rise linearly over `ramp` of each cycle and stay for its rest (Fu et al., 2019)."""
    _check_fraction("ramp", ramp)
    if num_cycles < 1:
        raise ValueError(f"num_cycles must be at least 1, got {num_cycles}")

    def at(progress: float) -> float:
        if progress >= 1.0:
            return value
        within = progress * num_cycles % 1.0
        return value if ramp == 0 else value * min(within / ramp, 1.0)

    return at


ScheduleChoice = float | str | Mapping[str, Any] | Schedule
"""A number, a registered name, a table of a name and its options, or a function of progress."""


def as_schedule(name: str, value: ScheduleChoice) -> Schedule:
    """Return the schedule that a setting called `name` chooses."""
    if callable(value):
        return value
    if isinstance(value, str):
        return schedules[value]()
    if isinstance(value, Mapping):
        return _from_table(name, value)
    if not isinstance(value, (int, float)) or not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{name} must be a finite number >= 0, got {value}")
    return constant(float(value))


def _from_table(name: str, table: Mapping[str, Any]) -> Schedule:
    if not isinstance(chosen := table.get("name"), str):
        raise TypeError(f"{name}.name must be the name of a schedule, got {chosen!r}")
    make = schedules[chosen]
    known = list(inspect.signature(make).parameters)
    options = {key: value for key, value in table.items() if key != "name"}
    for key in options:
        if key not in known:
            raise TypeError(unknown(f"option of the schedule {chosen!r}", key, known))
    try:
        schedule = make(**options)
        values = [float(schedule(progress)) for progress in (0.0, 0.5, 1.0)]
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}: the schedule {chosen!r} cannot be made: {error}") from error
    if not all(math.isfinite(value) and value >= 0 for value in values):
        raise ValueError(
            f"{name} must be finite and >= 0 throughout, got {values} at the beginning, in the "
            "middle and at the end of the run"
        )
    return schedule


def _check_fraction(name: str, value: float) -> None:
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{name} must lie in [0, 1], got {value}")
