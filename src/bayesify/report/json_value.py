"""A value inside a JSON file that knows where it stands, so that an error can say so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


class ResultError(ValueError):
    """A result is not what it should be; the message says which file, and what is wrong with it."""


@dataclass(frozen=True)
class JsonValue:
    """A value of a JSON file, asked for what it should be.

    Attributes:
        file: Name of the file.
        value: The value itself.
        place: Where it stands in the file, such as `measured.prunings[0]`; empty at the top.
    """

    file: str
    value: Any
    place: str = ""

    def field(self, key: str) -> JsonValue:
        """Return the value of a key that must be there."""
        fields = self.fields()
        if key not in fields:
            found = ", ".join(fields) or "nothing"
            raise ResultError(
                f"{self.file} is damaged: {self._at(key)} is missing, found {found}; run the "
                "cell again"
            )
        return fields[key]

    def optional(self, key: str) -> JsonValue | None:
        """Return the value of a key, or None where it is absent or null."""
        found = self.fields().get(key)
        return None if found is None or found.value is None else found

    def fields(self) -> dict[str, JsonValue]:
        """Return the values of an object by their keys."""
        found = self._checked(dict, "an object")
        return {key: JsonValue(self.file, each, self._at(key)) for key, each in found.items()}

    def items(self) -> list[JsonValue]:
        """Return the values of a list."""
        found = self._checked(list, "a list")
        return [
            JsonValue(self.file, each, f"{self.place}[{index}]") for index, each in enumerate(found)
        ]

    def text(self) -> str:
        """Return a string."""
        return self._checked(str, "a string")

    def flag(self) -> bool:
        """Return true or false."""
        return self._checked(bool, "true or false")

    def whole(self) -> int:
        """Return a whole number."""
        return int(self._checked(int, "a whole number"))

    def number(self) -> float:
        """Return a number."""
        return float(self._checked((int, float), "a number"))

    def number_or_none(self) -> float | None:
        """Return a number, or None for null."""
        return None if self.value is None else self.number()

    def numbers(self) -> tuple[float, ...]:
        """Return a list of numbers."""
        return tuple(each.number() for each in self.items())

    def numbers_or_none(self) -> tuple[float | None, ...]:
        """Return a list of numbers and nulls."""
        return tuple(each.number_or_none() for each in self.items())

    def numbers_by_key(self) -> dict[str, float | None]:
        """Return the numbers and nulls of an object by their keys."""
        return {key: each.number_or_none() for key, each in self.fields().items()}

    def problem(self, expected: str) -> ResultError:
        """Return the error that says what this value should have been."""
        shown = repr(self.value)
        shown = shown if len(shown) <= 60 else f"{shown[:60]}..."
        name = self.place or "the file"
        return ResultError(
            f"{self.file} is damaged: {name} must be {expected}, got {shown}; run the cell again"
        )

    def _checked(self, kinds: type | tuple[type, ...], expected: str) -> Any:
        is_flag = isinstance(self.value, bool) and kinds is not bool
        if is_flag or not isinstance(self.value, kinds):
            raise self.problem(expected)
        return self.value

    def _at(self, key: str) -> str:
        return f"{self.place}.{key}" if self.place else key


def scalars(value: Any, place: str = "") -> dict[str, Any]:
    """Return every string, number, flag and null inside a JSON value, by where it stands.

    A list of scalars counts as one entry; any other list is followed.
    """
    if isinstance(value, dict):
        pairs = [(f"{place}.{key}" if place else str(key), each) for key, each in value.items()]
    elif isinstance(value, list) and any(isinstance(each, (dict, list)) for each in value):
        pairs = [(f"{place}[{index}]", each) for index, each in enumerate(value)]
    else:
        return {place: value}
    return {name: each for inner, part in pairs for name, each in scalars(part, inner).items()}
