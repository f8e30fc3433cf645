"""``pathspace inspect``: a network's layers, units and free scales."""

from __future__ import annotations

import contextlib
import sys
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pathspace.cli.options import (
    AsJson,
    Batch,
    InputDtype,
    InputShape,
    Model,
    OnOther,
    OnSum,
    Weights,
    missing,
    model_input,
)
from pathspace.cli.output import show_json
from pathspace.experiments import models
from pathspace.experiments.loading import load_model
from pathspace.network import Network
from pathspace.tracing import trace


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

    Examples:
        pathspace inspect --list
        pathspace inspect resnet18 --streams shared
        pathspace inspect mlp:784-64-64-10 --weights trained.safetensors
        pathspace inspect my.zoo:build_net --input-shape 1,3,32,32
    """
    if list_models:
        _show_catalogue(as_json)
        return
    if model is None:
        raise missing("MODEL", "--list shows what is built in")
    # What the model's own code prints does not belong among the results.
    with contextlib.redirect_stdout(sys.stderr):
        loaded, example = load_model(
            model, weights, **model_input(model, input_shape or (), input_dtype or (), batch)
        )
        network = trace(loaded, example, streams=streams, on_unknown=on_unknown)
    console = Console(highlight=False)
    if as_json:
        show_json(_as_dict(model, network))
    elif console.is_terminal:
        _show_network(console, model, network)
    else:
        typer.echo(str(network))


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
        show_json([{name: getattr(entry, name) for name in names} for entry in entries])
        return
    console = Console(highlight=False)
    width = max(len(entry.name) for entry in entries)
    for entry in entries:
        line = Text.assemble((entry.name.ljust(width), "bold"), "  ", entry.description)
        console.print(line, soft_wrap=True)
    console.print("\nFurther members of a family go by such names:")
    for pattern in dict.fromkeys(e.pattern for e in entries if e.pattern != e.name):
        console.print(Text(f"  {pattern}"), soft_wrap=True)


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
