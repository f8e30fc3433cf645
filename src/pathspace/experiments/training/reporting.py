"""What a person sees of a training: a bar with the time left, lines, or nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, Protocol, Self

from pathspace.experiments.training.errors import unknown
from pathspace.experiments.training.trial import Trial
from pathspace.tables import NOTHING

PERCENT = ("_error",)  # how the names of metrics that are shares end


class Reporter(Protocol):
    """Is told how a training goes; used as a context manager for as long as it lasts."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...

    def start(self, trial: Trial, done: int, total: int) -> None:
        """A training begins or goes on, after so many of its steps."""

    def progress(self, done: int) -> None:
        """So many steps are done; called a few times per second."""

    def row(self, row: Mapping[str, Any]) -> None:
        """An evaluation."""

    def note(self, text: str) -> None:
        """Something that a person should know."""


class Quiet:
    """Says nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def start(self, trial: Trial, done: int, total: int) -> None:
        """Nothing."""

    def progress(self, done: int) -> None:
        """Nothing."""

    def row(self, row: Mapping[str, Any]) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        """Nothing."""


class Lines(Quiet):
    """One line per evaluation on stderr, for files and pipes."""

    def __init__(self) -> None:
        self.headed = False

    def start(self, trial: Trial, done: int, total: int) -> None:
        """The trial in one line."""
        self.note(f"{trial.title}: {total:,} steps")

    def row(self, row: Mapping[str, Any]) -> None:
        """The main metrics in one line, names above the first one."""
        if not self.headed:
            self.note(heading(row))
            self.headed = True
        self.note(line(row))

    def note(self, text: str) -> None:
        """The text on a line of its own."""
        print(text, file=sys.stderr, flush=True)


class Bar(Lines):
    """A bar with the time left on the terminal, and one line per evaluation above it."""

    def __init__(self) -> None:
        super().__init__()
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        self.console = Console(stderr=True, highlight=False)
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self.console,
            transient=True,
        )
        self.task: Any = None

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.stop()

    def start(self, trial: Trial, done: int, total: int) -> None:
        """The trial in one line, and the bar."""
        from rich.text import Text

        self.console.print(Text(trial.title, "bold"))
        self.task = self.bar.add_task("steps", total=total, completed=done)

    def progress(self, done: int) -> None:
        """Move the bar."""
        self.bar.update(self.task, completed=done)

    def row(self, row: Mapping[str, Any]) -> None:
        """The main metrics in one line, and the bar where it is now."""
        self.progress(row["iteration"])
        super().row(row)

    def note(self, text: str) -> None:
        """The text above the bar."""
        self.console.print(text, markup=False)


def reporter_named(name: str) -> Reporter:
    """The reporter of that name; ``auto`` is a bar on a terminal, and lines elsewhere.

    Example:
        >>> reporter_named("auto").__class__.__name__  # a test is no terminal
        'Lines'
    """
    if name == "auto":
        name = "bar" if sys.stderr.isatty() and _has_rich() else "lines"
    kinds: dict[str, type[Quiet]] = {"bar": Bar, "lines": Lines, "quiet": Quiet}
    if name not in kinds:
        raise unknown("report", name, ["auto", *kinds])
    return kinds[name]()


def heading(row: Mapping[str, Any]) -> str:
    r"""The names of the main metrics, above the columns of :func:`line`.

    Example:
        >>> row = {"epoch": 2, "iteration": 9, "loss": 0.5, "test_loss": 0.6, "test_error": 0.125}
        >>> print(heading(row), line(row), sep="\n")
        epoch      loss  test error
            2    0.5000     12.50 %
    """
    return _joined(row, lambda name: name.replace("_", " "))


def line(row: Mapping[str, Any]) -> str:
    """The main metrics in one line: the loss while training, errors, and the longest lists."""
    return _joined(row, lambda name: metric_in_words(name, row[name]))


def metric_in_words(name: str, value: Any) -> str:
    """A metric as a person reads it.

    Example:
        >>> metric_in_words("test_error", 0.125), metric_in_words("loss", 2.0)
        ('12.50 %', '2.0000')
    """
    if value is None:
        return NOTHING
    if name.endswith(PERCENT):
        return f"{value:.2%}".replace("%", " %")
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def _joined(row: Mapping[str, Any], cell: Callable[[str], str]) -> str:
    shown = [n for n in row if n in ("epoch", "loss") or n.endswith((*PERCENT, "@10"))]
    shown += [n for n in row if n == "skipped_steps"]
    widths = {name: max(len(name), 5 if name == "epoch" else 8) for name in shown}
    return "  ".join(cell(name).rjust(widths[name]) for name in shown)


def _has_rich() -> bool:
    import importlib.util

    return importlib.util.find_spec("rich") is not None
