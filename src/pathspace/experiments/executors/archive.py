"""The archive: results of trials and of computations in one folder, each found by its key."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from torch import Tensor

from pathspace.durable.errors import explained
from pathspace.durable.files import (
    read_file,
    remove_drafts,
    set_aside,
    write_file,
)
from pathspace.durable.locking import locked
from pathspace.experiments.executors.computation import Computation, Result
from pathspace.experiments.executors.errors import JobError
from pathspace.experiments.store import Damaged, Record, StoreError, TrialStore, pack, unpack
from pathspace.experiments.store.environment import environment
from pathspace.experiments.store.records import CONTENT, ENVIRONMENT, RESULT, TIMINGS
from pathspace.experiments.store.store import DAMAGED, RUNNING
from pathspace.experiments.training import Outcome, Trial

Job: TypeAlias = Trial | Computation
Answer: TypeAlias = Outcome | Result

TRIALS, COMPUTATIONS = "store", "computations"
IDENTITY = "archive-id"  # a file that tells whether two processes see the same folder
FILES = (*CONTENT, TIMINGS, ENVIRONMENT, RESULT)  # of a trial; the result, which completes it, last


class Archive:
    """A folder of results.

    ::

        store/                          the trials, see TrialStore
        computations/<key>.safetensors  a computation: its configuration, its result, its time
        damaged/<key>-<n>.safetensors   one that was set aside, with the reason in <key>-<n>.txt
        archive-id                      differs between any two archives

    Args:
        path: the folder; created when the first result is written.

    Example:
        >>> import tempfile
        >>> from pathspace.experiments.executors import Archive, compute
        >>> from pathspace.experiments.executors.computation import example
        >>> archive = Archive(tempfile.mkdtemp())
        >>> job = compute(example, number=3)
        >>> archive.find(job) is None, archive.work_out(job, None)["square"]
        (True, 9)
        >>> archive.find(job)["square"]
        9
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.store = TrialStore(self.path / TRIALS)

    def __repr__(self) -> str:
        return f"Archive({str(self.path)!r})"

    @property
    def identity(self) -> str:
        """What tells this archive from all others; written when first asked for."""
        file = self.path / IDENTITY
        if not file.is_file():
            with explained(self.path):
                self.path.mkdir(parents=True, exist_ok=True)
            write_file(file, uuid.uuid4().hex.encode())
        return read_file(file).decode()

    def find(self, job: Job) -> Answer | None:
        """What a job came to, or None if it is not done. Damaged files count as not done."""
        try:
            if isinstance(job, Computation):
                return self._result(job)
            record = self.store.find(job, verify=False)
            return None if record is None else _outcome(job, record)
        except Damaged:
            return None

    def record(self, trial: Trial) -> Record:
        """The files of a finished trial."""
        record = self.store.find(trial, verify=False)
        if record is None:
            raise StoreError(f"{self.store.path} does not hold {trial.title}")
        return record

    def work_out(
        self,
        job: Computation,
        data_dir: str | Path | None,
        note: Callable[[str], None] = lambda _: None,
    ) -> Result:
        """Compute, or fetch the result if it is there; only one process computes.

        A damaged result is set aside. So is a damaged trial that the computation would read.

        Raises:
            JobError: a trial that the computation reads is not done, or its result is none.
        """
        file = self._file(job)
        with explained(file.parent):
            file.parent.mkdir(parents=True, exist_ok=True)
        with locked(file.with_suffix(".lock"), f"computes {job.title}", note=note):
            remove_drafts(file.parent, file.name)
            try:
                found = self._result(job)
            except Damaged as error:
                kept = set_aside(file, self.path / DAMAGED, str(error))
                note(f"damaged: {error}; set aside as {kept}, and computed anew")
                found = None
            return found or self._compute(job, data_dir, note)

    # Moving results between machines -------------------------------------------------------------

    def export(self, job: Job) -> dict[str, bytes]:
        """The files of a finished job, by name."""
        if isinstance(job, Computation):
            return {self._file(job).name: read_file(self._file(job))}
        folder = self.record(job).folder
        return {name: read_file(folder / name) for name in FILES}

    def take(self, job: Job, files: Mapping[str, bytes]) -> None:
        """Take in the files that another archive exported; what is there already stays.

        Raises:
            Damaged: they are not those of the job.
        """
        if self.find(job) is not None:
            return
        if isinstance(job, Computation):
            (content,) = files.values()
            self._read(job, content)
            with explained(self._file(job).parent):
                self._file(job).parent.mkdir(parents=True, exist_ok=True)
            write_file(self._file(job), content)
            return
        with self.store.claim(job) as place:
            if isinstance(place, Record):
                return
            place.close()
            folder = self.store.path / RUNNING / job.key[:16]
            for name in FILES:
                write_file(folder / name, files[name])
        if self.store.find(job) is None:
            raise Damaged(f"the files that were sent are not those of {job.title}")

    # Helpers -------------------------------------------------------------------------------------

    def _file(self, job: Computation) -> Path:
        return self.path / COMPUTATIONS / f"{job.key[:16]}.safetensors"

    def _result(self, job: Computation) -> Result | None:
        file = self._file(job)
        return self._read(job, read_file(file)) if file.exists() else None

    def _read(self, job: Computation, content: bytes) -> Result:
        file = self._file(job)
        try:
            held = unpack(content)
            if held["config"] != job.to_dict():
                raise Damaged("it holds another computation than its name says")
            return Result(job, held["values"], held["seconds"], file)
        except (Damaged, KeyError, TypeError) as error:
            raise Damaged(f"{file}: {error}") from None

    def _compute(
        self, job: Computation, data_dir: str | Path | None, note: Callable[[str], None]
    ) -> Result:
        outcomes = [self._whole(trial, job, note) for trial in job.trials]
        began = time.monotonic()
        values = job.resolve()(outcomes, data_dir, **job.arguments)
        if not isinstance(values, Mapping):
            raise JobError(f"{job.function} should give a mapping, not {type(values).__name__}")
        seconds = time.monotonic() - began
        held = {
            "config": job.to_dict(),
            "values": dict(values),
            "seconds": seconds,
            "environment": environment(),
        }
        write_file(self._file(job), pack(held))
        found = self._result(job)  # as it will be read from now on
        assert found is not None
        return found

    def _whole(self, trial: Trial, job: Computation, note: Callable[[str], None]) -> Outcome:
        """The outcome of a trial all of whose files are as they were written."""
        try:
            record = self.store.find(trial)
        except Damaged as error:
            with self.store.claim(trial, report=note):  # sets it aside
                raise JobError(
                    f"{job.title} reads {trial.title}, which is damaged: {error}; it was set aside "
                    "and will be trained anew by the same command"
                ) from None
        if record is None:
            raise JobError(f"{job.title} reads {trial.title}, which is not done; yield it first")
        return _outcome(trial, record)


class StoredWeights(Mapping[str, Tensor]):
    """The weights of a finished trial, read when they are first asked for."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._held: dict[str, Tensor] | None = None

    def _weights(self) -> dict[str, Tensor]:
        if self._held is None:
            self._held = self._record.weights
        return self._held

    def __getitem__(self, name: str) -> Tensor:
        return self._weights()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights())

    def __len__(self) -> int:
        return len(self._weights())


def _outcome(trial: Trial, record: Record) -> Outcome:
    """The outcome, without reading the weights of perhaps hundreds of trials."""
    result: Any = record.result
    return Outcome(
        trial=trial,
        status=result["status"],
        reason=result["reason"],
        curves=record.rows,
        weights=StoredWeights(record),
        notes=tuple(result["notes"]),
        seconds=record.timings["seconds"],
        folder=record.folder,
        was_there=True,
    )
