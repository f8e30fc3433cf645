"""Training many trials at once: the loop, and what becomes of each."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Generator

from pathspace.experiments.store import TrialStore
from pathspace.experiments.together.fleet import Fleet
from pathspace.experiments.together.grouping import kind
from pathspace.experiments.training import (
    Outcome,
    Reporter,
    Training,
    Trial,
    TrialError,
    train,
)
from pathspace.experiments.training.distributed import ALONE
from pathspace.experiments.training.engine import (
    CHECKPOINT,
    LOOK,
    REFRESH,
    Verdict,
    conclude,
    interruption,
    take_up,
    written,
)
from pathspace.experiments.training.interruption import Interruption, Watch, watching
from pathspace.experiments.training.places import Memory, Place, claimed
from pathspace.experiments.training.preparation import isolated
from pathspace.experiments.training.reporting import reporter_named
from pathspace.experiments.training.stopping import parse_rule


def train_together(
    trials: Sequence[Trial],
    store: TrialStore | str | Path | None = None,
    *,
    data_dir: str | Path | None = None,
    report: Reporter | str = "quiet",
    checkpoint_every: float = CHECKPOINT,
    wait: bool = True,
) -> list[Outcome]:
    """Train the models of several trials of one kind in step with each other.

    Each comes to what :func:`~pathspace.experiments.training.train` would make of it alone, but for
    rounding: it has its own data order, random numbers, rates and verdict. Trials that the store
    has are fetched; one that ends leaves the others. Checkpoints are those of single trials, so a
    trial may go on alone or in other company.

    Args:
        trials: of one kind, see :func:`groups`; a single trial may be of any kind.
        store: where results are kept; without one nothing is written.
        data_dir: the data folder.
        report: as in ``train``; it is told of progress, not of single evaluations.
        checkpoint_every: seconds between checkpoints.
        wait: for another process that works on one of the trials.

    Returns:
        The outcomes, in the order of the trials.

    Raises:
        TrialError: trials that cannot run together, or that do not fit their data.
        TrialInterrupted: a signal came; the same call goes on from there.

    Example:
        >>> trials = [Trial("mlp:64-16-10", "digits", lr=0.5, epochs=1, seed=s) for s in range(3)]
        >>> [outcome.status for outcome in train_together(trials)]
        ['finished', 'finished', 'finished']
    """
    if len(trials) == 1:
        one = train(
            trials[0],
            store,
            data_dir=data_dir,
            report=report,
            checkpoint_every=checkpoint_every,
            wait=wait,
        )
        return [one]
    kinds = {kind(trial) for trial in trials}
    if None in kinds or len(kinds) > 1:
        raise TrialError("these trials cannot run together; `groups` says which can")
    reporter = reporter_named(report) if isinstance(report, str) else report
    if store is not None and not isinstance(store, TrialStore):
        store = TrialStore(store)
    outcomes: dict[str, Outcome] = {}
    members: list[Member] = []
    with contextlib.ExitStack() as held:
        # Before signals are noted: who waits for another process can be stopped at once.
        places = {
            trial: held.enter_context(_claimed(trial, store, wait, reporter.note))
            for trial in sorted(set(trials), key=lambda trial: trial.key)  # all in the same order
        }
        with watching() as watch, reporter:
            for trial, place in places.items():
                if isinstance(place, Outcome):
                    outcomes[trial.key] = place
                else:
                    members.append(Member(trial, place, data_dir))
            if members:
                _run(members, reporter, watch, checkpoint_every)
    for member in members:
        found = member.outcome if store is None else written(store, member.trial)
        outcomes[member.trial.key] = found
    return [outcomes[trial.key] for trial in trials]


class Member:
    """One of the trials: its training, where it is kept, and its random numbers.

    Attributes:
        dropout: the generator that a training alone would have as torch's own.
        verdict: once it has come to an end.
    """

    def __init__(self, trial: Trial, place: Place, data_dir: str | Path | None) -> None:
        self.trial, self.place, self.rule = trial, place, parse_rule(trial.stop)
        self.verdict: Verdict | None = None
        self.outcome: Outcome
        with isolated(trial):
            self.training = Training(trial, data_dir)
            if place.state is not None:
                take_up(self.training, place)
            self.dropout = Generator()
            self.dropout.set_state(torch.get_rng_state())

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """With torch's random numbers as they would be if it were alone."""
        with isolated(self.trial):
            torch.set_rng_state(self.dropout.get_state())
            yield

    def evaluate(self, watch: Watch) -> None:
        """Log a row of metrics."""
        with isolated(self.trial):
            self.place.log(self.training.evaluate(watch.check))

    def save(self) -> None:
        """Write a checkpoint."""
        with self.alone():
            state = {"weights": self.training.weights(), "rest": self.training.rest()}
        self.place.save(state)

    def judge(self, watch: Watch) -> None:
        """After an epoch: evaluate if it is time, and see whether it is over."""
        training, place = self.training, self.place
        if not training.is_finite():
            place.log(training.row())
            self.verdict = "diverged", f"the loss is not finite at step {training.iteration:,}"
            return
        if (training.epoch + 1) % self.trial.evaluate_every == 0 or training.is_over:
            self.evaluate(watch)
            if reason := self.rule.reason(place.rows):
                self.verdict = "stopped", reason
                return
        if training.is_epoch_complete:
            training.begin_epoch()
        if training.is_over and place.rows[-1]["iteration"] == training.iteration:
            self.verdict = "finished", ""

    def finish(self) -> None:
        """Write the result."""
        assert self.verdict is not None
        with self.alone():
            self.outcome = conclude(self.training, self.place, self.verdict)


