"""How far an experiment is: jobs done, jobs that were there already, and the time left."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, Self

from pathspace.experiments.executors import Computation, Finished, Job
from pathspace.experiments.training import Quiet, Reporter, Trial


class Progress(Protocol):
    """Is told how an experiment goes; used as a context manager for as long as it lasts."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...

    def begin(self, name: str, total: int) -> None:
        """An experiment begins, which takes so many jobs in all."""

    def ask(self, jobs: Sequence[Job], missing: Sequence[Job]) -> None:
        """The plan asks for jobs, some of which are still to be done."""

    def finish(self, finished: Finished, elapsed: float, width: int) -> None:
        """A group is done, so many seconds after the first of these; so many run at a time."""

    def reporter(self) -> Reporter:
        """Is told how trainings in this process go."""


class Silent:
    """Says nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def begin(self, name: str, total: int) -> None:
        """Nothing."""

    def ask(self, jobs: Sequence[Job], missing: Sequence[Job]) -> None:
        """Nothing."""

    def finish(self, finished: Finished, elapsed: float, width: int) -> None:
        """Nothing."""

    def reporter(self) -> Reporter:
        """Nothing is said about trainings either."""
        return Quiet()


class Forecast:
    """The time left, from what was done so far.

    A job takes as long as the mean of those of its kind (all but seed, rate and options alike), or
    of all, if there were none of its kind. Jobs that the plan has not asked for yet count like the
    mean of all.

    Example:
        >>> from dataclasses import replace
        >>> trial = Trial("mlp:64-8-10", "digits")
        >>> forecast = Forecast(3)
        >>> forecast.ask([trial, replace(trial, seed=1)], [trial, replace(trial, seed=1)])
        >>> forecast.finish(Finished((trial,), 10.0))
        >>> forecast.done, forecast.seconds_left(width=1)  # one asked for, one not yet
        (1, 20.0)
    """

    def __init__(self, total: int) -> None:
        self.total, self.done, self.asked = total, 0, 0
        self.waiting: dict[Job, None] = {}
        self.kinds: dict[object, list[float]] = {}

    def ask(self, jobs: Sequence[Job], missing: Sequence[Job]) -> None:
        """Count jobs that were there, and expect the others."""
        self.asked += len(jobs)
        self.total = max(self.total, self.asked)
        self.done += len(jobs) - len(missing)
        self.waiting = dict.fromkeys(missing)

    def finish(self, finished: Finished) -> None:
        """Learn from a group."""
        for job in finished.group:
            self.done += 1
            self.waiting.pop(job, None)
            self.kinds.setdefault(_kind(job), []).append(finished.seconds / len(finished.group))

    def seconds_left(self, width: int) -> float:
        """The time left with so many groups at a time; NaN as long as nothing was done."""
        known = [seconds for times in self.kinds.values() for seconds in times]
        if not known:
            return math.nan
        typical = sum(known) / len(known)
        means = {kind: sum(times) / len(times) for kind, times in self.kinds.items()}
        work = sum(means.get(_kind(job), typical) for job in self.waiting)
        return (work + typical * (self.total - self.asked)) / width


class Lines(Silent):
    """A line on stderr for each group that is done, for files and pipes."""

    def __init__(self) -> None:
        self.name, self.forecast = "", Forecast(0)

    def begin(self, name: str, total: int) -> None:
        """Remember both."""
        self.name, self.forecast = name, Forecast(total)

    def ask(self, jobs: Sequence[Job], missing: Sequence[Job]) -> None:
        """How many there are, and how many are to be done."""
        self.forecast.ask(jobs, missing)
        there = len(jobs) - len(missing)
        self.note(
            f"{self.name}: {len(missing)} jobs to do"
            + (f", {there} are there already" if there else "")
        )

    def finish(self, finished: Finished, elapsed: float, width: int) -> None:
        """What was done, and the time left."""
        self.forecast.finish(finished)
        left = self.forecast.seconds_left(width)
        more = f" and {len(finished.group) - 1} more" if len(finished.group) > 1 else ""
        self.note(
            f"{self.name}: {self.forecast.done} of {self.forecast.total}, {in_words(left)} left; "
            f"{finished.group[0].title}{more}"
        )

    def reporter(self) -> Reporter:
        """Only what a person must know."""
        return Notes(self)

    def note(self, text: str) -> None:
        """The text on a line of its own."""
        print(text, file=sys.stderr, flush=True)


class Bar(Lines):
    """A bar over all jobs with the time left, and below it the training under way."""

    def __init__(self) -> None:
        super().__init__()
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as RichProgress

        self.console = Console(stderr=True, highlight=False)
        self.bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=self.console,
            transient=True,
        )
        self.task: Any = None
        self.under_way: Any = None

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.stop()

    def begin(self, name: str, total: int) -> None:
        """A bar of its own, in the place of the last one."""
        super().begin(name, total)
        for task in list(self.bar.task_ids):
            self.bar.remove_task(task)
        self.task = self.bar.add_task(name, total=total, left="")
        self.under_way = self.bar.add_task("", visible=False, left="")

    def ask(self, jobs: Sequence[Job], missing: Sequence[Job]) -> None:
        """Move the bar by what is there."""
        self.forecast.ask(jobs, missing)
        self._move("")

    def finish(self, finished: Finished, elapsed: float, width: int) -> None:
        """Move the bar."""
        self.forecast.finish(finished)
        self._move(f"{in_words(self.forecast.seconds_left(width))} left")

    def reporter(self) -> Reporter:
        """The training under way as a second bar."""
        return UnderWay(self)

    def note(self, text: str) -> None:
        """The text above the bar."""
        self.console.print(text, markup=False)

    def _move(self, left: str) -> None:
        total, done = self.forecast.total, self.forecast.done
        self.bar.update(self.task, total=total, completed=done, left=left)
        self.bar.update(self.under_way, visible=False)


class Notes(Quiet):
    """Passes on what a person must know about trainings."""

    def __init__(self, lines: Lines) -> None:
        self.lines = lines

    def note(self, text: str) -> None:
        """Pass it on."""
        self.lines.note(text)


class UnderWay(Notes):
    """Shows the training under way as a second bar."""

    def __init__(self, bar: Bar) -> None:
        super().__init__(bar)
        self.bar = bar

    def start(self, trial: Trial, done: int, total: int) -> None:
        """Show the trial."""
        self.bar.bar.reset(
            self.bar.under_way, description=trial.title, total=total, completed=done, visible=True
        )

    def progress(self, done: int) -> None:
        """Move the second bar."""
        self.bar.bar.update(self.bar.under_way, completed=done)

    def row(self, row: Mapping[str, Any]) -> None:
        """Move the second bar."""
        self.progress(row["iteration"])


def progress_named(name: str) -> Progress:
    """``auto`` is a bar on a terminal and lines elsewhere; or ``bar``, ``lines``, ``quiet``."""
    if name == "auto":
        name = "bar" if sys.stderr.isatty() else "lines"
    kinds: dict[str, type[Silent]] = {"bar": Bar, "lines": Lines, "quiet": Silent}
    return kinds[name]()


def in_words(seconds: float) -> str:
    """A time in words.

    Example:
        >>> [in_words(t) for t in (0.4, 61.0, 7300.0, math.nan)]
        ['1 s', '1 min 1 s', '2 h 1 min', 'unknown time']
    """
    if math.isnan(seconds):
        return "unknown time"
    whole = math.ceil(seconds)
    hours, minutes = whole // 3600, whole % 3600 // 60
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {whole % 60} s" if minutes else f"{whole} s"


def _kind(job: Job) -> object:
    """What jobs have in common that take about equally long."""
    if isinstance(job, Computation):
        return job.function
    return (job.model, job.data, job.preprocess, job.optimizer, job.batch, job.epochs,
            job.iterations, job.penalties, job.evaluate_every)  # fmt: skip
