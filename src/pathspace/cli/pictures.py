"""What ``pathspace landscape`` shows and writes: progress, pictures, and a summary."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from pathspace.losslandscape import Landscape
from pathspace.losslandscape.partial import NAME as PARTIAL


@contextlib.contextmanager
def points_bar(out: Path) -> Iterator[Any]:
    """A bar with the time that is left, on stderr; what Ctrl-C leaves is said in words."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True, highlight=False)
    reached = [0, 0]
    try:
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task("points", total=None)

            def step(done: int, total: int) -> None:
                reached[:] = done, total
                bar.update(task, completed=done, total=total)

            yield step
    except KeyboardInterrupt:
        if any(out.rglob(PARTIAL)):
            said = f"stopped at {reached[0]:,} of {reached[1]:,} points, which are kept in {out}; "
            console.print(said + "the same command goes on from there", soft_wrap=True)
        else:
            console.print("stopped before the first point", soft_wrap=True)
        raise typer.Exit(130) from None


def draw(found: Sequence[Landscape], out: Path, log: bool) -> list[Path]:
    """Write the pictures beside the arrays."""
    import matplotlib as mpl

    mpl.use("Agg")  # no window
    from pathspace.plot.landscape import side_by_side
    from pathspace.plot.pages import write_html

    figures = {}
    if len(found) > 1:
        figures["side-by-side.png"] = side_by_side(found, log=log)
    elif found[0].dims == 1:
        figures["line.png"] = found[0].plot(log=log).figure
    else:
        figures["surface.png"] = found[0].plot(log=log).figure
        figures["contour.png"] = found[0].contour(log=log).figure
    written = []
    for name, figure in figures.items():
        figure.savefig(out / name, dpi=150)
        mpl.pyplot.close(figure)
        written.append(out / name)
    if found[0].dims == 2:
        written.append(write_html(found, out / "landscape.html", log=log))
    return written


def show(found: Sequence[Landscape], pictures: Sequence[Path]) -> None:
    """Print what was found, and where it is drawn."""
    console = Console(highlight=False)
    for one in found:
        low, high = one.range
        size = "×".join(str(len(axis)) for axis in one.axes)
        console.print(
            Text.assemble(
                (one.name, "bold"),
                f": loss {one.center:.4g}, from {low:.4g} to {high:.4g} on {size} points in the "
                f"space of {one.space}, {one.about['samples']:,} samples",
            ),
            soft_wrap=True,
        )
        if one.about["scale"] is not None:
            console.print(Text(f"  directions of scale {one.about['scale']:.4g}"), soft_wrap=True)
        for note in one.notes:
            console.print(Text(f"  note: {note}", "yellow"), soft_wrap=True)
    for path in pictures:
        console.print(Text(str(path)), soft_wrap=True)


def as_dict(found: Sequence[Landscape], pictures: Sequence[Path]) -> dict[str, Any]:
    """The same as data."""
    return {
        "landscapes": [
            {
                "name": one.name,
                "space": one.space,
                "center": one.center,
                "range": list(one.range),
                "notes": list(one.notes),
                **one.about,
            }
            for one in found
        ],
        "pictures": [str(path) for path in pictures],
    }
