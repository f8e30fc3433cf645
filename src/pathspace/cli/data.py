"""``pathspace data``: which data sets are here, and how to have the others."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from pathspace.cli.completion import data_sets
from pathspace.cli.help import Command, Group, help_text
from pathspace.cli.options import AsJson, DataDir
from pathspace.cli.output import show_json
from pathspace.cli.tables import show_tables
from pathspace.experiments import data as sets
from pathspace.tables import NOTHING, Column, Row, Table


def list_sets(
    data_dir: DataDir = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Compute checksums, not only compare sizes.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show which data sets are here, where, and what each would cost to download.

    [bold]present[/]: all files, with the official sizes; with --verify [bold]verified[/]: with the
    official checksums. [bold]subset[/]: smaller files, which are read and noted. [bold]altered[/],
    [bold]incomplete[/] and [bold]missing[/]: fetch them.

    Examples:
        pathspace data list
        pathspace data list --data-dir ~/datasets --verify
    """
    rows = [_embedded()] + [_row(name, data_dir, verify) for name in sets.SOURCES]
    if as_json:
        show_json(rows)
        return
    lines = tuple(Row(_cells(row), mark=MARKS.get(row["state"], "")) for row in rows)
    remarks = ("`pathspace data fetch NAME` downloads the official files, `show NAME` reads them",)
    show_tables((Table("data sets", COLUMNS, lines, remarks),))


def show(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="A data set, see [cyan]pathspace data list[/].",
            show_default=False,
            autocompletion=data_sets,
        ),
    ],
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Load a data set, check it, and show what is in it.

    Examples:
        pathspace data show digits
        pathspace data show cifar10 --data-dir ~/datasets --json
    """
    source = None if name == sets.EMBEDDED else sets.find_source(name)
    loaded: sets.Dataset | sets.Interactions
    if source is not None and source.read is None:
        loaded = sets.load_movielens(data_dir)
        facts = _facts_of_pairs(loaded)
    else:
        loaded = sets.load(name, data_dir)
        facts = _facts_of_images(loaded)
    if as_json:
        show_json({"name": name, **facts, "notes": list(loaded.notes)})
        return
    rows = tuple(Row((what, _in_words(what, value))) for what, value in facts.items())
    title = name if source is None else source.title
    columns = (Column("what"), Column("value", number=True))
    show_tables((Table(title, columns, rows, loaded.notes),))


def fetch(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME",
            help="Data sets, see [cyan]pathspace data list[/].",
            show_default=False,
            autocompletion=data_sets,
        ),
    ],
    data_dir: DataDir = None,
) -> None:
    """Download data sets, check them, and unpack them; what is already here stays.

    Examples:
        pathspace data fetch mnist
        pathspace data fetch cifar10 cifar100 --data-dir ~/datasets
    """
    for name in names:
        if name != sets.EMBEDDED:
            sets.find_source(name)  # a wrong name is said before the first download
    for name in names:
        if name == sets.EMBEDDED:
            typer.echo(f"{name}: comes with scikit-learn, nothing to fetch")
            continue
        folder = sets.fetch(name, data_dir)
        typer.echo(f"{name}: {folder}, verified; terms: {sets.find_source(name).terms}")


COMMANDS: dict[str, Callable[..., None]] = {"list": list_sets, "show": show, "fetch": fetch}


def data() -> typer.Typer:
    """The commands about data sets, as a group."""
    group = typer.Typer(
        name="data",
        cls=Group,
        help="List, show and download the data sets of the experiments.",
        no_args_is_help=True,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for name, command in COMMANDS.items():
        group.command(
            name, cls=Command, help=help_text(command), no_args_is_help=command is not list_sets
        )(command)
    return group


# What a person sees ------------------------------------------------------------------------------

COLUMNS = (
    Column("name"),
    Column("train + test", number=True),
    Column("state"),
    Column("download", number=True),
    Column("where"),
)
MARKS = {"altered": "wrong", "incomplete": "wrong", "subset": "moving"}


def _facts_of_pairs(pairs: sets.Interactions) -> dict[str, Any]:
    """The table of the papers (000, Table 1), and what is trained and tested on."""
    return {
        **pairs.statistics._asdict(),
        "training pairs": len(pairs),
        "test users": len(pairs.test_items),
        "candidates per test user": pairs.candidates.shape[1],
    }


def _facts_of_images(dataset: sets.Dataset) -> dict[str, Any]:
    mean, deviation = sets.channel_statistics(dataset.train.inputs)
    counts = [
        split.targets.bincount(minlength=dataset.classes) for split in dataset.splits.values()
    ]
    per_class = [f"{int(c.min()):,} to {int(c.max()):,}" for c in counts]
    assert dataset.maximum is not None  # nothing was standardised yet
    return {
        "training images": len(dataset.train),
        "test images": len(dataset.test),
        "shape": list(dataset.shape),
        "classes": dataset.classes,
        "training images per class": per_class[0],
        "test images per class": per_class[-1],
        "largest value": dataset.maximum,
        "mean, from 0 to 1": [round(value / dataset.maximum, 4) for value in mean.tolist()],
        "deviation, from 0 to 1": [round(x / dataset.maximum, 4) for x in deviation.tolist()],
    }


def _in_words(what: str, value: Any) -> str:
    if what == "sparsity":
        return f"{100 * value:.2f} %"
    if isinstance(value, list):
        return ("×" if what == "shape" else ", ").join(map(str, value))
    return f"{value:,}" if isinstance(value, int) else str(value)


def _row(name: str, data_dir: Path | None, verify: bool) -> dict[str, Any]:
    source = sets.find_source(name)
    folder, state = sets.look(source, data_dir, verify=verify)
    rows = source.rows
    if state == "subset":  # small, so that it may be read to see how much of it is there
        try:
            dataset = sets.load(name, data_dir)
            rows = len(dataset.train), len(dataset.test)
        except sets.DataError:
            state = "altered"
    return {
        "name": name,
        "title": source.title,
        "rows": None if folder is None else list(rows),
        "official_rows": list(source.rows),
        "state": state,
        "folder": None if folder is None else str(folder),
        "download_bytes": source.download_size,
        "terms": source.terms,
    }


def _embedded() -> dict[str, Any]:
    installed = importlib.util.find_spec("sklearn") is not None
    return {
        "name": sets.EMBEDDED,
        "title": "handwritten digits, 8×8",
        "rows": list(sets.EMBEDDED_ROWS) if installed else None,
        "official_rows": list(sets.EMBEDDED_ROWS),
        "state": "embedded" if installed else "missing",
        "folder": None,
        "download_bytes": 0,
        "terms": "comes with scikit-learn",
    }


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    train, test = row["rows"] or row["official_rows"]
    size, folder = row["download_bytes"], row["folder"]
    where = NOTHING if folder is None else _shortened(folder)
    return (
        row["name"],
        f"{train:,} + {test:,}",
        row["state"],
        sets.size_in_words(size) if size else NOTHING,
        row["terms"] if row["name"] == sets.EMBEDDED else where,
    )


def _shortened(folder: str) -> str:
    home = str(Path.home())
    return "~" + folder[len(home) :] if folder.startswith(home + "/") else folder
