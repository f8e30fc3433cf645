"""What a trial came to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from torch import Tensor

from pathspace.experiments.store.records import Record
from pathspace.experiments.training.trial import Trial

Status = Literal["finished", "stopped", "diverged"]
CHOICE = "validation_error"  # what the best evaluation is chosen by


@dataclass(frozen=True, eq=False)
class Outcome:
    """The result of a trial.

    Attributes:
        trial: the configuration.
        status: ``finished`` (the budget is used), ``stopped`` (by the trial's rule) or
            ``diverged`` (the loss is not a number any more: a result too).
        reason: why, in words; empty if finished.
        curves: one row of metrics per evaluation, the first before training. A metric that is not
            finite is None.
        weights: parameters and buffers at the end, on the CPU.
        notes: what a reader must know about the data.
        seconds: of training and evaluation, all sessions together.
        folder: where the store has the trial; None without a store.
        was_there: whether the result was in the store already.
    """

    trial: Trial
    status: Status
    reason: str
    curves: Sequence[Mapping[str, Any]]
    weights: Mapping[str, Tensor] = field(repr=False)
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    folder: Path | None = None
    was_there: bool = False

    @property
    def final(self) -> Mapping[str, Any]:
        """The last row of metrics."""
        return self.curves[-1]

    @property
    def best(self) -> Mapping[str, Any] | None:
        """The row with the least validation error: early stopping, seen afterwards."""
        return best_row(self.curves)

    def to_dict(self) -> dict[str, Any]:
        """All but the weights, as data for JSON."""
        return {
            "key": self.trial.key,
            "trial": self.trial.to_dict(),
            "status": self.status,
            "reason": self.reason,
            "final": dict(self.final),
            "best": None if self.best is None else dict(self.best),
            "curves": [dict(row) for row in self.curves],
            "notes": list(self.notes),
            "seconds": self.seconds,
            "folder": None if self.folder is None else str(self.folder),
            "was_there": self.was_there,
        }


def best_row(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The first row with the least validation error, if there is such a metric.

    Example:
        >>> best_row([{"validation_error": 0.3}, {"validation_error": 0.2, "epoch": 1}])
        {'validation_error': 0.2, 'epoch': 1}
    """
    rated = [row for row in rows if row.get(CHOICE) is not None]
    return min(rated, key=lambda row: row[CHOICE]) if rated else None


def outcome_of(trial: Trial, record: Record, *, was_there: bool) -> Outcome:
    """The outcome of a trial that the store has."""
    result = record.result
    return Outcome(
        trial=trial,
        status=cast(Status, result["status"]),
        reason=result["reason"],
        curves=record.rows,
        weights=record.weights,
        notes=tuple(result["notes"]),
        seconds=record.timings["seconds"],
        folder=record.folder,
        was_there=was_there,
    )
