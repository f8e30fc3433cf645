"""The command ``pathspace``: what the library says, for people in front of a terminal.

A command is a function in a file of its own: its signature is its usage and its docstring its help.
To add one, write it and enter it in :data:`pathspace.cli.application.COMMANDS`. It prints a table
on a terminal and plain text in a pipe, and leaves errors alone: the application turns those of
this package into a message and exit code 1. Without typer and rich this package still imports, and
:func:`main` says what to install.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line: the entry point of the package."""
    try:
        from pathspace.cli.application import application
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in ("typer", "rich"):
            raise
        print(
            f"pathspace: the command line needs typer and rich, but there is no module "
            f"{missing!r} here; pip install 'pathspace[cli]'",
            file=sys.stderr,
        )
        sys.exit(2)
    application()(prog_name="pathspace")
