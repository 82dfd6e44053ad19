"""Look things up by name or by type, with an error that lists what there is.

Two kinds are enough for the whole library: `Registry` for what people name in a recipe or on
the command line (methods, models, data sets, metrics), `TypeRegistry` for what code dispatches
on (divergences of a pair of distributions, functional forms of layers).
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar, cast

Entry = TypeVar("Entry")
Added = TypeVar("Added")


class Registry(Generic[Entry]):
    """Named entries of one kind.

    Args:
        kind: What an entry is, as it should read in an error: "model", "data set".
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, Entry] = {}

    def register(self, name: str) -> Callable[[Added], Added]:
        """Return a decorator that files its argument under `name` and keeps its type."""
        if name in self._entries:
            raise ValueError(f"{self.kind} {name!r} is registered twice")

        def add(entry: Added) -> Added:
            self._entries[name] = cast(Entry, entry)
            return entry

        return add

    def __getitem__(self, name: str) -> Entry:
        if name in self._entries:
            return self._entries[name]
        raise LookupError(unknown(self.kind, name, self._entries))

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._entries))

    def __len__(self) -> int:
        return len(self._entries)


class TypeRegistry(Generic[Entry]):
    """Entries keyed by a tuple of types; the closest registered ancestors win."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[tuple[type, ...], Entry] = {}

    def register(self, *types: type) -> Callable[[Added], Added]:
        """Return a decorator that files its argument under these types and keeps its type."""
        if types in self._entries:
            names = ", ".join(kind.__name__ for kind in types)
            raise ValueError(f"{self.kind} for ({names}) is registered twice")

        def add(entry: Added) -> Added:
            self._entries[types] = cast(Entry, entry)
            return entry

        return add

    def find(self, *types: type) -> Entry | None:
        """Return the entry for these types, or None."""
        best: tuple[tuple[int, ...], Entry] | None = None
        for keys, entry in self._entries.items():
            if len(keys) != len(types) or not all(map(issubclass, types, keys)):
                continue
            distance = tuple(kind.__mro__.index(key) for kind, key in zip(types, keys, strict=True))
            if best is None or distance < best[0]:
                best = (distance, entry)
        return best[1] if best else None

    def __iter__(self) -> Iterator[tuple[type, ...]]:
        return iter(self._entries)


def unknown(kind: str, name: str, known: Iterable[object]) -> str:
    """Return the sentence that says a name is unknown, what is closest, and what there is."""
    names = sorted(str(entry) for entry in known)
    close = difflib.get_close_matches(name, names, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return f"unknown {kind} {name!r}.{hint} Known: {', '.join(names) or 'none yet'}."