def _run(members: list[Member], reporter: Reporter, watch: Watch, checkpoint_every: float) -> None:
    """Train all of them: those at one position together, one such company after the other."""
    companies: dict[tuple[int, int], list[Member]] = {}
    for member in members:
        member.place.share = 1 / len(members)
        # A signal between two evaluations leaves some at the end of an epoch, and some after it.
        position = member.training.iteration, member.training.epoch
        companies.setdefault(position, []).append(member)
    for (iteration, _), company in sorted(companies.items()):
        first = company[0]
        if iteration:
            reporter.note(f"{len(company)} trials go on after step {iteration:,}")
        reporter.start(first.trial, iteration, first.training.budget)
        with isolated(first.trial), warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*the step was not taken", RuntimeWarning)
            _train(company, reporter, watch, checkpoint_every)


def _train(members: list[Member], reporter: Reporter, watch: Watch, every: float) -> None:
    """Epoch after epoch of steps and evaluations, until there is a verdict on each."""
    saved = shown = time.monotonic()
    fleet: Fleet | None = None
    ahead: Fleet | None = None  # the fleet, while it has more than its trainings
    try:
        for member in members:
            if not member.place.rows:
                member.evaluate(watch)
        while members:
            fleet = ahead = Fleet([m.training for m in members], [m.dropout for m in members])
            while len(members) == fleet.copies:  # until one leaves
                while not fleet.is_epoch_over:
                    fleet.advance()
                    if fleet.lead.iteration % LOOK == 0 and not fleet.is_finite():
                        break
                    now = time.monotonic()
                    if now - shown > REFRESH:
                        shown = now
                        reporter.progress(fleet.lead.iteration)
                    if watch.between_steps(due=now - saved > every):
                        _save(fleet, members)
                        saved = time.monotonic()
                fleet.sync()
                ahead = None
                is_over = fleet.is_epoch_over
                for member in members:
                    if is_over or not member.training.is_finite():
                        member.judge(watch)
                for member in members:
                    if member.verdict is not None:
                        member.finish()
                members = [member for member in members if member.verdict is None]
                if len(members) == fleet.copies:
                    fleet.begin_epoch()
                    ahead = fleet
    except Interruption:
        for member in members:
            if member.verdict is not None:
                member.finish()
        _save(ahead, [member for member in members if member.verdict is None])
        raise interruption(members[0].training, watch) from None


def _save(fleet: Fleet | None, members: Sequence[Member]) -> None:
    if fleet is not None:
        fleet.sync()
    for member in members:
        member.save()


def _claimed(
    trial: Trial, store: TrialStore | None, wait: bool, report: Callable[[str], None]
) -> contextlib.AbstractContextManager[Outcome | Place]:
    if store is None:
        return contextlib.nullcontext(Memory())
    return claimed(lambda: store, trial, ALONE, wait=wait, report=report)
