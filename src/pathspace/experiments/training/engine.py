"""The training loop, from top to bottom."""

from __future__ import annotations

import functools
import signal
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pathspace.experiments.store import StoreError, TrialStore
from pathspace.experiments.training.distributed import ALONE, Ranks
from pathspace.experiments.training.errors import TrialInterrupted
from pathspace.experiments.training.interruption import Interruption, Watch, watching
from pathspace.experiments.training.outcome import Outcome, Status, best_row, outcome_of
from pathspace.experiments.training.places import Memory, Place, claimed
from pathspace.experiments.training.preparation import isolated
from pathspace.experiments.training.reporting import Quiet, Reporter, reporter_named
from pathspace.experiments.training.stopping import parse_rule
from pathspace.experiments.training.training import Training
from pathspace.experiments.training.trial import Trial

LOOK = 1000  # steps after which to look whether the loss is a number, within an epoch
COMPARE = 100  # steps after which to see that all ranks have the same weights
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
    ranks: Ranks = ALONE,
) -> Outcome:
    """Train a model as a trial says, or fetch the result if the store has it.

    With a store, the training survives everything: Ctrl-C and SIGTERM leave a checkpoint, and
    after a crash the same call goes on from the last one. However often that happens, the result
    is the same, bit by bit (on a GPU if the trial is ``deterministic``).

    Several ranks (processes that :func:`joined` brought together) divide every batch and every
    evaluation, and come to the result of a single process but for rounding. Only the first of them
    uses the store and reports. They may be others in number when they go on.

    Args:
        trial: what to train.
        store: where results are kept; without one nothing is written.
        data_dir: the data folder, see :func:`pathspace.experiments.data.load`.
        report: ``"auto"`` (a bar on a terminal, else lines), ``"lines"``, ``"quiet"``, or a
            :class:`Reporter`.
        checkpoint_every: seconds between checkpoints.
        wait: for another process that works on the same trial.
        ranks: who trains together; all have to make this call alike.

    Returns:
        The outcome; a training whose loss ceased to be a number has one too.

    Raises:
        TrialError: the trial does not fit its data or this machine.
        TrialInterrupted: a signal came.
        RankError: ranks do not have the same weights any more.
        StoreError: the store cannot be written, or the trial is being worked on.

    Example:
        >>> trial = Trial("mlp:64-16-10", "digits", lr=0.5, epochs=3)
        >>> outcome = train(trial)
        >>> outcome.status, len(outcome.curves), outcome.final["test_error"] < 0.2
        ('finished', 4, True)
    """
    reporter = reporter_named(report) if isinstance(report, str) else report
    reporter = reporter if ranks.is_first else Quiet()
    if store is None:
        with isolated(trial), reporter:
            training = Training(trial, data_dir, ranks)
            return _run(training, Memory(), reporter, Watch(ranks), checkpoint_every)
    opened = functools.partial(_opened, store)  # by the first rank; others need not see the disk
    with claimed(opened, trial, ranks, wait=wait, report=reporter.note) as place:
        if isinstance(place, Outcome):
            return place
        with watching(ranks) as watch, isolated(trial), reporter:
            _run(Training(trial, data_dir, ranks), place, reporter, watch, checkpoint_every)
    return ranks.first(lambda: written(opened(), trial))


def _run(
    training: Training,
    place: Place,
    reporter: Reporter,
    watch: Watch,
    checkpoint_every: float,
) -> Outcome:
    """Train from where the place says until there is a verdict."""
    trial = training.trial
    if place.state is not None:
        take_up(training, place)
        reporter.note(f"going on after step {training.iteration:,} of {training.budget:,}")
    if training.ranks.size > 1:
        reporter.note(f"{training.ranks.size} ranks train together; each takes a share of a batch")
    reporter.start(trial, training.iteration, training.budget)
    try:
        verdict = _loop(training, place, reporter, watch, checkpoint_every)
    except Interruption:
        _save(training, place)
        raise interruption(training, watch) from None
    return conclude(training, place, verdict)


def interruption(training: Training, watch: Watch) -> TrialInterrupted:
    """What to raise after a signal, once there is a checkpoint."""
    name = signal.Signals(watch.signal).name
    return TrialInterrupted(
        f"{name}: stopped after step {training.iteration:,} of {training.budget:,}; the same "
        "command goes on from there",
        watch.signal,
    )


def conclude(training: Training, place: Place, verdict: Verdict) -> Outcome:
    """Write the result of a training."""
    status, reason = verdict
    training.compare()
    result = {
        "status": status,
        "reason": reason,
        "final": place.rows[-1],
        "best": best_row(place.rows),
        "notes": list(training.notes),
    }
    rest = training.rest()
    training.ranks.each(lambda: place.finish(result, training.weights(), rest))
    return Outcome(
        trial=training.trial,
        status=status,
        reason=reason,
        curves=list(place.rows),
        weights={name: tensor.detach().cpu() for name, tensor in training.weights().items()},
        notes=training.notes,
        seconds=place.seconds,
    )


def _loop(
    training: Training,
    place: Place,
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
                if training.iteration % COMPARE == 0:
                    training.compare()
                now = time.monotonic()
                # after the look, which would not be repeated
                save = watch.between_steps(due=now - saved > checkpoint_every)
                if now - shown > REFRESH:
                    shown = now
                    reporter.progress(training.iteration)
                if save:
                    _save(training, place)
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


def take_up(training: Training, place: Place) -> None:
    """Go on from the checkpoint that the place has."""
    try:
        training.load(place.state["weights"], place.state["rest"])
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise StoreError(
            f"{place.folder} cannot be taken up again: {error}; was it written by another version? "
            "Move it away to begin anew"
        ) from error


def _save(training: Training, place: Place) -> None:
    """Write a checkpoint, never of ranks that differ; all ranks wait until it is written."""
    training.compare()
    state = {"weights": training.weights(), "rest": training.rest()}
    training.ranks.each(lambda: place.save(state))


def _opened(store: TrialStore | str | Path) -> TrialStore:
    return store if isinstance(store, TrialStore) else TrialStore(store)


def written(store: TrialStore, trial: Trial) -> Outcome:
    """The outcome that has just been written."""
    record = store.find(trial, verify=False)
    assert record is not None
    return outcome_of(trial, record, was_there=False)
