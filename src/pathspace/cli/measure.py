"""``pathspace measure``: everything there is to say about a network, as one table."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import typer
from rich.console import Console
from rich.text import Text

from pathspace.cli.options import (
    AsJson,
    DataDir,
    DataName,
    InputDtype,
    InputShape,
    Model,
    OnOther,
    OnSum,
    Preprocess,
    SkeletonChoice,
    Weights,
    missing,
    model_input,
)
from pathspace.cli.output import show_json
from pathspace.cli.tables import show_tables
from pathspace.durable.files import drafted
from pathspace.entries import claim
from pathspace.errors import PathspaceError
from pathspace.experiments.data import Dataset, load
from pathspace.experiments.fitting import fit_data
from pathspace.experiments.loading import load_model
from pathspace.measures import measures as all_measures
from pathspace.measures.bounds import BOUNDS
from pathspace.measures.flatness import FLATNESS
from pathspace.measuring import measure as measure_network
from pathspace.report import Report
from pathspace.tracing import trace


def _groups(bounds: bool, flatness: bool) -> list[str]:
    """What to measure. Bounds are for the samples that the network was trained on."""
    left_out = {*(() if bounds else (BOUNDS,)), *(() if flatness else (FLATNESS,))}
    groups = dict.fromkeys(entry.group for entry in all_measures())
    return [group for group in groups if group not in left_out]


Part = Annotated[
    Literal["train", "test"],
    typer.Option(help="Which part of the data; bounds are for the training part only."),
]
Files = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FILE", help="Write the report too: .html, .json, .csv, .txt, .png, .pdf or .svg."
    ),
]


def measure(
    model: Model = None,
    weights: Weights = None,
    data: DataName = None,
    split: Part = "train",
    preprocess: Preprocess = None,
    data_dir: DataDir = None,
    limit: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Only the first N samples.")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only this measure, family or group; repeatable."),
    ] = None,
    self_check: Annotated[
        bool,
        typer.Option("--self-check", help="Rescale the weights randomly and show what moves."),
    ] = False,
    flatness: Annotated[
        bool,
        typer.Option("--flatness", help="Also the flatness of the loss in both spaces; slower."),
    ] = False,
    skeleton: SkeletonChoice = "modulo",
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of fresh weights.")] = 0,
    streams: OnSum = "pinned",
    input_shape: InputShape = None,
    input_dtype: InputDtype = None,
    on_unknown: OnOther = "error",
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the report as a web page too.")
    ] = None,
    out: Files = None,
    list_measures: Annotated[bool, typer.Option("--list", help="List the measures.")] = False,
    as_json: AsJson = False,
) -> None:
    """Measure a network: norms, margins, bounds, and which of them rescaling leaves alone.

    Without data, only what the weights alone say is measured; without weights, fresh random ones,
    the same for the same seed. Batch norm is folded, as in eval mode. With --self-check, the exit
    code is 1 if a number moved that claims to be invariant.

    Examples:
        pathspace measure --list
        pathspace measure resnet18 --self-check
        pathspace measure mlp:64-32-10 --weights trained.safetensors --data digits
        pathspace measure mlp:64-32-10 --data digits --flatness --self-check
        pathspace measure resnet18 --only "path norm" --only "spectral norm"
            --out report.html --out report.json
    """
    if list_measures:
        _show_measures(as_json)
        return
    if model is None:
        raise missing("MODEL", "try mlp:784-64-64-10; `pathspace inspect --list` has more")
    files = [*(out or ()), *([html] if html else ())]
    writers = [_writer(path) for path in files]
    # What the model's own code prints does not belong among the results.
    with contextlib.redirect_stdout(sys.stderr):
        torch.manual_seed(seed)
        loaded, example = load_model(
            model, weights, **model_input(model, input_shape or (), input_dtype or (), None)
        )
        network = trace(loaded, example, streams=streams, on_unknown=on_unknown)
        fitted = None if data is None else _fitted(data, data_dir, example, preprocess)
        batches = None if fitted is None else _batches(fitted, split, limit)
        try:
            report = measure_network(
                network,
                batches,
                choice=skeleton,
                measures=only or _groups(split == "train", flatness),
                self_check=self_check,
                name=model,
            )
        except (IndexError, RuntimeError, ValueError) as error:
            if fitted is None or isinstance(error, PathspaceError):
                raise
            raise PathspaceError(
                f"cross-entropy on {fitted.name}, which has {fitted.classes} classes, failed: "
                f"{error}; does the model give one score per class?"
            ) from error
    if fitted is not None:
        report = replace(report, settings={**report.settings, "data": _about(fitted, split)})
    for write in writers:
        write(report)
    if as_json:
        show_json(report.to_dict())
    else:
        show_tables(report.tables())
    if report.check is not None and not report.check.ok:
        raise typer.Exit(1)


# Data --------------------------------------------------------------------------------------------


def _fitted(name: str, folder: Path | None, example: Any, preprocess: str | None) -> Dataset:
    if not isinstance(example, torch.Tensor):
        raise PathspaceError(f"the model takes {len(example)} inputs, so images do not fit it")
    return fit_data(load(name, folder), example.shape[1:], preprocess)


def _batches(dataset: Dataset, split: str, limit: int | None) -> Any:
    part = dataset.splits[split]
    if limit is not None:
        part = part.select(torch.arange(min(limit, len(part))))
    return part.loader(256)


def _about(dataset: Dataset, split: str) -> str:
    return "; ".join([f"{dataset.name} {split} ({', '.join(dataset.steps)})", *dataset.notes])


# Output ------------------------------------------------------------------------------------------


def _writer(path: Path) -> Callable[[Report], None]:
    """What writes a report to this file; refuses before anything is measured."""
    suffix = path.suffix.lower()
    if not path.absolute().parent.is_dir():
        raise typer.BadParameter(f"there is no folder {path.parent}", param_hint="--out")
    write = _draw if suffix in (".png", ".pdf", ".svg") else WRITERS.get(suffix)
    if write is None:
        known = ", ".join([*WRITERS, ".png", ".pdf", ".svg"])
        raise typer.BadParameter(f"{path}: the name should end in {known}", param_hint="--out")

    def write_whole(report: Report) -> None:
        with drafted(path) as draft:
            write(report, draft)

    return write_whole


def _draw(report: Report, path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")  # no window
    figure = report.plot().figure
    figure.savefig(path, dpi=150)
    mpl.pyplot.close(figure)


def _write_json(report: Report, path: Path) -> None:
    import json

    path.write_text(json.dumps(report.to_dict(), indent=2, ensure_ascii=False), encoding="utf-8")


WRITERS: dict[str, Callable[[Report, Path], Any]] = {
    ".html": lambda report, path: report.to_html(path),
    ".json": _write_json,
    ".csv": lambda report, path: report.to_frame().to_csv(path),
    ".txt": lambda report, path: path.write_text(f"{report}\n", encoding="utf-8"),
}


def _show_measures(as_json: bool) -> None:
    entries = all_measures()
    if as_json:
        names = ("name", "title", "symbol", "group", "unit", "invariant", "needs")
        show_json([{name: getattr(entry, name) for name in names} for entry in entries])
        return
    console = Console(highlight=False)
    width = max(len(entry.name) for entry in entries)
    group = ""
    for entry in entries:
        if entry.group != group:
            group = entry.group
            console.print(Text(group, "bold"))
        said = {"yes": "invariant", "no": "moves", "partly": "partly"}[claim(entry.invariant)]
        line = Text.assemble(entry.name.ljust(width), f"  {said:9}  ", entry.title)
        console.print(line, soft_wrap=True)
