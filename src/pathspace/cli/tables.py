"""Tables in colour and in the width there is, for terminals."""

from __future__ import annotations

import typer
from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from pathspace.tables import Table

COLOURS = {"invariant": "cyan", "moving": "yellow", "wrong": "bold red"}


def show_tables(tables: tuple[Table, ...]) -> None:
    """Print tables: in colour on a terminal, as plain text in a pipe."""
    console = Console(highlight=False)
    if not console.is_terminal:
        typer.echo("\n\n".join(table.text() for table in tables))
        return
    for number, table in enumerate(tables):
        if number:
            console.print()
        _show(console, table)


def _show(console: Console, table: Table) -> None:
    shown = RichTable(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for column in table.headings:
        shown.add_column(column.name, justify="right" if column.number else "left", overflow="fold")
    group = ""
    for row, cells in table.lines():
        if row.group != group:
            group = row.group
            shown.add_row(Text(group, "bold"))
        colour = COLOURS.get(row.mark, "")
        name, *rest = cells
        shown.add_row(Text(name, colour), *(Text(cell) for cell in rest))
    console.print(Text(table.title, "bold"), shown, sep="\n")
    if below := table.below(console.width):
        console.print()
    for text in below:
        console.print(Text(text, "dim"))
