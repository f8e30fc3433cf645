"""A progress bar for what may take long, shown only to people in front of a terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

Step = Callable[[str], None]


@contextlib.contextmanager
def progress_bar(title: str, total: int, show: bool | None = None) -> Iterator[Step]:
    """Give a function to call before each of ``total`` steps, with what comes next.

    Args:
        title: stands in front of the bar.
        total: number of steps.
        show: by default only if stderr is a terminal and rich is installed. The bar is drawn on
            stderr and disappears at the end; a file or a pipe never gets one.
    """
    if show is False or (show is None and not sys.stderr.isatty()):
        yield lambda _: None
        return
    try:
        from rich.console import Console
        from rich.markup import escape
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
        )
    except ImportError as error:
        if show:
            raise ImportError(
                "the progress bar needs rich: pip install 'pathspace[cli]'"
            ) from error
        yield lambda _: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    console = Console(stderr=True)
    hidden = not (console.is_terminal or console.is_jupyter)
    with Progress(*columns, console=console, transient=True, disable=hidden) as bar:
        task = bar.add_task(escape(title), total=total)
        begun = 0

        def step(what: str) -> None:
            nonlocal begun
            bar.update(task, completed=begun, description=escape(f"{title}: {what}"), refresh=True)
            begun += 1

        yield step
