"""Where an unfinished trial lives: metrics that grow, and the checkpoint that they belong to."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from pathspace.durable.errors import Damaged, explained
from pathspace.durable.files import (
    checksum,
    read_file,
    read_sealed,
    remove_drafts,
    sealed,
    write_file,
)
from pathspace.experiments.store.environment import environment
from pathspace.experiments.store.records import (
    CONFIG,
    CONTENT,
    ENVIRONMENT,
    METRICS,
    RESULT,
    TIMINGS,
    TRAINING,
    WEIGHTS,
    parse_rows,
)
from pathspace.experiments.store.states import pack, pack_weights, unpack

CHECKPOINT = "checkpoint.safetensors"


class Workplace:
    """The directory of an unfinished trial; whoever has one holds the lock of the trial.

    Metrics are appended to a file. A checkpoint says how long that file was; when the trial is
    taken up again, the file is cut to this length, so that no row is there twice or missing.

    Args:
        folder: of the trial, created if need be.
        key: of the trial.
        config: of the trial.

    Raises:
        Damaged: what is in the folder cannot be used.
    """

    def __init__(self, folder: Path, key: str, config: Mapping[str, Any]) -> None:
        self.folder, self.key = folder, key
        self.rows: list[dict[str, Any]] = []
        self.state: Any = None
        self._config = f"{json.dumps(config, indent=2, ensure_ascii=False)}\n".encode()
        self.share = 1.0
        self._seconds, self._sessions, self._began = 0.0, 1, time.monotonic()
        with explained(folder):
            folder.mkdir(parents=True, exist_ok=True)
        remove_drafts(folder)
        length = self._take_up()
        with explained(folder / METRICS):
            self._metrics = (folder / METRICS).open("ab")
            self._metrics.truncate(length)
            self._metrics.seek(length)  # it was where the file ended before

    @property
    def seconds(self) -> float:
        """Time spent on the trial, of all sessions up to their last checkpoints.

        Of several trials at once, each has its :attr:`share` of the time.
        """
        return self._seconds + self.share * (time.monotonic() - self._began)

    def log(self, row: Mapping[str, Any]) -> None:
        """Append a row to the metrics."""
        self.rows.append(dict(row))
        with explained(self.folder / METRICS):
            self._metrics.write(f"{json.dumps(row, allow_nan=False)}\n".encode())
            self._metrics.flush()  # for who reads along; the checkpoint forces it to the disk

    def save(self, state: Any) -> None:
        """Replace the checkpoint."""
        length = self._sync_metrics()
        position = {"length": length, "sha256": self._metrics_digest(length)}
        write_file(self.folder / CHECKPOINT, pack({"metrics": position, "state": state}))
        self._write_timings()

    def finish(self, result: Mapping[str, Any], weights: Mapping[str, Tensor], state: Any) -> None:
        """Write what a finished trial consists of; the result, which completes it, last."""
        self._sync_metrics()
        self._metrics.close()
        write_file(self.folder / WEIGHTS, pack_weights(weights))
        write_file(self.folder / TRAINING, pack(state))
        self._write_timings()
        files = {name: checksum(self.folder / name) for name in CONTENT}
        write_file(self.folder / RESULT, sealed({"key": self.key, **result, "files": files}))

    def close(self) -> None:
        """Close the file of metrics; rows that a full disk did not take are in no checkpoint."""
        with contextlib.suppress(OSError):
            self._metrics.close()

    # Taking up what is there ---------------------------------------------------------------------

    def _take_up(self) -> int:
        """Read the checkpoint, if there is one; the length of the metrics that belong to it."""
        config, checkpoint = self.folder / CONFIG, self.folder / CHECKPOINT
        if not checkpoint.exists():  # killed before the first one, so begin anew
            write_file(config, self._config)
            write_file(self.folder / ENVIRONMENT, sealed(environment()))
            return 0
        if read_file(config) != self._config:
            raise Damaged(f"{config} is that of another trial")
        read_sealed(self.folder / ENVIRONMENT)  # now, not when all the work is done
        try:
            held = unpack(read_file(checkpoint))
            position, state = held["metrics"], held["state"]
        except Damaged as error:
            raise Damaged(f"{checkpoint}: {error}") from None
        metrics = self.folder / METRICS
        content = read_file(metrics)[: position["length"]]
        if hashlib.sha256(content).hexdigest() != position["sha256"]:
            raise Damaged(f"{metrics} is not the one that the checkpoint was written with")
        self.state, self.rows = state, parse_rows(content, metrics)
        timings = read_sealed(self.folder / TIMINGS) if (self.folder / TIMINGS).exists() else {}
        self._seconds = timings.get("seconds", 0.0)
        self._sessions = timings.get("sessions", 1) + 1
        return int(position["length"])

    def _sync_metrics(self) -> int:
        with explained(self.folder / METRICS):
            self._metrics.flush()
            os.fsync(self._metrics.fileno())
            return self._metrics.tell()

    def _metrics_digest(self, length: int) -> str:
        return hashlib.sha256(read_file(self.folder / METRICS)[:length]).hexdigest()

    def _write_timings(self) -> None:
        timings = {"seconds": self.seconds, "sessions": self._sessions}
        write_file(self.folder / TIMINGS, sealed(timings))
