"""Where jobs are done: in this process, in several, or on a Ray cluster.

A *job* is a :class:`~pathspace.experiments.training.Trial` or a :class:`Computation`, a pure
function by name. What it came to is kept in an :class:`Archive`, so that no job is done twice.
Jobs that can run as one tensor program form a *group*, the unit of work. An :class:`Executor` takes
groups and gives them back as they finish; what it did is in the archive.

Example:
    >>> import tempfile
    >>> from pathspace.experiments.executors import Archive, Site, executor_named, groups_of
    >>> from pathspace.experiments.training import Trial
    >>> trials = [Trial("mlp:64-8-10", "digits", epochs=1, seed=seed) for seed in (0, 1)]
    >>> site = Site(Archive(tempfile.mkdtemp()))
    >>> with executor_named("local") as executor:
    ...     finished = list(executor.run(groups_of(trials), site))
    >>> [site.archive.find(trial).status for trial in trials]
    ['finished', 'finished']
"""

from pathspace.experiments.executors.archive import Answer, Archive, Job
from pathspace.experiments.executors.cluster import RayExecutor
from pathspace.experiments.executors.computation import Computation, Result, compute
from pathspace.experiments.executors.errors import ExecutorError, JobError
from pathspace.experiments.executors.executor import Executor, executor_named
from pathspace.experiments.executors.local import Local
from pathspace.experiments.executors.working import Finished, Group, Site, groups_of, perform

__all__ = [
    "Answer",
    "Archive",
    "Computation",
    "Executor",
    "ExecutorError",
    "Finished",
    "Group",
    "Job",
    "JobError",
    "Local",
    "RayExecutor",
    "Result",
    "Site",
    "compute",
    "executor_named",
    "groups_of",
    "perform",
]
