"""``pathspace report``: runs as one web page that needs nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pathspace.cli.options import missing
from pathspace.durable.files import drafted
from pathspace.errors import PathspaceError
from pathspace.page import write
from pathspace.summary import read_runs, summarize

Paths = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="RUN",
        help="Folders of trials, trial stores or landscapes, or files that "
        "[bold]pathspace measure --out report.json[/] wrote.",
        show_default=False,
    ),
]


def report(
    runs: Paths = None,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The page to write.")] = Path(
        "report.html"
    ),
    title: Annotated[
        str, typer.Option(metavar="TEXT", help="Its heading.", show_default="what there is")
    ] = "",
    log: Annotated[
        bool, typer.Option("--log", help="Heights of landscapes on a logarithmic scale.")
    ] = False,
) -> None:
    """Write one web page about runs: tables, curves, landscapes, and their data to save.

    The page works offline and loads nothing. Trials that differ in their seed only are drawn as one
    curve with a band. Damaged trials of a store are left out, and named.

    Examples:
        pathspace report runs --out digits.html
        pathspace report runs/trials/0f3a* around --title "Digits, five seeds"
        pathspace report small.json large.json
    """
    if not runs:
        raise missing("RUN", "name at least one, such as the trial store runs")
    if not out.absolute().parent.is_dir():
        raise typer.BadParameter(f"there is no folder {out.parent}", param_hint="--out")
    found = read_runs(runs)
    for remark in found.remarks:
        typer.echo(remark, err=True)
    try:
        page = summarize(found, title, log=log)
        with drafted(out) as draft:
            text = write(page, draft)
    except ImportError as error:  # of plotly or matplotlib, with what to install
        raise PathspaceError(str(error)) from error
    typer.echo(f"{out}: {page.title} ({len(text.encode()) / 1e6:.1f} MB)")
