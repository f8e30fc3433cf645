"""Where a training is kept while it is under way; of several ranks the first has the store."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pathspace.experiments.store import Busy, Record, TrialStore, Workplace
from pathspace.experiments.training.distributed import Ranks
from pathspace.experiments.training.outcome import Outcome, outcome_of
from pathspace.experiments.training.trial import Trial

POLL = 1.0  # seconds after which ranks ask for a trial again that another process works on


class Memory:
    """In place of a store: rows are kept, nothing is written.

    Args:
        rows: of metrics so far.
        state: to go on from.
    """

    def __init__(self, rows: list[dict[str, Any]] | None = None, state: Any = None) -> None:
        self.rows: list[dict[str, Any]] = rows or []
        self.state = state
        self.folder = None
        self.share = 1.0
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        """Time since the beginning; of several trials at once, each has its share of it."""
        return self.share * (time.monotonic() - self._began)

    def log(self, row: Mapping[str, Any]) -> None:
        """Keep a row."""
        self.rows.append(dict(row))

    def save(self, state: Any) -> None:
        """Nothing: there is no place to go on from."""

    def finish(self, result: Any, weights: Any, state: Any) -> None:
        """Nothing."""


Place = Workplace | Memory


@contextlib.contextmanager
def claimed(
    store: Callable[[], TrialStore],
    trial: Trial,
    ranks: Ranks,
    *,
    wait: bool,
    report: Callable[[str], None],
) -> Iterator[Outcome | Place]:
    """The outcome that the store has, or else a place to work on the trial, in all ranks.

    The first rank claims the trial and tells the others what it is to go on from, so that these
    need not see the store at all. What the store refuses is refused in all ranks.

    Args:
        store: opened by the first rank.
        trial: what to work on.
        ranks: who works on it.
        wait: for another process that works on the same trial.
        report: called with what a person should know.
    """
    with contextlib.ExitStack() as stack:
        mine: Workplace | None = None
        told = False

        def ask() -> Outcome | Memory | None:
            nonlocal mine, told
            # Ranks wait for each other, but not for long: so ask again, and do not sit and wait.
            patient = wait and ranks.size == 1
            try:
                found = stack.enter_context(store().claim(trial, wait=patient, report=report))
            except Busy as error:
                if not wait:
                    raise
                if not told:
                    report(f"waiting: {error}")
                told = True
                return None
            if isinstance(found, Record):
                return outcome_of(trial, found, was_there=True)
            mine = found
            return Memory(found.rows, found.state)

        while (found := ranks.first(ask)) is None:
            time.sleep(POLL)
        yield mine if mine is not None else found
