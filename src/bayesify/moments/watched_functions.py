"""Functions of one number at a time, seen at work: for what wants to know what noise becomes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from bayesify.moments.moments import Moments

Note = Callable[[Moments, Moments], Moments]


class _Watching:
    """Who looks; a plain attribute, which the compiler guards."""

    note: Note | None = None


_watching = _Watching()


@contextmanager
def functions_watched(note: Note) -> Iterator[None]:
    """Show the input and the result of every such function, and take what comes back for it."""
    before = _watching.note
    _watching.note = note
    try:
        yield
    finally:
        _watching.note = before


def seen(x: Moments, result: Moments) -> Moments:
    """Return a result as who looks leaves it."""
    return result if _watching.note is None else _watching.note(x, result)
