"""All commands under one roof, with one way to report errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from pathspace import __version__
from pathspace.cli.bench import bench
from pathspace.cli.cite import cite
from pathspace.cli.data import data
from pathspace.cli.demo import demo
from pathspace.cli.help import Command, Group, help_text
from pathspace.cli.inspect import inspect
from pathspace.cli.landscape import landscape
from pathspace.cli.measure import measure
from pathspace.cli.output import show_error
from pathspace.cli.report import report
from pathspace.cli.reproduce import reproduce
from pathspace.cli.train import train
from pathspace.errors import PathspaceError

COMMANDS: tuple[Callable[..., None], ...] = (
    demo,
    inspect,
    measure,
    landscape,
    train,
    report,
    reproduce,
    bench,
    cite,
)
COMPLETE = (demo, bench, cite)  # commands that need no arguments


def application() -> typer.Typer:
    """All commands under one roof, with one way to report errors."""

    class Top(Group):
        def invoke(self, ctx: Any) -> Any:
            try:
                return super().invoke(ctx)
            except PathspaceError as error:
                if ctx.params["debug"]:
                    raise
                show_error(error)
                raise typer.Exit(1) from error

    app = typer.Typer(
        cls=Top,
        no_args_is_help=True,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,  # `--debug` shows Python's own traceback
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(help=help_text(_top))(_top)
    for command in COMMANDS:
        app.command(cls=Command, help=help_text(command), no_args_is_help=command not in COMPLETE)(
            command
        )
    app.add_typer(data())
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

    Examples:
        pathspace demo                      # what it is about, in a minute
        pathspace inspect resnet18          # what rescaling may move in a network
        pathspace measure resnet18 --self-check
        pathspace train mlp:64-32-10 --data digits --optimizer gsgd
        pathspace reproduce list            # the papers' tables and figures

    Every command has examples in its help. Exit codes: 0 done; 1 it cannot be done, and stderr says
    why; 2 the command line is wrong; 128 + N stopped by signal N, so 130 after Ctrl-C.
    """
