"""Choices on the command line: TABLE.KEY=VALUE, with values as TOML has them."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from typing import Any


def read_assignments(assignments: Iterable[str]) -> dict[str, Any]:
    """Return the tables that assignments such as method.prior_std=0.2 and seed=1 describe."""
    tables: dict[str, Any] = {}
    for assignment in assignments:
        path, is_assigned, text = assignment.partition("=")
        table, *keys = path.strip().split(".")
        if not is_assigned or not ((all(keys) and keys) or table == "seed"):
            raise ValueError(
                f"--set must read TABLE.KEY=VALUE, such as method.prior_std=0.2, got {assignment!r}"
            )
        place = tables
        for key in [table, *keys][:-1]:
            place = place.setdefault(key, {})
        place[[table, *keys][-1]] = read_value(text)
    return tables


def read_value(text: str) -> Any:
    """Read a value as TOML does; what is not TOML is text, so names need no quotes."""
    try:
        return tomllib.loads(f"value = {text.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        return text.strip()
