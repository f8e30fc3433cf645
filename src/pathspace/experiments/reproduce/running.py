"""From an experiment to its findings: jobs that are missing are done, the others looked up."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from pathspace.experiments.executors import (
    Answer,
    Archive,
    Computation,
    Executor,
    Job,
    Local,
    Result,
    Site,
    groups_of,
)
from pathspace.experiments.reproduce.experiment import Experiment, Plan, PresetName, side_by_side
from pathspace.experiments.reproduce.findings import Findings
from pathspace.experiments.reproduce.progress import Progress, Silent
from pathspace.experiments.store import pack, unpack
from pathspace.experiments.training import Outcome, Trial, train

Found = TypeVar("Found")
Execute = Callable[[Sequence[Job]], list[Answer]]
RATE = 1e-3  # of rehearsals: nothing diverges in two iterations


@dataclass(frozen=True, eq=False)
class Reproduction:
    """An experiment that was run.

    Attributes:
        experiment: which one.
        preset: its size.
        findings: what it found.
        answers: what every job came to, in the order in which they were asked for.
        seconds: of work in all of them, whenever and wherever it was done.
    """

    experiment: Experiment[Any]
    preset: PresetName
    findings: Findings = field(repr=False)
    answers: tuple[Answer, ...] = field(repr=False)

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """Those of trials."""
        return tuple(answer for answer in self.answers if isinstance(answer, Outcome))

    @property
    def seconds(self) -> float:
        """Of work in all jobs, whenever and wherever it was done."""
        return sum(answer.seconds for answer in self.answers)


def reproduce(
    experiment: Experiment[Any],
    preset: PresetName,
    archive: Archive,
    executor: Executor | None = None,
    *,
    data_dir: str | Path | None = None,
    progress: Progress | None = None,
) -> Reproduction:
    """Run an experiment, or go on where it was left.

    Args:
        experiment: what to run.
        preset: its size.
        archive: of results; what is there is not done again.
        executor: where jobs are done; this process by default.
        data_dir: the data folder.
        progress: is told how it goes.

    Raises:
        PathspaceError: a job cannot be done.
        TrialInterrupted: a signal came; the same call goes on.
    """
    (found,) = reproduce_all(
        [experiment], preset, archive, executor, data_dir=data_dir, progress=progress
    )
    return found


def reproduce_all(
    experiments: Sequence[Experiment[Any]],
    preset: PresetName,
    archive: Archive,
    executor: Executor | None = None,
    *,
    data_dir: str | Path | None = None,
    progress: Progress | None = None,
    ready: Callable[[Reproduction], object] = lambda found: None,
) -> list[Reproduction]:
    """Run experiments side by side: what all ask for first is done together, and so on.

    So workers wait for each other a few times in all, not a few times in every experiment, and a
    job that several ask for is done once.

    Args:
        experiments: what to run.
        preset: their size.
        archive: of results; what is there is not done again.
        executor: where jobs are done; this process by default.
        data_dir: the data folder.
        progress: is told how it goes.
        ready: is given each experiment as soon as it has all it asked for.

    Returns:
        What was found, in the order of the experiments.
    """
    shown = progress or Silent()
    name = experiments[0].name if len(experiments) == 1 else f"{len(experiments)} experiments"

    def noted(experiment: Experiment[Any]) -> Plan[Reproduction]:
        answers: dict[Job, Answer] = {}
        findings = yield from _noting(experiment.plan(experiment.preset(preset).settings), answers)
        found = Reproduction(experiment, preset, findings, tuple(answers.values()))
        ready(found)
        return found

    with shown:
        shown.begin(name, sum(one.preset(preset).jobs for one in experiments))
        work = Work(archive, executor or Local(), data_dir, shown)
        plans = side_by_side({one.name: noted(one) for one in experiments})
        return list(conduct(plans, work.do).values())


def _noting(plan: Plan[Found], answers: dict[Job, Answer]) -> Plan[Found]:
    """The same plan; what it is answered is noted."""
    try:
        jobs = next(plan)
        while True:
            given = yield jobs
            answers.update(zip(jobs, given, strict=True))
            jobs = plan.send(given)
    except StopIteration as end:
        found: Found = end.value
        return found


def conduct(plan: Plan[Found], execute: Execute | None = None) -> Found:
    """Drive a plan to its end: what it yields is executed, and the answers are sent back.

    Args:
        plan: the generator.
        execute: gives the answers to jobs, in their order; by default they are done in this
            process, and kept nowhere.
    """
    if execute is None:
        with tempfile.TemporaryDirectory(prefix="pathspace-") as folder:
            return conduct(plan, Work(Archive(folder), Local(), None, Silent()).do)
    try:
        jobs = next(plan)
        while True:
            jobs = plan.send(execute(jobs))
    except StopIteration as end:
        found: Found = end.value
        return found


@dataclass
class Work:
    """Does the jobs that the archive does not hold, and looks up all of them."""

    archive: Archive
    executor: Executor
    data_dir: str | Path | None
    progress: Progress

    def do(self, jobs: Sequence[Job]) -> list[Answer]:
        """What the jobs came to, in their order."""
        distinct = list(dict.fromkeys(jobs))
        missing = [job for job in distinct if self.archive.find(job) is None]
        self.progress.ask(distinct, missing)
        if missing:
            site = Site(
                self.archive,
                None if self.data_dir is None else Path(self.data_dir),
                self.progress.reporter(),
            )
            began = time.monotonic()
            width = self.executor.width
            for finished in self.executor.run(groups_of(missing), site):
                self.progress.finish(finished, time.monotonic() - began, width)
        return [self._answer(job) for job in jobs]

    def _answer(self, job: Job) -> Answer:
        found = self.archive.find(job)
        assert found is not None, f"{job.title} was done, but is not in {self.archive}"
        return found


# Rehearsals --------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Rehearsal:
    """A plan run to its end with trainings of two iterations.

    Attributes:
        findings: from what these trainings came to; their numbers mean nothing.
        jobs: how many distinct jobs the plan asked for.
    """

    findings: Findings
    jobs: int


def rehearse(
    experiment: Experiment[Any],
    preset: PresetName,
    *,
    data_dir: str | Path | None = None,
    iterations: int = 2,
    adapt: Callable[[Trial], Trial] = lambda trial: trial,
) -> Rehearsal:
    """Run the whole plan of a preset, each training for two iterations, with one seed and rate.

    So trainings that differ only in these are one; the answers carry the trials that were asked
    for. Computations are done on what these trainings came to. Nothing is kept on the disk.

    Args:
        experiment: what to rehearse.
        preset: its size.
        data_dir: the data folder.
        iterations: of each training.
        adapt: a further change of trials, such as to data that a test has.
    """
    asked: dict[Job, None] = {}
    done: dict[Trial, Outcome] = {}

    def answer(job: Job) -> Answer:
        asked[job] = None
        return computed(job) if isinstance(job, Computation) else trained(job)

    def trained(trial: Trial) -> Outcome:
        few = replace(trial, epochs=None, iterations=iterations, stop="never")
        short = adapt(replace(few, seed=0, lr=RATE))
        if short not in done:
            done[short] = train(short, data_dir=data_dir)
        return replace(done[short], trial=trial)

    def computed(job: Computation) -> Result:
        # A computation reads the data by the trial, so it gets the one that fits the data.
        outcomes = [replace(trained(trial), trial=adapt(trial)) for trial in job.trials]
        found = job.resolve()(outcomes, data_dir, **job.arguments)
        return Result(job, unpack(pack(dict(found))))  # as it comes back from an archive

    chosen = experiment.preset(preset)
    settings = chosen.settings if chosen.rehearsal is None else chosen.rehearsal
    findings = conduct(experiment.plan(settings), lambda jobs: [answer(j) for j in jobs])
    return Rehearsal(findings, len(asked))
