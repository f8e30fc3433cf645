"""``pathspace landscape``: pictures of the loss around a model, in path space or weight space."""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
import typer
from torch import Tensor, nn

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
    missing,
    model_input,
)
from pathspace.cli.output import show_json
from pathspace.cli.pictures import as_dict, draw, points_bar, show
from pathspace.durable.errors import explained
from pathspace.durable.locking import locked
from pathspace.errors import PathspaceError
from pathspace.experiments.data import load
from pathspace.experiments.fitting import fit_data
from pathspace.experiments.loading import load_model, load_weights
from pathspace.experiments.training.interruption import raising
from pathspace.losslandscape import Landscape, Towards, Trajectory, landscapes
from pathspace.losslandscape import landscape as one_landscape
from pathspace.losslandscape.directions import Directions
from pathspace.network import Network
from pathspace.tracing import trace

BATCH = 250
DRAFTS = ".pictures"  # the folder of pictures that are being drawn

Files = Annotated[
    list[Path] | None,
    typer.Option(
        "--weights",
        metavar="FILE",
        help="Weights: .safetensors, .pt or .pth. Several are drawn side by side, along the same "
        "directions and on one height scale.",
    ),
]


def landscape(
    model: Model = None,
    weights: Files = None,
    data: DataName = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of arrays and pictures.")] = Path(
        "landscape"
    ),
    space: Annotated[
        Literal["paths", "weights"],
        typer.Option(help="Move basis-path values, or weights."),
    ] = "paths",
    directions: Annotated[
        Literal["random", "filter-normalized"],
        typer.Option(metavar="KIND", help="Random directions: random or filter-normalized."),
    ] = "random",
    towards: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw the line to these weights instead."),
    ] = None,
    checkpoint: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Take the principal directions of these checkpoints instead; in order.",
        ),
    ] = None,
    grid: Annotated[int, typer.Option(min=2, metavar="N", help="Points per axis.")] = 25,
    dims: Annotated[int, typer.Option(min=1, max=2, metavar="N", help="A line, or a plane.")] = 2,
    seed: Annotated[
        int, typer.Option(metavar="N", help="Seed of random directions and of fresh weights.")
    ] = 0,
    scale: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            help="Of random directions.",
            show_default="0.05, or 1 if filter-normalized; less if need be",
        ),
    ] = None,
    skeleton: SkeletonChoice = "largest",
    split: Annotated[Literal["train", "test"], typer.Option(help="Which part of the data.")] = (
        "train"
    ),
    limit: Annotated[
        int, typer.Option(min=1, metavar="N", help="Only the first N samples.")
    ] = 1000,
    preprocess: Preprocess = None,
    data_dir: DataDir = None,
    log: Annotated[bool, typer.Option("--log", help="Logarithmic colours and heights.")] = False,
    streams: OnSum = "pinned",
    input_shape: InputShape = None,
    input_dtype: InputDtype = None,
    on_unknown: OnOther = "error",
    as_json: AsJson = False,
) -> None:
    """Draw the loss on a line or a plane through a model.

    Without weights, fresh random ones, the same for the same seed. Ctrl-C and SIGTERM keep what is
    computed; the same command goes on from there.

    Examples:
        pathspace landscape mlp:64-32-10 --data digits --out around
        pathspace landscape plainnet18 --data cifar10 --out both
            --weights small.pt --weights large.pt --skeleton modulo --scale 0.05
        pathspace landscape mlp:64-32-10 --data digits --out line
            --weights a.pt --towards b.pt --space weights
    """
    if model is None:
        raise missing("MODEL", "try mlp:64-32-10; `pathspace inspect --list` has more")
    if data is None:
        raise missing("--data", "try digits; `pathspace data list` has more")
    _check_extras()
    # What the model's own code prints does not belong among the results.
    with _ending_by_signals(), contextlib.redirect_stdout(sys.stderr):
        torch.manual_seed(seed)  # of fresh weights, so that the same command goes on
        loaded, example = load_model(
            model,
            weights[0] if weights else None,
            **model_input(model, input_shape or (), input_dtype or (), None),
        )
        network = trace(loaded, example, streams=streams, on_unknown=on_unknown)
        if not isinstance(example, Tensor):
            raise PathspaceError(f"the model takes {len(example)} inputs, so images do not fit it")
        part = fit_data(load(data, data_dir), example.shape[1:], preprocess).splits[split]
        part = part.select(torch.arange(min(limit, len(part))))
        states = _states(loaded, weights or ()) or {model: _state(loaded)}
        options: dict[str, Any] = {
            "space": space,
            "directions": _directions(loaded, directions, towards, checkpoint),
            "grid": grid,
            "dims": dims,
            "seed": seed,
            "scale": scale,
            "skeleton": skeleton,
        }
        with points_bar(out) as progress, _loss_in_words(data):
            found = _compute(network, states, list(part.loader(BATCH)), out, progress, options)
        pictures = _drawn(found, out, log)
    if as_json:
        show_json(as_dict(found, pictures))
    else:
        show(found, pictures)


