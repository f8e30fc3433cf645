"""``pathspace reproduce``: the papers' tables and figures, beside the papers' own numbers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from pathspace.cli.completion import experiments, presets
from pathspace.cli.options import AsJson, DataDir, missing
from pathspace.cli.output import show_json
from pathspace.cli.tables import show_tables
from pathspace.errors import PathspaceError
from pathspace.tables import Column, Row, Table

REPORT = "report.html"
LIST, ALL = "list", "all"
MOST = 8  # processes unless somebody asks for more: each has the data in memory


def reproduce(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="WHAT",
            help="A paper and a figure, such as [bold]meng2019 fig4[/]; a paper for all it has; "
            "[bold]all[/]; or [bold]list[/], which shows what there is.",
            show_default=False,
            autocompletion=experiments,
        ),
    ] = None,
    preset: Annotated[
        str,
        typer.Option(
            metavar="<quick|paper>",
            help="Minutes on two cores, or the published setting; [bold]list[/] shows what some "
            "have in between.",
            autocompletion=presets,
        ),
    ] = "quick",
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder of pages, pictures and tables.")
    ] = Path("reproductions"),
    archive: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder of results, in which everything is computed once.",
            show_default="archive in --out",
        ),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="A setting other than the preset's, such as [bold]epochs=3[/] or "
            "[bold]widths=\\[8, 16][/]; may be repeated. The page says so.",
            show_default=False,
        ),
    ] = None,
    executor: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Where the work is done: [bold]local[/] for this process, [bold]local:N[/] for N "
            "processes, [bold]ray[/] or [bold]ray:ADDRESS[/].",
            show_default=f"a process per core, at most {MOST}",
        ),
    ] = None,
    data_dir: DataDir = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
    as_json: AsJson = False,
) -> None:
    """Reproduce a table or figure of a paper, with controls, seeds and confidence intervals.

    Prints the paper's numbers beside ours, and writes pictures, a table of all
    trials, a Markdown page per experiment and one web page. Whatever stops it,
    the same command goes on where it was: nothing is computed twice.

    Examples:
        pathspace reproduce list
        pathspace reproduce meng2019 fig4 --preset quick --out fig4
        pathspace reproduce yi2019 --executor local:4
        pathspace reproduce all
        pathspace reproduce all --executor ray:auto
    """
    from pathspace.durable.files import write_file
    from pathspace.experiments.executors import Archive, executor_named
    from pathspace.experiments.reproduce.experiment import ExperimentError
    from pathspace.experiments.reproduce.page import reproduction_page
    from pathspace.experiments.reproduce.progress import progress_named
    from pathspace.experiments.reproduce.running import reproduce_all
    from pathspace.experiments.reproduce.writing import summary, write_index, write_reproduction
    from pathspace.experiments.training import TrialInterrupted
    from pathspace.experiments.training.interruption import raising
    from pathspace.page import render

    name = " ".join(what or ())
    if name == LIST:
        _show_list(as_json)
        return
    chosen = _chosen(name)
    try:
        for one in chosen:
            one.preset(preset)
    except ExperimentError as error:
        raise typer.BadParameter(str(error), param_hint="--preset") from error
    if changes:
        chosen = tuple(one.changed(preset, changes) for one in chosen)
    kept = Archive(archive or out / "archive")
    progress = progress_named("quiet" if quiet else "auto")
    found = []
    try:
        with raising(), executor_named(executor or _all_cores()) as works:
            # Side by side where there is more than one worker; else one is ready after another.
            for some in [chosen] if works.width > 1 else [(one,) for one in chosen]:
                folders: dict[str, Path] = {}

                def write(one: Any, folders: dict[str, Path] = folders) -> None:
                    folders[one.experiment.name] = write_reproduction(one, out)

                for one in reproduce_all(
                    some, preset, kept, works, data_dir=data_dir, progress=progress, ready=write
                ):
                    found.append(one)
                    if not as_json:
                        _show(one, folders[one.experiment.name])
            write_index(out)
            page = render(reproduction_page(found, kept)).encode()
            write_file(out / REPORT, page)
    except TrialInterrupted as interrupted:
        said = f"{interrupted}; nothing that was finished is lost"
        Console(stderr=True, highlight=False).print(Text(said, "yellow"))
        raise typer.Exit(128 + interrupted.signal) from None
    except ImportError as error:  # of matplotlib, with what to install
        raise PathspaceError(str(error)) from error
    if as_json:
        show_json([summary(one) for one in found])
    else:
        typer.echo(f"\n{out / REPORT}: the report ({len(page) / 1e6:.1f} MB)")


def _all_cores() -> str:
    """The executor that uses this machine."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"local:{min(count or 1, MOST)}"


def _chosen(name: str) -> tuple[Any, ...]:
    """The experiments that a person names."""
    from pathspace.experiments.reproduce import PAPERS, find_experiment, find_experiments

    if not name:
        raise missing("WHAT", "name an experiment; `pathspace reproduce list` shows all")
    if name == ALL:
        return find_experiments()
    if name in PAPERS:
        return tuple(one for one in find_experiments() if one.name.startswith(f"{name} "))
    return (find_experiment(name),)


def _show(one: Any, folder: Path) -> None:
    """The tables and the words."""
    from pathspace.experiments.reproduce.progress import in_words

    findings, console = one.findings, Console(highlight=False)
    console.print(Text(f"\n{one.experiment.name}: {one.experiment.title}", "bold"))
    tables = [findings.table()] if findings.claims else []
    show_tables((*tables, *(block.table for block in findings.tables)))
    console.print()
    for statement in findings.statements:
        console.print(Text(f"• {statement}"))
    work = f"{len(one.answers)} jobs, {in_words(one.seconds)} of work"
    console.print(Text(f"\n{work}; {folder}", "dim"), soft_wrap=True)


def _show_list(as_json: bool) -> None:
    from pathspace.experiments.reproduce import find_experiments

    known = find_experiments()
    if as_json:
        show_json(
            [
                {"name": one.name, "title": one.title, "where": one.where, "shows": one.shows}
                | {n: {"jobs": p.jobs, "time": p.time} for n, p in one.presets.items()}
                for one in known
            ]
        )
        return
    columns = (
        Column("experiment"),
        Column("what"),
        Column("quick: jobs", number=True),
        Column("time"),
        Column("paper: jobs", number=True),
        Column("time"),
    )
    rows = tuple(
        Row(
            (one.name, one.title, str(one.quick.jobs), one.quick.time, str(one.paper.jobs),
             one.paper.time),
            str(one.source),
        )
        for one in known
    )  # fmt: skip
    notes = tuple(
        f"{one.name} has the preset {name}, too: {preset.jobs} jobs, {preset.time}"
        for one in known
        for name, preset in one.between.items()
    )
    show_tables((Table("Tables and figures that can be reproduced", columns, rows, notes),))
