"""The command ``pathspace``: what the library says, for people in front of a terminal.

A command is a function: its signature is its usage and its docstring its help. To add one, write
it and enter it in :data:`COMMANDS`. It prints a table on a terminal and plain text in a pipe, and
leaves errors alone: :func:`application` turns those of this package into a message and exit code
1. Without typer and rich this module still imports, and :func:`main` says what to install.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import torch

from pathspace import __version__
from pathspace.errors import PathspaceError, TraceError
from pathspace.experiments import models
from pathspace.experiments.loading import is_import, load_model
from pathspace.network import Network, Streams
from pathspace.tracing import trace
from pathspace.tracing.graph import OnUnknown

MISSING: str | None = None
try:
    import typer
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text
    from typer.core import TyperGroup
except ModuleNotFoundError as error:
    MISSING = error.name
else:
    # The arguments and options that several commands take.
    Model = Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="A built-in name such as [bold]resnet18[/], or [bold]package.module:callable[/].",
            show_default=False,
        ),
    ]
    Weights = Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Weights: .safetensors, or .pt or .pth with a state_dict."
        ),
    ]
    InputShape = Annotated[
        list[str] | None,
        typer.Option(
            metavar="N,N,...",
            help="Shape of the input, batch axis first; once per input. Your own model needs it.",
        ),
    ]
    InputDtype = Annotated[
        list[str] | None,
        typer.Option(
            metavar="DTYPE",
            help="Its dtype, such as int64; once per input, or once for all.",
            show_default="float32",
        ),
    ]
    Batch = Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Examples in a built-in model's input.", show_default="1"
        ),
    ]
    OnSum = Annotated[
        Streams,
        typer.Option(help="Units that are added: pin them, or let them share a scale."),
    ]
    OnOther = Annotated[
        OnUnknown,
        typer.Option(help="Operations in no table: refuse them, or pin the units they meet."),
    ]
    AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def main() -> None:
    """Run the command line: the entry point of the package."""
    if MISSING is not None:
        print(
            f"pathspace: the command line needs typer and rich, but there is no module {MISSING!r} "
            "here; pip install 'pathspace[cli]'",
            file=sys.stderr,
        )
        sys.exit(2)
    application()(prog_name="pathspace")


# Commands ----------------------------------------------------------------------------------------


def inspect(
    model: Model = None,
    weights: Weights = None,
    streams: OnSum = "pinned",
    input_shape: InputShape = None,
    input_dtype: InputDtype = None,
    batch: Batch = None,
    on_unknown: OnOther = "error",
    list_models: Annotated[bool, typer.Option("--list", help="List the built-in models.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show a network's layers, units and free scales, and what is pinned and why.

    [bold]Examples[/]

    [cyan]pathspace inspect resnet18 --streams shared[/]

    [cyan]pathspace inspect mlp:784-64-64-10 --weights trained.safetensors[/]

    [cyan]pathspace inspect my.zoo:build_net --input-shape 1,3,32,32[/]
    """
    if list_models:
        _show_catalogue(as_json)
        return
    if model is None:
        raise typer.BadParameter("missing; --list shows what is built in", param_hint="MODEL")
    # What the model's own code prints does not belong among the results.
    with contextlib.redirect_stdout(sys.stderr):
        loaded, example = load_model(
            model, weights, **_input(model, input_shape or (), input_dtype or (), batch)
        )
        network = trace(loaded, example, streams=streams, on_unknown=on_unknown)
    console = Console(highlight=False)
    if as_json:
        _show_json(_as_dict(model, network))
    elif console.is_terminal:
        _show_network(console, model, network)
    else:
        typer.echo(str(network))


COMMANDS: tuple[Callable[..., None], ...] = (inspect,)


def application() -> typer.Typer:
    """All commands under one roof, with one way to report errors."""

    class Group(TyperGroup):
        def invoke(self, ctx: Any) -> Any:
            try:
                return super().invoke(ctx)
            except PathspaceError as error:
                if ctx.params["debug"]:
                    raise
                _show_error(error)
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
        app.command(no_args_is_help=True)(command)
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


# What a command is given -------------------------------------------------------------------------