# What is asked for -------------------------------------------------------------------------------


def _check_extras() -> None:
    """Refuse before hours of work, not after them."""
    missing = [m for m in ("numpy", "matplotlib", "plotly") if importlib.util.find_spec(m) is None]
    if missing:
        raise PathspaceError(f"pictures need {missing[0]}: pip install 'pathspace[plot]'")


def _state(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def _states(model: nn.Module, files: Sequence[Path]) -> dict[str, Mapping[str, Tensor]]:
    """The states in files, by the names of the files."""
    stems = [file.stem for file in files]
    states: dict[str, Mapping[str, Tensor]] = {}
    for file, stem in zip(files, stems, strict=True):
        load_weights(model, file)
        states[stem if stems.count(stem) == 1 else str(file)] = _state(model)
    return states


def _directions(
    model: nn.Module, kind: Directions, towards: Path | None, checkpoints: list[Path] | None
) -> Directions:
    if towards is not None and checkpoints:
        hint = "a line to other weights and the plane of checkpoints are two pictures; choose one"
        raise typer.BadParameter(hint, param_hint="--towards")
    if towards is not None:
        ((name, state),) = _states(model, [towards]).items()
        return Towards(state, name)
    if checkpoints:
        return Trajectory(list(_states(model, checkpoints).values()))
    return kind


def _compute(
    network: Network,
    states: Mapping[str, Mapping[str, Tensor]],
    batches: list[Any],
    out: Path,
    progress: Any,
    options: Mapping[str, Any],
) -> list[Landscape]:
    """One landscape in the folder itself, several in folders of their own."""
    kept: dict[str, Any] = {"folder": out, "progress": progress, **options}
    if len(states) > 1:
        return list(landscapes(network, states, F.cross_entropy, batches, **kept).values())
    ((name, state),) = states.items()
    return [one_landscape(network, F.cross_entropy, batches, state=state, name=name, **kept)]


def _drawn(found: Sequence[Landscape], out: Path, log: bool) -> list[Path]:
    """Draw beside the arrays; a picture is there as a whole or not at all."""
    with explained(out):
        out.mkdir(parents=True, exist_ok=True)
    drafts = out / DRAFTS
    with locked(out / f"{DRAFTS}.lock", "draws these pictures"), explained(out):
        try:
            drafts.mkdir(exist_ok=True)  # a killed process may have left it
            drawn = draw(found, drafts, log)
            return [draft.replace(out / draft.name) for draft in drawn]
        finally:
            shutil.rmtree(drafts, ignore_errors=True)


@contextlib.contextmanager
def _ending_by_signals() -> Iterator[None]:
    """End after SIGTERM as after Ctrl-C, each with its exit code."""
    with raising() as watch:
        try:
            yield
        except (KeyboardInterrupt, typer.Exit):
            if not watch.signal:
                raise
            raise typer.Exit(128 + watch.signal) from None


@contextlib.contextmanager
def _loss_in_words(data: str) -> Iterator[None]:
    try:
        yield
    except (IndexError, RuntimeError, ValueError) as error:
        if isinstance(error, PathspaceError):
            raise
        raise PathspaceError(
            f"cross-entropy on {data} failed: {error}; does the model give one score per class?"
        ) from error
