"""Jobs on this machine: one after another in this process, or in several processes."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from pathlib import Path

import torch

from pathspace.experiments.executors.errors import ExecutorError
from pathspace.experiments.executors.executor import Executor
from pathspace.experiments.executors.working import (
    Finished,
    Group,
    Interrupted,
    Site,
    perform,
    perform_apart,
)
from pathspace.experiments.training import TrialInterrupted
from pathspace.experiments.training.interruption import deferring, is_stopping

Report = tuple[float, Interrupted | None]
CUT = threading.Event()  # in a worker: whether the lifeline is


class Local(Executor):
    """This machine.

    Args:
        processes: 1 works in this process, so that trainings report each of their steps; more
            share the cores evenly.

    Example:
        >>> import tempfile
        >>> from pathspace.experiments.executors import Archive, Local, Site, compute, groups_of
        >>> from pathspace.experiments.executors.computation import example
        >>> jobs = [compute(example, number=number) for number in (2, 3)]
        >>> site = Site(Archive(tempfile.mkdtemp()))
        >>> [len(finished.group) for finished in Local().run(groups_of(jobs), site)]
        [1, 1]
        >>> [site.archive.find(job)["square"] for job in jobs]
        [4, 9]
    """

    def __init__(self, processes: int = 1) -> None:
        self.processes = processes

    def __repr__(self) -> str:
        return f"Local({self.processes})"

    @property
    def width(self) -> int:
        """The number of processes."""
        return self.processes

    def run(self, groups: Sequence[Group], site: Site) -> Iterator[Finished]:
        """Do the groups in their order."""
        if self.processes > 1:
            yield from self._run_apart(groups, site)
            return
        for group in groups:
            began = time.monotonic()
            perform(group, site)
            yield Finished(group, time.monotonic() - began)

    def _run_apart(self, groups: Sequence[Group], site: Site) -> Iterator[Finished]:
        context = _context()
        theirs, lifeline = context.Pipe(duplex=False)
        pool = ProcessPoolExecutor(
            min(self.processes, len(groups)) or 1,
            context,
            initializer=_begin,
            initargs=(max(1, (os.cpu_count() or 1) // self.processes), theirs),
        )
        try:
            with deferring():  # a pool that has begun to start its thread cannot be shut down
                waiting: dict[Future[Report], Group] = {
                    pool.submit(_perform, group, site.archive.path, site.data_dir): group
                    for group in groups
                }
            while waiting:
                done, _ = wait(waiting, return_when=FIRST_COMPLETED)
                for future in done:
                    seconds, interrupted = future.result()
                    if interrupted is not None:
                        raise TrialInterrupted(*interrupted)
                    yield Finished(waiting.pop(future), seconds)
        except BaseException as error:
            lifeline.close()  # trainings under way leave a checkpoint
            if isinstance(error, BrokenProcessPool):
                raise ExecutorError(
                    "a worker process died, perhaps for lack of memory; the same command goes on "
                    "from what is finished, and local:N with a smaller N needs less memory"
                ) from error
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
            lifeline.close()
            theirs.close()


def _context() -> BaseContext:
    """How processes start: not forked from this one, as torch's threads do not survive that.

    A server that has imported torch, and has no threads yet, forks them, where there is fork.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


def _begin(threads: int, lifeline: Connection) -> None:
    """In a worker: share the cores, and end with the process that gives out the work."""
    torch.set_num_threads(threads)
    if hasattr(os, "setpgid"):
        # Ctrl-C on a terminal goes to the whole group. One signal is for who gives out the work,
        # which passes it on: a second one would end a training before its checkpoint.
        os.setpgid(0, 0)
    threading.Thread(target=_end_with, args=(lifeline,), daemon=True).start()


def _end_with(lifeline: Connection) -> None:
    """Wait until the other end is closed, or its process is gone; then end as after SIGTERM."""
    with contextlib.suppress(EOFError, OSError):
        lifeline.recv_bytes()
    CUT.set()
    if not is_stopping():
        os.kill(os.getpid(), signal.SIGTERM)


def _perform(group: Group, path: Path, data_dir: Path | None) -> Report:
    """Do a group in a worker."""
    try:
        return perform_apart(group, path, data_dir)
    finally:
        if CUT.is_set():  # a training has left its checkpoint, or failed to; nobody waits for more
            os._exit(0)
