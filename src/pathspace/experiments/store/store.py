"""The trial store: a folder in which every trial is computed once."""

from __future__ import annotations

import contextlib
import json
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from pathspace.durable.errors import Damaged, StoreError, explained
from pathspace.durable.files import DRAFT, move, set_aside, write_file
from pathspace.durable.locking import locked
from pathspace.experiments.data.errors import require
from pathspace.experiments.store.records import RESULT, Record, agrees, read_record
from pathspace.experiments.store.workplace import CHECKPOINT, Workplace

FORMAT = 1
MARKER, MARK = "store.json", f'{{"format": {FORMAT}}}'
TRIALS, RUNNING, LOCKS, DAMAGED = "trials", "running", "locks", "damaged"
NAME = re.compile(r"[0-9a-f]{16}")  # of a trial's folder: how its key begins

Report = Callable[[str], None]


class Configuration(Protocol):
    """What the store must know of a trial."""

    @property
    def key(self) -> str:
        """The hash of the configuration."""

    def to_dict(self) -> dict[str, Any]:
        """The configuration as data for JSON."""


class StoreWarning(UserWarning):
    """Something in the store was left out because it is damaged or foreign."""


class TrialStore:
    """A folder of trials, by the hash of their configuration.

    ::

        store.json                  marks the folder as a store, with the version of its layout
        trials/<key>/               a finished trial; appears as a whole, and never changes
            config.json             the configuration, complete
            metrics.jsonl           one line per evaluation
            weights.safetensors     the model's state_dict, for ``--weights``
            training.safetensors    optimizer, random generators, position
            result.json             status, last and best metrics, checksums of the files above
            timings.json            seconds, sessions
            environment.json        versions and machine
        running/<key>/              a trial under way or interrupted: the same, and a checkpoint
        locks/<key>.lock            held by the process that works on the trial
        damaged/<key>-<n>/          what was set aside, with the reason in reason.txt

    The files of a finished trial except the last two are the same, byte by byte, however often it
    was interrupted.

    Args:
        path: the folder; created when the first trial is begun.

    Raises:
        StoreError: the folder holds something else, or is of a later version.

    Example:
        >>> import tempfile
        >>> store = TrialStore(tempfile.mkdtemp())
        >>> list(store.records())
        []
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        marker = self.path / MARKER
        # Looked at again at the end, because another process may just have made the store.
        if not marker.is_file() and not self._is_empty() and not marker.is_file():
            raise StoreError(
                f"{self.path} is no trial store: it has no {MARKER} and holds other files; name a "
                "new or empty folder"
            )
        if marker.is_file():
            try:
                version = json.loads(marker.read_text(encoding="utf-8"))["format"]
            except (ValueError, KeyError, TypeError):
                raise Damaged(
                    f"{marker} cannot be read; it should hold {MARK}, so write that into it"
                ) from None
            if version != FORMAT:
                raise StoreError(
                    f"{self.path} has layout {version}, but this version of pathspace knows layout "
                    f"{FORMAT}; use another store, or the version that wrote it"
                )

    def __repr__(self) -> str:
        return f"TrialStore({str(self.path)!r})"

    def folder(self, trial: Configuration) -> Path:
        """Where the finished trial is, or will be."""
        return self.path / TRIALS / trial.key[:16]

    def find(self, trial: Configuration, *, verify: bool = True) -> Record | None:
        """The finished trial, or None if it is not finished.

        Raises:
            Damaged: its files are not what was written.
        """
        folder = self.folder(trial)
        if not folder.exists():
            return None
        record = read_record(folder, verify=verify)
        if record.key != trial.key or not agrees(record.config, trial.to_dict()):
            raise Damaged(f"{folder} holds another trial than its name says")
        return record

    @contextlib.contextmanager
    def claim(
        self, trial: Configuration, *, wait: bool = True, report: Report = lambda _: None
    ) -> Iterator[Record | Workplace]:
        """The finished trial, or else a place to work on it that no other process has.

        What is damaged is reported and set aside, and the trial is begun anew.

        Args:
            trial: what to work on.
            wait: for another process that works on the same trial.
            report: called with what a person should know.

        Raises:
            Busy: another process works on it, and ``wait`` is off.
            StoreError: the disk is full or cannot be written.
        """
        record = None
        with contextlib.suppress(Damaged):  # looked at again below, when nobody else can
            record = self.find(trial)
        if record is not None:
            yield record
            return
        self._create()
        lock = self.path / LOCKS / f"{trial.key[:16]}.lock"
        with locked(lock, "works on this trial", wait=wait, note=report):
            found = self._finished(trial, report)
            if found is not None:
                yield found
                return
            place = self._workplace(trial, report)
            try:
                yield place
            finally:
                place.close()
            if (place.folder / RESULT).exists():
                self._complete(trial)

    def records(self, *, verify: bool = False) -> Iterator[Record]:
        """All finished trials; what is damaged or foreign is left out with a warning."""
        folder = self.path / TRIALS
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            if not (path.is_dir() and NAME.fullmatch(path.name)):
                warnings.warn(f"{path} is no trial and was left out", StoreWarning, stacklevel=2)
                continue
            try:
                record = read_record(path, verify=verify)
                if not record.key.startswith(path.name):
                    raise Damaged(f"{path} holds another trial than its name says")
            except Damaged as error:
                warnings.warn(f"left out: {error}", StoreWarning, stacklevel=2)
                continue
            yield record

    def results(self, *, verify: bool = False) -> Any:
        """All finished trials as a pandas frame: configuration, status, last metrics, seconds.

        Best metrics have names that begin with ``best_``, and options of optimizers such that
        begin with ``options.``; the index is the beginning of the key.

        Args:
            verify: compare the checksums of all files, not only look at the small ones.
        """
        pandas = require("pandas")
        rows = {record.folder.name: _row(record) for record in self.records(verify=verify)}
        frame = pandas.DataFrame.from_dict(rows, orient="index")
        frame.index.name = "key"
        return frame

    # Helpers -----------------------------------------------------------------------------------

    def _is_empty(self) -> bool:
        if not self.path.exists():
            return True
        with explained(self.path, "read"):
            return all(entry.name.endswith(DRAFT) for entry in self.path.iterdir())

    def _create(self) -> None:
        with explained(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        if not (self.path / MARKER).exists():
            write_file(self.path / MARKER, f"{MARK}\n".encode())
        for name in (TRIALS, RUNNING, LOCKS):
            with explained(self.path / name):
                (self.path / name).mkdir(exist_ok=True)

    def _finished(self, trial: Configuration, report: Report) -> Record | None:
        """The finished trial, also if only the last step, the move, was missing."""
        try:
            if record := self.find(trial):
                return record
        except Damaged as error:
            self._set_aside(self.folder(trial), str(error), report)
        running = self._running(trial)
        if (running / RESULT).exists():
            try:
                read_record(running)
            except Damaged as error:
                self._set_aside(running, str(error), report)
            else:
                self._complete(trial)
                return self.find(trial)
        return None

    def _workplace(self, trial: Configuration, report: Report) -> Workplace:
        running = self._running(trial)
        try:
            return Workplace(running, trial.key, trial.to_dict())
        except Damaged as error:
            self._set_aside(running, str(error), report)
            return Workplace(running, trial.key, trial.to_dict())

    def _running(self, trial: Configuration) -> Path:
        return self.path / RUNNING / trial.key[:16]

    def _complete(self, trial: Configuration) -> None:
        """Move a trial whose files are all written to the finished ones."""
        running = self._running(trial)
        with explained(running / CHECKPOINT):
            (running / CHECKPOINT).unlink(missing_ok=True)
        move(running, self.folder(trial))

    def _set_aside(self, folder: Path, reason: str, report: Report) -> None:
        target = set_aside(folder, self.path / DAMAGED, reason)
        report(f"damaged: {reason}; set aside as {target}, and begun anew")


def _row(record: Record) -> dict[str, Any]:
    """One line of the frame."""
    row: dict[str, Any] = {}
    for name, value in record.config.items():
        if isinstance(value, dict):
            row |= {f"{name}.{key}": held for key, held in value.items()}
        else:
            row[name] = ", ".join(map(str, value)) if isinstance(value, list) else value
    row["status"] = record.result["status"]
    row |= record.result["final"]
    row |= {f"best_{name}": value for name, value in (record.result["best"] or {}).items()}
    return row | record.timings
