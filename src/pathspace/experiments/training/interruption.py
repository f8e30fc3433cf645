"""Ctrl-C and SIGTERM noted, so that a training can stop between two steps."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruption(Exception):
    """Raised at a safe point after a signal came; the engine handles it."""


class Watch:
    """Remembers a signal until it is convenient.

    Attributes:
        signal: the one that came, or 0.
    """

    def __init__(self) -> None:
        self.signal = 0

    def check(self) -> None:
        """Raise if a signal has come."""
        if self.signal:
            raise Interruption


@contextlib.contextmanager
def watching() -> Iterator[Watch]:
    """Note SIGINT and SIGTERM instead of dying of them; a second one ends the process at once.

    Only the main thread can do this; in others nothing changes.

    Example:
        >>> with watching() as watch:
        ...     signal.raise_signal(signal.SIGTERM)
        ...     watch.signal == signal.SIGTERM
        True
    """
    watch = Watch()
    if threading.current_thread() is not threading.main_thread():
        yield watch
        return
    before: dict[int, Any] = {}

    def restore() -> None:
        while before:
            number, handler = before.popitem()
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)

    def note(number: int, frame: FrameType | None) -> None:
        watch.signal = number
        restore()

    for number in SIGNALS:
        before[number] = signal.signal(number, note)
    try:
        yield watch
    finally:
        restore()
