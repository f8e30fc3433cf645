"""The unit of work of every executor: a group of jobs, done together on one worker."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from pathspace.errors import PathspaceError
from pathspace.experiments.executors.archive import Archive, Job
from pathspace.experiments.executors.computation import Computation
from pathspace.experiments.executors.errors import JobError
from pathspace.experiments.together import groups, train_together
from pathspace.experiments.training import Quiet, Reporter, Trial, TrialInterrupted

Group: TypeAlias = tuple[Job, ...]
Interrupted: TypeAlias = tuple[str, int]  # message and signal of a TrialInterrupted


@dataclass(frozen=True)
class Site:
    """Where jobs are done.

    Attributes:
        archive: of the results.
        data_dir: the data folder; None for the usual ones.
        report: is told how trainings go, where they run in this process.
    """

    archive: Archive
    data_dir: Path | None = None
    report: Reporter = field(default_factory=Quiet)


@dataclass(frozen=True)
class Finished:
    """A group that is done; its results are in the archive.

    Attributes:
        group: the jobs.
        seconds: how long they took together.
    """

    group: Group
    seconds: float


def groups_of(jobs: Sequence[Job]) -> list[Group]:
    """The jobs in groups that run as one program; each job once.

    Trainings that can run together do. A computation is a group of its own.

    Example:
        >>> from pathspace.experiments.executors.computation import compute, example
        >>> [len(group) for group in groups_of([compute(example, number=n) for n in (1, 2, 1)])]
        [1, 1]
    """
    distinct = list(dict.fromkeys(jobs))
    trials = [job for job in distinct if isinstance(job, Trial)]
    singles: list[Group] = [(job,) for job in distinct if isinstance(job, Computation)]
    return [*(tuple(group) for group in groups(trials)), *singles]


def perform(group: Group, site: Site) -> None:
    """Do the jobs of a group; the results are in the archive afterwards.

    Raises:
        JobError: the function of a computation failed.
        PathspaceError: what training raises.
        TrialInterrupted: a signal came.
    """
    trials = [job for job in group if isinstance(job, Trial)]
    if trials:
        train_together(trials, site.archive.store, data_dir=site.data_dir, report=site.report)
    for job in group:
        if isinstance(job, Computation):
            try:
                site.archive.work_out(job, site.data_dir, site.report.note)
            except (PathspaceError, TrialInterrupted):
                raise
            except Exception as error:
                raise JobError(f"{job.title}: {type(error).__name__}: {error}") from error


def perform_apart(
    group: Group, path: Path, data_dir: Path | None
) -> tuple[float, Interrupted | None]:
    """Do a group in another process; how long it took, and the signal if one came.

    An interruption is returned, not raised, because raising is for what went wrong.
    """
    began = time.monotonic()
    interrupted = None
    try:
        perform(group, Site(Archive(path), data_dir))
    except TrialInterrupted as stopped:
        interrupted = (str(stopped), stopped.signal)
    return time.monotonic() - began, interrupted