def _input(
    model: str, shapes: Sequence[str], dtypes: Sequence[str], batch: int | None
) -> dict[str, Any]:
    """The options about a model's input as arguments of ``load_model``."""
    if is_import(model) and not shapes:
        hint = f"{model} is not built in; say what it takes, e.g. --input-shape 1,3,32,32"
        raise typer.BadParameter(hint, param_hint="--input-shape")
    if shapes and batch is not None:
        hint = "the batch is the first number of --input-shape; leave one of them out"
        raise typer.BadParameter(hint, param_hint="--batch")
    if dtypes and (not shapes or len(dtypes) not in (1, len(shapes))):
        hint = "give one per --input-shape, or one for all of them"
        raise typer.BadParameter(hint, param_hint="--input-dtype")
    return {
        "input_shapes": [_shape(text) for text in shapes],
        "input_dtypes": [_dtype(text) for text in dtypes],
        "batch": batch or 1,
    }


def _shape(text: str) -> tuple[int, ...]:
    sizes = [size.strip() for size in text.split(",")]
    if not all(size.isdecimal() and int(size) > 0 for size in sizes):
        hint = f"{text!r} should be positive numbers, as in 1,3,32,32"
        raise typer.BadParameter(hint, param_hint="--input-shape")
    return tuple(map(int, sizes))


def _dtype(text: str) -> torch.dtype:
    dtype = getattr(torch, text.removeprefix("torch."), None)
    if not isinstance(dtype, torch.dtype):
        hint = f"torch has no dtype {text!r}; try float32, float64 or int64"
        raise typer.BadParameter(hint, param_hint="--input-dtype")
    return dtype


# What a person sees ------------------------------------------------------------------------------

READ_BY_BATCH_NORM = " (up to eps in train mode: read by batch norm)"


def _show_network(console: Console, title: str, network: Network) -> None:
    """The table in colour and in the width there is; on 80 columns every character counts."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for column in network.COLUMNS:
        table.add_column(column, justify="right" if column == "units" else "left", overflow="fold")
    for *cells, scales in network.rows():
        status = Text(scales.replace(READ_BY_BATCH_NORM, "*"))
        status.highlight_regex(r"pinned: (?P<dim>.*)")
        status.highlight_regex(r"(?P<green>[\d,]+ free\*?)|(?P<yellow>[\d,]+ pinned)")
        table.add_row(*map(Text, cells), status)
    console.print(Text(title, "bold"), table, "", sep="\n")
    if not network.exact.all():
        console.print(Text(f"* {READ_BY_BATCH_NORM.strip(' ()')}; exact in eval mode", "dim"))
    console.print(Text(network.totals()))


def _show_catalogue(as_json: bool) -> None:
    entries = models.catalogue()
    if as_json:
        names = ("name", "pattern", "description")
        _show_json([{name: getattr(entry, name) for name in names} for entry in entries])
        return
    console = Console(highlight=False)
    width = max(len(entry.name) for entry in entries)
    for entry in entries:
        line = Text.assemble((entry.name.ljust(width), "bold"), "  ", entry.description)
        console.print(line, soft_wrap=True)
    console.print("\nFurther members of a family go by such names:")
    for pattern in dict.fromkeys(e.pattern for e in entries if e.pattern != e.name):
        console.print(Text(f"  {pattern}"), soft_wrap=True)


def _show_error(error: PathspaceError) -> None:
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


def _show_json(data: Any) -> None:
    typer.echo(json.dumps(data, indent=2, ensure_ascii=False))


def _as_dict(model: str, network: Network) -> dict[str, Any]:
    """The table and the totals as data."""
    weights: dict[str, list[dict[str, Any]]] = {}
    for edge in network.edges:
        entry = {"parameter": edge.parameter, "shape": list(edge.shape)}
        weights.setdefault(edge.space, []).append(entry)
    rows = []
    for space in network.spaces:
        scales = network.scale[space.units]
        exact = network.exact[scales[scales > 0] - 1]
        rows.append(
            {
                "layer": space.name,
                "operation": space.operation,
                "weights": weights.pop(space.name, []),
                "units": space.size,
                "free": len(exact),
                "exact": int(exact.sum()),
                "pinned": space.size - len(exact),
                "reasons": list(space.reasons),
            }
        )
    fixed = {"operation": "fixed", "units": 0, "free": 0, "exact": 0, "pinned": 0, "reasons": []}
    rows += [{"layer": name, "weights": parts, **fixed} for name, parts in weights.items()]
    return {
        "model": model,
        "streams": network.streams,
        "rows": rows,
        "totals": {
            "m": network.m,
            "H": network.H,
            "H/m": network.invariant_ratio,
            "exact": int(network.exact.sum()),
            "unreached": list(network.unreached),
        },
    }
