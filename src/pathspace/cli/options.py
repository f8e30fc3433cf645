"""The arguments and options that several commands take."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import typer

from pathspace.cli.completion import data_sets, models
from pathspace.experiments.data import VARIABLE
from pathspace.experiments.loading import is_import
from pathspace.network import Streams
from pathspace.tracing.graph import OnUnknown

Model = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        help="A built-in name such as [bold]resnet18[/], or [bold]package.module:callable[/].",
        show_default=False,
        autocompletion=models,
    ),
]
Weights = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Weights: .safetensors, or .pt or .pth with a state_dict."),
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
DATA_DIR = f"The data folder, instead of [bold]${VARIABLE}[/] and the cache."
DataDir = Annotated[
    Path | None, typer.Option("--data-dir", metavar="DIR", help=DATA_DIR, show_default=False)
]
DataName = Annotated[
    str | None,
    typer.Option(
        "--data",
        metavar="NAME",
        help="Images, such as [bold]digits[/] or [bold]cifar10[/].",
        autocompletion=data_sets,
    ),
]
Preprocess = Annotated[
    str | None,
    typer.Option(
        metavar="STEPS",
        help="Such as [bold]standardize,flatten[/].",
        show_default="to [0, 1], and to the model's shape",
    ),
]
SkeletonChoice = Annotated[
    Literal["modulo", "largest", "random"],
    typer.Option(metavar="CHOICE", help="Skeleton of the basis paths: modulo, largest or random."),
]


class Missing(typer.BadParameter):
    """Something was left out; the message is what to do."""

    def format_message(self) -> str:
        """What is missing, and the remedy."""
        return f"{self.param_hint} is missing; {self.message}"


def missing(what: str, remedy: str) -> Missing:
    """The error that an argument or option was left out, and what to do."""
    return Missing(remedy, param_hint=what)


def model_input(
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
