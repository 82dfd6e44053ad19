"""Ctrl-C that waits for the step to end, so that a checkpoint is never of half a step."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class Interrupt:
    """Context in which Ctrl-C only sets a flag; a second one stops at once."""

    def __init__(self) -> None:
        self.was_asked = False
        self._previous: Any = None

    def __enter__(self) -> Interrupt:
        # Python delivers signals to the main thread only, and lets only that one listen.
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGINT, self._ask)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)

    def stop_if_asked(self) -> None:
        """Raise KeyboardInterrupt if Ctrl-C was pressed since the context was entered."""
        if self.was_asked:
            raise KeyboardInterrupt

    def _ask(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        if self.was_asked:
            raise KeyboardInterrupt
        self.was_asked = True
