"""What goes wrong with trials: settings that do not fit, and interruptions."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from pathspace.errors import PathspaceError


class TrialError(PathspaceError, ValueError):
    """A setting of a trial is unknown or of the wrong type, or does not fit the others."""


class RankError(PathspaceError, RuntimeError):
    """Processes that train together are not together any more: one is gone, or differs."""


class TrialInterrupted(KeyboardInterrupt):
    """A signal ended the training; with a store, the same command goes on where it was.

    Attributes:
        signal: its number.
    """

    def __init__(self, message: str, signal: int) -> None:
        super().__init__(message)
        self.signal = signal


def unknown(kind: str, name: object, known: Iterable[str]) -> TrialError:
    """An error that names what is unknown and suggests the nearest that is known.

    Example:
        >>> print(unknown("optimizer", "gsdg", ["sgd", "gsgd", "adam"]))
        unknown optimizer 'gsdg'; did you mean 'gsgd'? known are sgd, gsgd, adam
    """
    names = list(known)
    close = difflib.get_close_matches(str(name).lower(), names, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return TrialError(f"unknown {kind} {name!r}; {hint}known are {', '.join(names)}")
