"""Finished trials as they are on the disk: read, checked, and never changed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from pathspace.durable.errors import Damaged
from pathspace.durable.files import checksum, read_file, read_sealed
from pathspace.experiments.store.states import unpack, unpack_weights

CONFIG = "config.json"
METRICS = "metrics.jsonl"
WEIGHTS = "weights.safetensors"
TRAINING = "training.safetensors"
ENVIRONMENT = "environment.json"
TIMINGS = "timings.json"
RESULT = "result.json"

CONTENT = (CONFIG, METRICS, WEIGHTS, TRAINING)  # what the checksums in the result are of


@dataclass(frozen=True)
class Record:
    """A finished trial.

    Attributes:
        folder: its directory.
        key: its key.
        config: its configuration.
        result: status, last and best metrics.
        timings: seconds, and how often the trial was taken up.
        environment: where and with what it ran.
    """

    folder: Path
    key: str
    config: dict[str, Any]
    result: dict[str, Any]
    timings: dict[str, Any]
    environment: dict[str, Any]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The metrics, one row per evaluation."""
        return parse_rows(self._content(METRICS), self.folder / METRICS)

    @property
    def weights(self) -> dict[str, Tensor]:
        """Parameters and buffers of the model at the end."""
        return unpack_weights(self._content(WEIGHTS))

    @property
    def training(self) -> Any:
        """Optimizer, random generators and position at the end."""
        return unpack(self._content(TRAINING))

    def _content(self, name: str) -> bytes:
        """A file, compared with its checksum: a record may be older than the damage."""
        content = read_file(self.folder / name)
        if hashlib.sha256(content).hexdigest() != self.result["files"][name]:
            raise _altered(self.folder / name)
        return content


def read_record(folder: Path, *, verify: bool = True) -> Record:
    """Read a finished trial.

    Args:
        folder: its directory.
        verify: compare the checksums of all files, not only look at the small ones.

    Raises:
        Damaged: a file is missing, cut off or altered; the message names it.
    """
    result = read_sealed(folder / RESULT)
    files = result.get("files")
    if not isinstance(files, Mapping) or set(files) != set(CONTENT):
        raise Damaged(f"{folder / RESULT} is not the result of a trial")
    for name, expected in files.items():
        path = folder / name
        if not path.is_file():
            raise Damaged(f"{path} is missing")
        if (verify or name == CONFIG) and checksum(path) != expected:
            raise _altered(path)
    return Record(
        folder=folder,
        key=result["key"],
        config=_config(folder / CONFIG),
        result=result,
        timings=read_sealed(folder / TIMINGS),
        environment=read_sealed(folder / ENVIRONMENT),
    )


def _altered(path: Path) -> Damaged:
    return Damaged(f"{path} does not match its checksum in {RESULT}")


def _config(path: Path) -> dict[str, Any]:
    try:
        held = json.loads(read_file(path))
    except (ValueError, RecursionError) as error:
        raise Damaged(f"{path} is not JSON: {error}") from error
    if not isinstance(held, dict):
        raise Damaged(f"{path} holds {type(held).__name__}, not settings by name")
    return held


def agrees(held: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    """Whether a stored configuration is this one, for trials whose keys are equal.

    It may lack settings that came later: as the keys are equal, these are at their defaults.

    Example:
        >>> config = {"lr": 0.1, "later": None}
        >>> agrees({"lr": 0.1}, config), agrees({"lr": 0.2}, config), agrees({"old": 1}, config)
        (True, False, False)
    """
    return all(name in config and config[name] == value for name, value in held.items())


def parse_rows(content: bytes, path: Path) -> list[dict[str, Any]]:
    """The rows of a file of metrics."""
    try:
        return [json.loads(line) for line in content.splitlines()]
    except (ValueError, RecursionError) as error:
        raise Damaged(f"{path} is not JSON, line by line: {error}") from error
