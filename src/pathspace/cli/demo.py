"""``pathspace demo``: the main claim in numbers and pictures, in under two minutes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from pathspace.cli.tables import show_tables
from pathspace.errors import PathspaceError

REPORT = "report.html"


def demo(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the report.")] = Path(
        "pathspace-demo"
    ),
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="The first seed.")] = 0,
    quick: Annotated[
        bool, typer.Option("--quick", help="A few seconds: one seed, one epoch, two rates.")
    ] = False,
) -> None:
    """Train from two sets of weights that are one function; see which optimizers notice.

    SGD, AdaGrad, Path-SGD and G-SGD learn scikit-learn's digits from balanced
    and from unbalanced weights. Prints how they compare and writes one web page
    with tables, curves, measures and landscapes. Takes less than two minutes
    and no network.

    Examples:
        pathspace demo
        pathspace demo --quick --out elsewhere
    """
    from pathspace.durable.files import drafted
    from pathspace.experiments.demo import (
        FULL,
        QUICK,
        comparison_table,
        demo_page,
        difference_table,
        run_demo,
    )
    from pathspace.page import write

    chosen = QUICK if quick else FULL
    settings = replace(chosen, seeds=tuple(seed + k for k in range(len(chosen.seeds))))
    try:  # before the work, so that it is not done in vain
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise typer.BadParameter(
            f"{out} cannot be made: {error.strerror}", param_hint="--out"
        ) from error
    found = run_demo(settings)
    show_tables((comparison_table(found.trainings), difference_table(found.trainings)))
    try:
        with drafted(out / REPORT) as draft:
            text = write(demo_page(found), draft)
    except ImportError as error:  # of plotly or matplotlib, with what to install
        raise PathspaceError(str(error)) from error
    typer.echo(f"\n{out / REPORT}: the report ({len(text.encode()) / 1e6:.1f} MB)")
