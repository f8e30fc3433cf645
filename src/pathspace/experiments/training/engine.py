"""The training loop, from top to bottom."""

from __future__ import annotations

import signal
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pathspace.experiments.store import Record, StoreError, TrialStore, Workplace
from pathspace.experiments.training.errors import TrialInterrupted
from pathspace.experiments.training.interruption import Interruption, Watch, watching
from pathspace.experiments.training.outcome import Outcome, Status, best_row, outcome_of
from pathspace.experiments.training.preparation import isolated
from pathspace.experiments.training.reporting import Reporter, reporter_named
from pathspace.experiments.training.stopping import parse_rule
from pathspace.experiments.training.training import Training
from pathspace.experiments.training.trial import Trial

LOOK = 1000  # steps after which to look whether the loss is a number, within an epoch
CHECKPOINT = 30.0  # seconds between checkpoints
REFRESH = 0.1  # seconds between two pictures of the progress

Verdict = tuple[Status, str]


def train(
    trial: Trial,
    store: TrialStore | str | Path | None = None,
    *,
    data_dir: str | Path | None = None,
    report: Reporter | str = "quiet",
    checkpoint_every: float = CHECKPOINT,
    wait: bool = True,
) -> Outcome:
    """Train a model as a trial says, or fetch the result if the store has it.

    With a store, the training survives everything: Ctrl-C and SIGTERM leave a checkpoint, and
    after a crash the same call goes on from the last one. However often that happens, the result
    is the same, bit by bit (on a GPU if the trial is ``deterministic``).

    Args:
        trial: what to train.
        store: where results are kept; without one nothing is written.
        data_dir: the data folder, see :func:`pathspace.experiments.data.load`.
        report: ``"auto"`` (a bar on a terminal, else lines), ``"lines"``, ``"quiet"``, or a
            :class:`Reporter`.
        checkpoint_every: seconds between checkpoints.
        wait: for another process that works on the same trial.

    Returns:
        The outcome; a training whose loss ceased to be a number has one too.

    Raises:
        TrialError: the trial does not fit its data or this machine.
        TrialInterrupted: a signal came.
        StoreError: the store cannot be written, or the trial is being worked on.

    Example:
        >>> trial = Trial("mlp:64-16-10", "digits", lr=0.5, epochs=3)
        >>> outcome = train(trial)
        >>> outcome.status, len(outcome.curves), outcome.final["test_error"] < 0.2
        ('finished', 4, True)
    """
    reporter = reporter_named(report) if isinstance(report, str) else report
    if store is None:
        with isolated(trial), reporter:
            return _run(Training(trial, data_dir), Memory(), reporter, Watch(), checkpoint_every)
    store = store if isinstance(store, TrialStore) else TrialStore(store)
    with store.claim(trial, wait=wait, report=reporter.note) as place:
        if isinstance(place, Record):
            return outcome_of(trial, place, was_there=True)
        with watching() as watch, isolated(trial), reporter:
            _run(Training(trial, data_dir), place, reporter, watch, checkpoint_every)
    record = store.find(trial, verify=False)
    assert record is not None  # it has just been written
    return outcome_of(trial, record, was_there=False)


def _run(
    training: Training,
    place: Workplace | Memory,
    reporter: Reporter,
    watch: Watch,
    checkpoint_every: float,
) -> Outcome:
    """Train from where the place says until there is a verdict."""
    trial = training.trial
    if place.state is not None:
        _take_up(training, place)
        reporter.note(f"going on after step {training.iteration:,} of {training.budget:,}")
    reporter.start(trial, training.iteration, training.budget)
    try:
        verdict = _loop(training, place, reporter, watch, checkpoint_every)
    except Interruption:
        place.save(_state(training))
        name = signal.Signals(watch.signal).name
        raise TrialInterrupted(
            f"{name}: stopped after step {training.iteration:,} of {training.budget:,}; the same "
            "command goes on from there",
            watch.signal,
        ) from None
    status, reason = verdict
    result = {
        "status": status,
        "reason": reason,
        "final": place.rows[-1],
        "best": best_row(place.rows),
        "notes": list(training.task.notes),
    }
    place.finish(result, training.weights(), training.rest())
    return Outcome(
        trial=trial,
        status=status,
        reason=reason,
        curves=list(place.rows),
        weights={name: tensor.detach().cpu() for name, tensor in training.weights().items()},
        notes=training.task.notes,
        seconds=place.seconds,
    )


def _loop(
    training: Training,
    place: Workplace | Memory,
    reporter: Reporter,
    watch: Watch,
    checkpoint_every: float,
) -> Verdict:
    """Epoch after epoch of steps and an evaluation; between any two steps it may be left."""
    rule, every = parse_rule(training.trial.stop), training.trial.evaluate_every
    saved = shown = time.monotonic()

    def log(row: Mapping[str, Any]) -> None:
        place.log(row)
        reporter.row(row)

    if not place.rows:
        log(training.evaluate(watch.check))
    with warnings.catch_warnings():
        # Skipped steps are counted in the metrics.
        warnings.filterwarnings("ignore", ".*the step was not taken", RuntimeWarning)
        # An evaluation that was interrupted is still to be done.
        while not training.is_over or place.rows[-1]["iteration"] < training.iteration:
            for batch in training.batches():
                try:
                    training.advance(batch)
                except (FloatingPointError, OverflowError) as error:
                    log(training.row())
                    return "diverged", f"step {training.iteration + 1:,}: {error}"
                if training.iteration % LOOK == 0 and not training.is_finite():
                    break
                watch.check()  # after the look, which would not be repeated
                now = time.monotonic()
                if now - shown > REFRESH:
                    shown = now
                    reporter.progress(training.iteration)
                if now - saved > checkpoint_every:
                    place.save(_state(training))
                    saved = time.monotonic()
            if not training.is_finite():
                log(training.row())
                return "diverged", f"the loss is not finite at step {training.iteration:,}"
            if (training.epoch + 1) % every == 0 or training.is_over:
                log(training.evaluate(watch.check))
                if reason := rule.reason(place.rows):
                    return "stopped", reason
            if training.is_epoch_complete:
                training.begin_epoch()
    return "finished", ""


def _take_up(training: Training, place: Workplace | Memory) -> None:
    try:
        training.load(place.state["weights"], place.state["rest"])
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise StoreError(
            f"{place.folder} cannot be taken up again: {error}; was it written by another version? "
            "Move it away to begin anew"
        ) from error


def _state(training: Training) -> dict[str, Any]:
    return {"weights": training.weights(), "rest": training.rest()}


class Memory:
    """In place of a store: rows are kept, nothing is written."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.state: Any = None
        self.folder = None
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        """Time since the beginning."""
        return time.monotonic() - self._began

    def log(self, row: Mapping[str, Any]) -> None:
        """Keep a row."""
        self.rows.append(dict(row))

    def save(self, state: Any) -> None:
        """Nothing: there is no place to go on from."""

    def finish(self, result: Any, weights: Any, state: Any) -> None:
        """Nothing."""
