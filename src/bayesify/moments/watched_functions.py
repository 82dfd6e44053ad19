"""Functions of one number at a time, seen at work: for who wants to know what noise becomes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import torch

from bayesify.moments.moments import Moments

Call = Callable[[Moments], Moments]


class Watcher(Protocol):
    """Who looks at such functions."""

    def around(self, x: Moments, function: Call) -> Moments:
        """Call a function, and return what it is to return."""
        ...

    def detached(self, x: Moments) -> Moments:
        """Return what is left of a value that is detached."""
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


def seen(x: Moments, function: Call) -> Moments:
    """Return what a function of one number at a time gives, before the eyes of who looks."""
    if torch.compiler.is_compiling() or _watching.watcher is None:
        return function(x)
    return _watching.watcher.around(x, function)


def detached(x: Moments) -> Moments:
    """Return a value without its gradient, unless who looks wants to know what becomes of it."""
    if torch.compiler.is_compiling() or _watching.watcher is None:
        return without_gradient(x)
    return _watching.watcher.detached(x)


def without_gradient(x: Moments) -> Moments:
    """Return a value that is detached."""
    variance = x.variance_or_none
    return Moments(x.expected.detach(), None if variance is None else variance.detach())
