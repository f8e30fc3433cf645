"""Runs from their files: which kind each is, and what to say if it is none."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pathspace.durable.errors import Damaged
from pathspace.durable.files import checksum
from pathspace.errors import PathspaceError
from pathspace.experiments.store import Record, TrialStore, read_record
from pathspace.experiments.store.records import CONFIG, METRICS, RESULT
from pathspace.experiments.store.store import MARKER, RUNNING, StoreWarning
from pathspace.losslandscape import Landscape
from pathspace.losslandscape.result import ABOUT
from pathspace.report import Report
from pathspace.summary.groups import flatten

KINDS = (
    "a trial's folder, a trial store, a landscape's folder, or the JSON file of "
    "`pathspace measure --out report.json`"
)


class RunError(PathspaceError, ValueError):
    """A path is no run, or not one that can be read."""


@dataclass(frozen=True)
class Runs:
    """What was found.

    Attributes:
        trials: finished trials.
        reports: measured networks.
        landscapes: losses on lines and planes.
        remarks: what was left out, in words.
    """

    trials: tuple[Record, ...] = ()
    reports: tuple[Report, ...] = ()
    landscapes: tuple[Landscape, ...] = ()
    remarks: tuple[str, ...] = ()

    def __add__(self, other: Runs) -> Runs:
        known = {trial.key for trial in self.trials}
        return Runs(
            self.trials + tuple(trial for trial in other.trials if trial.key not in known),
            self.reports + other.reports,
            self.landscapes + other.landscapes,
            self.remarks + other.remarks,
        )


def read_runs(paths: Sequence[str | Path]) -> Runs:
    """Read trials, stores, reports and landscapes; a trial that is named twice counts once.

    A damaged trial of a store is left out, with a remark that names the file; one that is asked for
    by its own folder is an error.

    Raises:
        RunError: a path is none of these, or a trial is not finished.
        PathspaceError: a file in it is damaged.
    """
    found = Runs()
    for path in map(Path, paths):
        found += _read(path)
    return found


def _read(path: Path) -> Runs:
    if path.is_file():
        return _read_file(path)
    if not path.is_dir():
        raise RunError(f"there is no {path}; a run is {KINDS}")
    if (path / MARKER).is_file():
        return _read_store(path)
    if (path / ABOUT).is_file():
        return Runs(landscapes=(_read_landscape(path),))
    if (path / RESULT).is_file():
        return Runs(trials=(_checked(read_record(path, verify=False)),))
    if (path / CONFIG).is_file():
        raise RunError(f"the trial in {path} is not finished; `pathspace train` goes on with it")
    # `pathspace landscape` with several weights writes a folder for each.
    inner = sorted(file.parent for file in path.glob(f"*/{ABOUT}"))
    if not inner:
        around = path.resolve().parent
        hint = f"name the store, {around}; " if (around / MARKER).is_file() else ""
        raise RunError(f"{path} holds no run; {hint}a run is {KINDS}")
    return Runs(landscapes=tuple(map(_read_landscape, inner)))


def _read_landscape(path: Path) -> Landscape:
    try:
        return Landscape.load(path)
    except (PathspaceError, KeyError, TypeError, ValueError) as error:
        raise RunError(
            f"the landscape in {path} is damaged ({error}); `pathspace landscape` makes it again"
        ) from error


def _read_store(path: Path) -> Runs:
    trials, remarks = _intact(path)
    waiting = path / RUNNING
    count = sum(1 for _ in waiting.iterdir()) if waiting.is_dir() else 0
    said = "1 trial of {} is" if count == 1 else f"{count} trials of {{}} are"
    left = "was" if count == 1 else "were"
    if count:
        remarks.append(f"{said.format(path)} not finished and {left} left out.")
    if not trials:
        reason = " ".join(remarks) or "`pathspace train` makes one"
        raise RunError(f"{path} holds no finished trial; {reason}")
    # The store orders by hashes, which say nothing to a reader.
    return Runs(trials=tuple(sorted(trials, key=_order)), remarks=tuple(remarks))


def _intact(path: Path) -> tuple[list[Record], list[str]]:
    """The finished trials of a store that can be read, and a remark on each that cannot."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", StoreWarning)
        found = list(TrialStore(path).records())
    reasons = [str(warning.message) for warning in caught]
    trials = []
    for trial in found:
        try:
            trials.append(_checked(trial))
        except Damaged as error:
            reasons.append(str(error))
    said = (text.removeprefix("left out: ").removesuffix(" and was left out") for text in reasons)
    return trials, [f"Left out: {text}." for text in said]


def _checked(trial: Record) -> Record:
    """The trial itself; its metrics are what curves are drawn from, so they must be as written."""
    path = trial.folder / METRICS
    if checksum(path) != trial.result["files"][METRICS]:
        raise Damaged(f"{path} does not match its checksum in {RESULT}")
    return trial


def _order(trial: Record) -> list[tuple[int, float, str]]:
    """By the settings, in the order in which they are written; numbers as numbers."""
    return [
        (0, float(value), "") if isinstance(value, int | float) else (1, 0.0, str(value))
        for value in flatten(trial.config).values()
    ]


def _read_file(path: Path) -> Runs:
    if path.name in (CONFIG, RESULT, ABOUT):
        raise RunError(f"{path} is a part of a run; name its folder, {path.parent}")
    try:
        data: Any = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # of UTF-8 as well as of JSON
        raise RunError(f"{path} is not JSON; a run is {KINDS}") from error
    try:
        several = data.get("reports", [data])
        return Runs(reports=tuple(map(Report.from_dict, several)))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise RunError(
            f"{path} is not the report of a network ({type(error).__name__}: {error}); "
            f"a run is {KINDS}"
        ) from error
