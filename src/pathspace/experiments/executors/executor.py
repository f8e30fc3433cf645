"""What every executor promises, and how they are named."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Sequence
from typing import Self

from pathspace.experiments.executors.errors import ExecutorError
from pathspace.experiments.executors.working import Finished, Group, Site


class Executor(abc.ABC):
    """Does groups of jobs somewhere; used as a context manager for as long as there is work.

    Whatever happens, a group that was reported as finished is in the archive, and what was not is
    done by the next run.
    """

    @property
    @abc.abstractmethod
    def width(self) -> int:
        """How many groups are worked on at a time."""

    @abc.abstractmethod
    def run(self, groups: Sequence[Group], site: Site) -> Iterator[Finished]:
        """Do the groups, and give each when it is finished, in any order.

        Raises:
            PathspaceError: a job cannot be done; the others may be unfinished then.
            TrialInterrupted: a signal came.
        """

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Give back what the executor holds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def executor_named(name: str) -> Executor:
    """The executor that a text such as ``local:2`` or ``ray:10.0.0.1:6379`` names.

    ``local`` works in this process, ``local:N`` in N processes, ``ray`` on a cluster of this
    machine alone (or the one that ``RAY_ADDRESS`` names), ``ray:ADDRESS`` on that one.

    Raises:
        ExecutorError: there is none of that name, or Ray is not installed.

    Example:
        >>> executor_named("local:3").width
        3
        >>> executor_named("slurm")
        Traceback (most recent call last):
        pathspace.experiments.executors.errors.ExecutorError: unknown executor 'slurm'; ...
    """
    from pathspace.experiments.executors.cluster import RayExecutor
    from pathspace.experiments.executors.local import Local

    kind, _, rest = name.partition(":")
    if kind == "ray":
        return RayExecutor(rest or None)
    if kind == "local" and (not rest or (rest.isdecimal() and int(rest) > 0)):
        return Local(int(rest or 1))
    raise ExecutorError(
        f"unknown executor {name!r}; known are local, local:N (N processes), ray, ray:ADDRESS"
    )
