"""Jobs on a Ray cluster: a group is a task, and a lost node costs only what ran there."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from pathspace.experiments.executors.archive import IDENTITY, Archive
from pathspace.experiments.executors.computation import Computation
from pathspace.experiments.executors.errors import ExecutorError
from pathspace.experiments.executors.executor import Executor
from pathspace.experiments.executors.working import (
    Finished,
    Group,
    Interrupted,
    Site,
    perform_apart,
)
from pathspace.experiments.training import Trial, TrialInterrupted

Files: TypeAlias = dict[str, bytes]
Report: TypeAlias = tuple[float, list[Files] | None, Interrupted | None]

REPEATS = 5  # how often a group may be lost with its worker


class RayExecutor(Executor):
    """A Ray cluster.

    Each group is a task with its resources: ``cpus`` cores, and a GPU if its trials ask for one. A
    worker that sees the archive's folder, because it is on a shared file system, works there; from
    any other the results are sent to the driver, which writes them. Either way a finished group is
    in the archive at once: when a node is lost, the groups that ran there are done again, and when
    the driver is lost, the next one goes on. pathspace and the data have to be on all nodes.

    Args:
        address: of the cluster, such as ``auto``, ``10.0.0.1:6379`` or ``ray://10.0.0.1:10001``;
            without one, and without ``RAY_ADDRESS``, a cluster of this machine alone.
        cpus: cores per group.
        gather: send all results to the driver, even where the archive can be seen.

    Raises:
        ExecutorError: Ray is not installed.
    """

    def __init__(self, address: str | None = None, *, cpus: int = 1, gather: bool = False) -> None:
        self.ray = _import()
        self.address, self.cpus, self.gather = address, cpus, gather
        self._connected = False

    def __repr__(self) -> str:
        return f"RayExecutor({self.address!r})"

    @property
    def width(self) -> int:
        """How many groups fit on the cores of the cluster as it is now."""
        self._connect()
        cores = self.ray.cluster_resources().get("CPU", 0)
        return max(1, int(cores // self.cpus))

    def run(self, groups: Sequence[Group], site: Site) -> Iterator[Finished]:
        """Submit the groups, and again those whose worker or node was lost."""
        self._connect()
        waiting = {self._submit(group, site): group for group in groups}
        lost = dict.fromkeys(groups, 0)
        try:
            while waiting:
                (reference,), _ = self.ray.wait(list(waiting), num_returns=1)
                group = waiting.pop(reference)
                try:
                    seconds, files, interrupted = self.ray.get(reference)
                except self.ray.exceptions.RayTaskError as error:
                    raise error.cause from error  # as it was raised on the worker
                except self.ray.exceptions.RayError as error:  # not the job's fault
                    lost[group] += 1
                    _check_losses(group, lost[group], error)
                    site.report.note(
                        f"a worker was lost ({type(error).__name__}); doing again: {group[0].title}"
                        + (f" and {len(group) - 1} more" if len(group) > 1 else "")
                    )
                    waiting[self._submit(group, site)] = group
                    continue
                if interrupted is not None:
                    raise TrialInterrupted(*interrupted)
                for job, sent in zip(group, files or (), strict=files is not None):
                    site.archive.take(job, sent)
                yield Finished(group, seconds)
        finally:
            for reference in waiting:  # trainings under way leave a checkpoint
                self.ray.cancel(reference)

    def close(self) -> None:
        """Leave the cluster; one that was started here ends."""
        if self._connected:
            self.ray.shutdown()
            self._connected = False

    # Helpers -------------------------------------------------------------------------------------

    def _connect(self) -> None:
        if self._connected:
            return
        # Ray's future behaviour, and without it a warning at every start.
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        if not self.ray.is_initialized():
            alone = self.address is None and "RAY_ADDRESS" not in os.environ
            more: dict[str, Any] = {"include_dashboard": False} if alone else {}
            try:
                self.ray.init(self.address, log_to_driver=False, logging_level="error", **more)
            except (ConnectionError, ValueError, RuntimeError) as error:
                raise ExecutorError(
                    f"there is no Ray cluster at {self.address or 'this machine'}: {error}"
                ) from error
            self._connected = True
        self._task = self.ray.remote(max_retries=0)(_perform)

    def _submit(self, group: Group, site: Site) -> Any:
        gpu = any(isinstance(job, Trial) and job.device.startswith("cuda") for job in group)
        # References inside a container: only a worker that does not see the archive fetches them.
        inputs = {
            trial.key: (trial, self.ray.put(site.archive.export(trial)))
            for job in group
            if isinstance(job, Computation) and (self.gather or self.address is not None)
            for trial in job.trials
        }
        resources = {"num_cpus": self.cpus, "num_gpus": int(gpu)}
        archive = None if self.gather else (site.archive.path.absolute(), site.archive.identity)
        return self._task.options(**resources).remote(group, archive, inputs, site.data_dir)


def _perform(
    group: Group,
    archive: tuple[Path, str] | None,
    inputs: Mapping[str, tuple[Trial, Any]],
    data_dir: Path | None,
) -> Report:
    """Do a group on a worker: in the archive if it is seen here, else apart and sent back."""
    if archive is not None and _is_seen(*archive):
        seconds, interrupted = perform_apart(group, archive[0], data_dir)
        return seconds, None, interrupted
    with tempfile.TemporaryDirectory(prefix="pathspace-") as folder:
        own = Archive(folder)
        for trial, reference in inputs.values():
            own.take(trial, _import().get(reference))
        seconds, interrupted = perform_apart(group, own.path, data_dir)
        files = None if interrupted else [own.export(job) for job in group]
        return seconds, files, interrupted


def _is_seen(path: Path, identity: str) -> bool:
    """Whether this worker sees the driver's archive, not another folder of that name."""
    file = path / IDENTITY
    return file.is_file() and file.read_text(encoding="utf-8") == identity


def _check_losses(group: Group, count: int, error: Exception) -> None:
    if count > REPEATS:
        raise ExecutorError(
            f"{group[0].title}: its worker was lost {count} times ({error}); is there enough "
            "memory? The same command goes on from what is finished"
        ) from error


def _import() -> Any:
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise ExecutorError(
            "this needs Ray, which is not installed: pip install 'pathspace[ray]'; "
            "--executor local:N uses the cores of this machine without it"
        ) from error
    return ray
