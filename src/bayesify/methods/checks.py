"""Checks of a method's arguments: each names the argument, what was expected, and what came."""

from __future__ import annotations

from collections.abc import Sequence


def check_share(name: str, value: object, *, may_be_zero: bool = False) -> None:
    """Raise a ValueError unless a value is a share, above 0 or from 0 on."""
    least = 0.0 if may_be_zero else 5e-324  # the smallest number there is
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= 1:
        bounds = "[0, 1]" if may_be_zero else "(0, 1]"
        raise ValueError(f"{name} must lie in {bounds}, got {value!r}")


def check_choice(name: str, value: object, known: Sequence[str]) -> None:
    """Raise a ValueError unless a value is one of the known ones."""
    if value not in known:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, known))}, got {value!r}")
