"""Write a recipe as TOML. The standard library reads TOML and does not write it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def to_toml(table: Mapping[str, Any]) -> str:
    """Return a mapping as TOML text; None, which TOML cannot say, is left out.

    Args:
        table: Text, numbers, booleans, lists of those, and mappings of the same.

    Raises:
        TypeError: A value is of a kind TOML cannot hold.
    """
    return "\n".join(_lines(table, ())).strip() + "\n"


def _lines(table: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    lines = []
    tables = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            tables[key] = value
        elif value is not None:
            lines.append(f"{_key(key)} = {_value(value, (*path, key))}")
    for key, value in tables.items():
        header = ".".join(_key(part) for part in (*path, key))
        lines += ["", f"[{header}]", *_lines(value, (*path, key))]
    return lines


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _text(key)


def _value(value: Any, path: tuple[str, ...]) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_value(entry, path) for entry in value)}]"
    raise TypeError(
        f"{'.'.join(path)} must be text, a number, true, false or a list of those to be written "
        f"as TOML, got {type(value).__name__}"
    )


def _number(value: float) -> str:
    if math.isfinite(value):
        text = repr(value)
        return text if any(mark in text for mark in ".e") else f"{text}.0"
    return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")


def _text(value: str) -> str:
    # A JSON string is a TOML string, but for DEL, which TOML wants escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
