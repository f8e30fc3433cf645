"""``pathspace bench``: what things cost, against their goals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from pathspace.cli.completion import benchmarks
from pathspace.cli.tables import show_tables
from pathspace.errors import PathspaceError

SCALING = "scaling"
SCALING_TITLE = "How cost grows with the number of weights and layers"
REPEATS, QUICK = 10, 3


def bench(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME",
            help="Which ones; all by default. [bold]scaling[/] needs no clone.",
            show_default=False,
            autocompletion=benchmarks,
        ),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the benchmarks there are.")] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help=f"The shortest of {QUICK} times, not of {REPEATS}.")
    ] = False,
    largest: Annotated[
        float,
        typer.Option(
            "--max",
            min=1e4,
            metavar="M",
            help="Weights at which scaling stops.",
            show_default="1e8",
        ),
    ] = 1e8,
    json_: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write results there.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.svg", help="Draw them there.")] = None,
) -> None:
    """Run benchmarks: ratios of times that took turns, their goals, and whether they are met.

    Those of the repository need a clone of it. [bold]scaling[/] measures how
    time and memory of the main operations grow with weights and layers, here.

    Examples:
        pathspace bench --list
        pathspace bench optim norms --quick
        pathspace bench scaling --max 1e6 --plot scaling.svg
    """
    if list_:
        _show_names()
        return
    names = names or []
    _check_files(json_, plot)
    if SCALING in names:
        if len(names) > 1:
            hint = f"{SCALING} has a picture and a file of its own; run it alone"
            raise typer.BadParameter(hint, param_hint="NAME")
        _scaling(largest, QUICK if quick else REPEATS // 2, json_, plot)
    else:
        _repository(names, QUICK if quick else REPEATS, json_, plot)


def _scaling(largest: float, repeats: int, json_: Path | None, plot: Path | None) -> None:
    import time

    import torch

    from pathspace.bench import Benchmark, machine, results_table
    from pathspace.bench.drawing import draw_growth
    from pathspace.bench.machine import machine_in_words
    from pathspace.bench.scaling import measure_growth, networks
    from pathspace.progress import progress_bar

    about, start = machine(_clone()), time.perf_counter()
    with progress_bar(SCALING, len(networks(largest))) as step:
        growth = measure_growth(largest, repeats, advance=step)
    seconds, threads = time.perf_counter() - start, torch.get_num_threads()
    done = Benchmark(SCALING, SCALING_TITLE, growth.rows(), repeats, threads, round(seconds, 1))
    show_tables((results_table([done]),))
    typer.echo(machine_in_words(about))
    for line in growth.left_out:
        typer.echo(f"left out: {line}")
    _write(json_, lambda: _text({"machine": about, **done.to_dict(), **growth.to_dict()}))
    _write(plot, lambda: draw_growth(growth, machine_in_words(about)))


def _repository(names: list[str], repeats: int, json_: Path | None, plot: Path | None) -> None:
    from pathspace.bench import machine, results_table
    from pathspace.bench.drawing import draw_overview
    from pathspace.bench.machine import machine_in_words
    from pathspace.bench.repository import (
        BenchmarkError,
        find_repository,
        listings,
        run_benchmark,
    )
    from pathspace.progress import progress_bar

    root = find_repository()
    known = listings(root)
    if unknown := [name for name in names if name not in known]:
        hint = f"no benchmark {unknown[0]!r}; there are: {', '.join([*known, SCALING])}"
        raise typer.BadParameter(hint, param_hint="NAME")
    chosen = names or [name for name, listing in known.items() if not listing.on_request]
    about, done, failed = machine(root), [], []
    with progress_bar("benchmarks", len(chosen)) as step:
        for name in chosen:
            step(name)
            try:
                done.append(run_benchmark(root, known[name], repeats))
            except BenchmarkError as error:
                failed.append(error)
                continue
            show_tables((results_table(done[-1:]),))
            typer.echo("")
            # After each, so that what was measured is not lost with what is still to come.
            data = {"machine": about, "benchmarks": [benchmark.to_dict() for benchmark in done]}
            _write(json_, lambda data=data: _text(data), quiet=name != chosen[-1])
    typer.echo(machine_in_words(about))
    if done:
        typer.echo(results_table(done).remarks[0])
        _write(plot, lambda: draw_overview(done, machine_in_words(about)))
    if failed:
        raise PathspaceError("\n\n".join(map(str, failed)))


def _show_names() -> None:
    from pathspace.bench.repository import BenchmarkError, find_repository, listings

    console = Console(highlight=False)
    lines = [(SCALING, SCALING_TITLE)]
    try:
        found = listings(find_repository()).values()
    except BenchmarkError as error:
        typer.echo(f"{error}\n", err=True)
        found = {}.values()
    for listing in found:
        note = f" (only by name: {listing.on_request})" if listing.on_request else ""
        lines.append((listing.name, listing.title + note))
    width = max(len(name) for name, _ in lines)
    for name, title in lines:
        console.print(Text.assemble((f"{name:<{width}}", "bold"), f"  {title}"), soft_wrap=True)


def _clone() -> Path | None:
    from pathspace.bench.repository import BenchmarkError, find_repository

    try:
        return find_repository(Path(__file__))
    except BenchmarkError:
        return None


def _check_files(json_: Path | None, plot: Path | None) -> None:
    """Before the work, so that it is not done in vain."""
    if plot is not None and plot.suffix != ".svg":
        raise typer.BadParameter(f"{plot}: the picture is an .svg file", param_hint="--plot")
    for option, path in (("--json", json_), ("--plot", plot)):
        if path is not None and not path.parent.is_dir():
            raise typer.BadParameter(f"there is no folder {path.parent}", param_hint=option)


def _text(data: Any) -> str:
    from pathspace.tables import plain

    return json.dumps(plain(data), indent=1, ensure_ascii=False) + "\n"


def _write(path: Path | None, text: Any, *, quiet: bool = False) -> None:
    if path is None:
        return
    try:
        path.write_text(text())
    except OSError as error:
        raise PathspaceError(f"{path} cannot be written: {error.strerror}") from error
    if not quiet:
        typer.echo(f"{path}: written")
