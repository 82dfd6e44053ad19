import pytest

from bayesify.training.schedule import (
    as_schedule,
    constant,
    cosine,
    cyclic,
    linear,
    schedules,
    steps,
    warm_up,
)


def test_schedules_pass_through_their_corners() -> None:
    assert constant(0.4)(0.7) == 0.4
    rise = warm_up(2.0, start=0.2, fraction=0.4)
    assert [rise(p) for p in (0.0, 0.2, 0.4, 0.6, 1.0)] == pytest.approx([0, 0, 1, 2, 2])
    assert [linear(0.2, 0.01)(p) for p in (0, 1)] == pytest.approx([0.2, 0.01])
    fall = cosine(1.0, end=0.1, warm_up=0.1)
    assert [fall(p) for p in (0, 0.05, 0.1, 0.55, 1)] == pytest.approx([0, 0.5, 1, 0.55, 0.1])
    wave = cyclic(1.0, num_cycles=2, ramp=0.5)
    assert [wave(p) for p in (0, 0.125, 0.25, 0.49, 0.5, 0.75, 1)] == pytest.approx(
        [0, 0.5, 1, 1, 0, 1, 1]
    )
    assert warm_up(fraction=0.0)(0.0) == 1.0


@pytest.mark.parametrize("name", list(schedules))
def test_every_schedule_stays_between_nothing_and_one(name: str) -> None:
    schedule = schedules[name]()
    values = [schedule(step / 100) for step in range(101)]
    assert min(values) >= 0
    assert max(values) <= 1


def test_as_schedule_takes_numbers_names_and_functions() -> None:
    assert as_schedule("beta", 0.5)(0.3) == 0.5
    assert as_schedule("beta", "linear")(0.3) == pytest.approx(0.3)
    assert as_schedule("beta", lambda progress: progress**2)(0.5) == 0.25
    with pytest.raises(ValueError, match="beta must be a finite number >= 0, got -1"):
        as_schedule("beta", -1)
    with pytest.raises(LookupError, match=r"unknown schedule 'warmup'\. Did you mean 'warm_up'"):
        as_schedule("beta", "warmup")
    with pytest.raises(ValueError, match="fraction must lie in"):
        warm_up(fraction=2.0)


def test_linear_holds_before_it_falls() -> None:
    schedule = as_schedule("schedule", {"name": "linear", "start": 1.0, "end": 0.0, "hold": 0.5})
    assert [schedule(x) for x in (0.0, 0.5, 0.75, 1.0)] == pytest.approx([1.0, 1.0, 0.5, 0.0])


def test_steps_change_at_their_shares() -> None:
    schedule = steps((0.1, 0.01, 0.001), at=(0.25, 0.5))
    assert [schedule(x) for x in (0.0, 0.24, 0.25, 0.6, 1.0)] == [0.1, 0.1, 0.01, 0.001, 0.001]
    with pytest.raises(ValueError, match="one more than the ascending shares"):
        steps((1.0, 0.1), at=(0.5, 0.2))


def test_a_table_names_a_schedule_and_its_options() -> None:
    schedule = as_schedule("beta", {"name": "warm_up", "start": 0.5, "fraction": 0.5, "value": 2.0})
    assert [schedule(x) for x in (0.0, 0.5, 0.75, 1.0)] == pytest.approx([0.0, 0.0, 1.0, 2.0])
    with pytest.raises(TypeError, match="begin"):
        as_schedule("beta", {"name": "warm_up", "begin": 0.5})
    with pytest.raises(TypeError, match=r"beta\.name must be the name of a schedule, got None"):
        as_schedule("beta", {"value": 0.5})


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"name": "constant", "value": -5.0}, "beta must be finite and >= 0 throughout"),
        ({"name": "warm_up", "start": "0.5"}, "beta: the schedule 'warm_up' cannot be made"),
        ({"name": "warm_up", "start": 2.0}, r"beta: .*start must lie in \[0, 1\]"),
        ({"name": "warm_up", "start": 0.8, "fraction": 0.5}, "start .* fraction must be at most 1"),
        ({"name": "steps", "values": 3}, "beta: the schedule 'steps' cannot be made"),
    ],
)
def test_a_table_that_makes_no_schedule_is_refused_by_name(table: dict, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        as_schedule("beta", table)


def test_no_schedule_at_all_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="beta must be a finite number >= 0, got None"):
        as_schedule("beta", None)
