"""What every command says in the same way: data for programs, and errors."""

from __future__ import annotations

import json
from typing import Any

import typer
from rich.console import Console
from rich.text import Text

from pathspace.errors import PathspaceError, TraceError


def show_error(error: PathspaceError) -> None:
    """An error and what to do next, in the words of the command line."""
    console = Console(stderr=True, highlight=False)
    message = str(error).replace('on_unknown="pin"', "--on-unknown pin")
    lines = [Text.assemble(("error: ", "bold red"), message)]
    if error.__cause__ is not None:  # somebody else's code failed
        if isinstance(error, TraceError):
            lines.append(Text("Does --input-shape fit the model, batch axis included?"))
        lines.append(Text("`pathspace --debug ...` shows the traceback."))
    for line in lines:
        console.print(line, soft_wrap=not console.is_terminal)


def show_json(data: Any) -> None:
    """Print data as JSON."""
    typer.echo(json.dumps(data, indent=2, ensure_ascii=False))
