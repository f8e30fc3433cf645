"""Metrics for TensorBoard, beside another report."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pathspace.experiments.training.errors import TrialError
from pathspace.experiments.training.outcome import Outcome
from pathspace.experiments.training.reporting import Reporter
from pathspace.experiments.training.trial import Trial


class TensorBoard:
    """Passes everything on to another reporter, and writes metrics as TensorBoard's scalars.

    A training that goes on tells TensorBoard to forget what came after its checkpoint.

    Args:
        reporter: what else is to be told.
        folder: for the files of TensorBoard.

    Raises:
        TrialError: TensorBoard is not installed.
    """

    def __init__(self, reporter: Reporter, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise TrialError(
                "--tensorboard needs tensorboard, which is not installed: pip install tensorboard; "
                "the metrics are in metrics.jsonl in any case"
            ) from error
        self.reporter, self.folder = reporter, folder
        self._make: Any = SummaryWriter
        self._writer: Any = None

    def __enter__(self) -> Self:
        self.reporter.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        if self._writer is not None:
            self._writer.close()
        self.reporter.__exit__(*error)

    def start(self, trial: Trial, done: int, total: int) -> None:
        """Open the files."""
        self._writer = self._make(str(self.folder), purge_step=done + 1 if done else None)
        self.reporter.start(trial, done, total)

    def progress(self, done: int) -> None:
        """Pass it on."""
        self.reporter.progress(done)

    def row(self, row: Mapping[str, Any]) -> None:
        """Write the metrics and pass them on."""
        for name, value in row.items():
            if isinstance(value, int | float) and name not in ("epoch", "iteration"):
                self._writer.add_scalar(name, value, row["iteration"])
        self.reporter.row(row)

    def replay(self, outcome: Outcome) -> None:
        """Write the metrics of a trial that was finished before, unless there are some."""
        if self.folder.exists():
            return
        with self:
            self.start(outcome.trial, 0, 0)
            for row in outcome.curves:
                self.row(row)

    def note(self, text: str) -> None:
        """Pass it on."""
        self.reporter.note(text)
