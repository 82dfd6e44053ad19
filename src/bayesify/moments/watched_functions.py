"""Functions of one number at a time, seen at work: for what wants to know what noise becomes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import torch

from bayesify.moments.moments import Moments


class Watcher(Protocol):
    """Who looks at such functions."""

    def before(self, x: Moments) -> Moments:
        """Take what a function is given, and return what it is to be given."""
        ...

    def after(self, x: Moments, result: Moments) -> Moments:
        """Take what it was given and what it found, and return what it is to return."""
        ...


class _Watching(threading.local):
    """Who looks, in each thread; compiled code is never looked at."""

    watcher: Watcher | None = None


_watching = _Watching()


@contextmanager
def functions_watched(watcher: Watcher) -> Iterator[None]:
    """Show the activations of a pass to a watcher: all that `Elementwise` has moments of."""
    before = _watching.watcher
    _watching.watcher = watcher
    try:
        yield
    finally:
        _watching.watcher = before


def before_function(x: Moments) -> Moments:
    """Return what a function is to be given."""
    if torch.compiler.is_compiling() or _watching.watcher is None:
        return x
    return _watching.watcher.before(x)


def after_function(x: Moments, result: Moments) -> Moments:
    """Return what a function is to return."""
    if torch.compiler.is_compiling() or _watching.watcher is None:
        return result
    return _watching.watcher.after(x, result)
