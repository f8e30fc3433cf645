"""Ctrl-C and SIGTERM noted, so that a training can stop between two steps, in all ranks at once."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from pathspace.experiments.training.distributed import ALONE, Ranks
from pathspace.experiments.training.errors import TrialInterrupted

SIGNALS = (signal.SIGINT, signal.SIGTERM)
ASK = 0.25  # seconds between two questions to the other ranks
WATCHES: list[Watch] = []  # those that note signals now


class Interruption(Exception):
    """Raised at a safe point after a signal came; the engine handles it."""


class Watch:
    """Remembers a signal until it is convenient, and convenient for all ranks.

    A signal may come to one rank, and to several at different steps, but all must stop after the
    same one. So the ranks ask each other, after a number of steps that all of them know.

    Args:
        ranks: who else has to stop.

    Attributes:
        signal: the one that came, or 0.
    """

    def __init__(self, ranks: Ranks = ALONE) -> None:
        self.signal, self.ranks = 0, ranks
        self._steps, self._interval, self._asked = 0, 1, time.monotonic()

    def check(self) -> None:
        """Raise if a signal has come to any rank; all ranks have to call this together."""
        (self.signal,) = self.ranks.largest(self.signal)
        if self.signal:
            raise Interruption

    def between_steps(self, *, due: bool) -> bool:
        """Raise if a signal has come; whether to do now what is due, the same in all ranks.

        Args:
            due: whether this rank would do it.
        """
        if self.ranks.size == 1:
            if self.signal:
                raise Interruption
            return due
        self._steps += 1
        if self._steps < self._interval:
            return False
        spent = int(1e6 * (time.monotonic() - self._asked))
        number, is_due, slowest = self.ranks.largest(self.signal, due, spent)
        # The slowest rank's time, so that all come to the same number of steps until next time.
        self._interval = max(1, min(2 * self._steps, int(ASK * 1e6 * self._steps / (slowest + 1))))
        self._steps, self._asked = 0, time.monotonic()
        if number:
            self.signal = number
            raise Interruption
        return bool(is_due)


@contextlib.contextmanager
def watching(ranks: Ranks = ALONE) -> Iterator[Watch]:
    """Note SIGINT and SIGTERM instead of dying of them; a second one ends the process at once.

    A signal that came too late for the training to stop is raised at the end, so that whoever has
    more to do stops.

    With several ranks, further ones change nothing: whoever launched them may pass on a signal that
    they have from the terminal already, and ends them at once if they take too long. Only the main
    thread can do this; in others nothing changes.

    Args:
        ranks: who else has to stop.

    Example:
        >>> try:
        ...     with watching() as watch:
        ...         signal.raise_signal(signal.SIGINT)
        ...         print("noted:", signal.Signals(watch.signal).name)
        ... except TrialInterrupted as stopped:
        ...     print(stopped)
        noted: SIGINT
        SIGINT: stopped when the training was over; the same command goes on
    """
    watch = Watch(ranks)

    def note(number: int, undo: Callable[[], None]) -> None:
        watch.signal = number
        if ranks.size == 1:
            undo()

    WATCHES.append(watch)
    try:
        with _handling(note):
            yield watch
    finally:
        WATCHES.remove(watch)
    if watch.signal and ranks.size == 1:
        name = signal.Signals(watch.signal).name
        raise TrialInterrupted(
            f"{name}: stopped when the training was over; the same command goes on", watch.signal
        )


def is_stopping() -> bool:
    """Whether a training has noted a signal and stops; the next signal would end it at once."""
    return any(watch.signal for watch in WATCHES)


@contextlib.contextmanager
def raising() -> Iterator[Watch]:
    """Let SIGINT and SIGTERM raise :class:`TrialInterrupted` wherever they find a command.

    So SIGTERM ends it as Ctrl-C does: what is open is closed, and workers are told. A second signal
    ends the process at once. Within :func:`watching`, signals are noted as ever. Only the main
    thread can do this; in others nothing changes.

    Example:
        >>> try:
        ...     with raising() as watch:
        ...         signal.raise_signal(signal.SIGTERM)
        ... except TrialInterrupted as stopped:
        ...     print(stopped)
        SIGTERM: stopped; the same command goes on
    """
    watch = Watch()

    def stop(number: int, undo: Callable[[], None]) -> None:
        watch.signal = number
        undo()
        name = signal.Signals(number).name
        raise TrialInterrupted(f"{name}: stopped; the same command goes on", number)

    with _handling(stop):
        yield watch


@contextlib.contextmanager
def deferring() -> Iterator[None]:
    """Have SIGINT and SIGTERM wait until something is done that must not be done by half.

    Example:
        >>> try:
        ...     with raising(), deferring():
        ...         signal.raise_signal(signal.SIGTERM)
        ...         print("done")
        ... except TrialInterrupted as stopped:
        ...     print(stopped)
        done
        SIGTERM: stopped; the same command goes on
    """
    noted: list[int] = []
    try:
        with _handling(lambda number, undo: noted.append(number)):
            yield
    finally:
        for number in noted:
            signal.raise_signal(number)


@contextlib.contextmanager
def _handling(handler: Callable[[int, Callable[[], None]], None]) -> Iterator[None]:
    """Have a handler get the signals; it is given the number, and what gives them back."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[int, Any] = {}

    def undo() -> None:
        while before:
            number, handled = before.popitem()
            signal.signal(number, handled if handled is not None else signal.SIG_DFL)

    def handle(number: int, frame: FrameType | None) -> None:
        handler(number, undo)

    for number in SIGNALS:
        before[number] = signal.signal(number, handle)
    try:
        yield
    finally:
        undo()
