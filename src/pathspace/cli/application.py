"""All commands under one roof, with one way to report errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from pathspace import __version__
from pathspace.cli.bench import bench
from pathspace.cli.data import data
from pathspace.cli.demo import demo
from pathspace.cli.inspect import inspect
from pathspace.cli.landscape import landscape
from pathspace.cli.measure import measure
from pathspace.cli.output import show_error
from pathspace.cli.report import report
from pathspace.cli.reproduce import reproduce
from pathspace.cli.train import train
from pathspace.errors import PathspaceError

COMMANDS: tuple[Callable[..., None], ...] = (
    inspect,
    measure,
    landscape,
    train,
    reproduce,
    report,
    demo,
    bench,
)
COMPLETE = (demo, bench)  # commands that need no arguments


def application() -> typer.Typer:
    """All commands under one roof, with one way to report errors."""

    class Group(TyperGroup):
        def invoke(self, ctx: Any) -> Any:
            try:
                return super().invoke(ctx)
            except PathspaceError as error:
                if ctx.params["debug"]:
                    raise
                show_error(error)
                raise typer.Exit(1) from error

    app = typer.Typer(
        cls=Group,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,  # `--debug` shows Python's own traceback
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_top)
    for command in COMMANDS:
        app.command(no_args_is_help=command not in COMPLETE)(command)
    app.add_typer(data)
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"pathspace {__version__}")
        raise typer.Exit()


def _top(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of errors.")] = False,
) -> None:
    """The positively scale-invariant geometry of ReLU networks.

    Examples are in the help of each command: [cyan]pathspace inspect --help[/]
    """
