"""``pathspace train``: one trial, trained once, and safe from interruptions."""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.text import Text

from pathspace.cli.measure import DataDir
from pathspace.cli.options import AsJson, Model
from pathspace.cli.output import show_json
from pathspace.cli.tables import show_tables
from pathspace.errors import PathspaceError
from pathspace.experiments.training import (
    INITIALISATIONS,
    LOSSES,
    OPTIMIZERS,
    PENALTIES,
    RULES,
    SCHEDULES,
    Outcome,
    Quiet,
    RankError,
    Ranks,
    Reporter,
    Trial,
    TrialError,
    TrialInterrupted,
    joined,
)
from pathspace.experiments.training import train as train_trial
from pathspace.experiments.training.engine import CHECKPOINT
from pathspace.experiments.training.naming import literal
from pathspace.experiments.training.reporting import metric_in_words, reporter_named
from pathspace.experiments.training.step import Mixed
from pathspace.experiments.training.tensorboard import TensorBoard
from pathspace.network import Streams
from pathspace.tables import NOTHING, Column, Row, Table
from pathspace.tracing.graph import OnUnknown

WHAT, HOW, LENGTH, WHERE = "What is trained", "How", "How long", "Where and with what"


def _option(group: str, metavar: str | None, text: str, *names: str, **more: Any) -> Any:
    """An option of the trial: not given means as in the file, or else the default."""
    return typer.Option(
        *names, metavar=metavar, help=text, rich_help_panel=group, show_default=False, **more
    )


def train(
    model: Model = None,
    config: Annotated[
        Path | None,
        _option(WHAT, "FILE", "A trial in TOML; options given here take precedence."),
    ] = None,
    data: Annotated[
        str | None, _option(WHAT, "NAME", "Such as [bold]digits[/]; ml-1m is ranked.")
    ] = None,
    preprocess: Annotated[
        str | None, _option(WHAT, "STEPS", "Such as [bold]average_pool:7,unit_interval,flatten[/].")
    ] = None,
    augment: Annotated[
        str | None, _option(WHAT, "NAME", "Such as [bold]crop_and_flip:4[/].")
    ] = None,
    init: Annotated[
        str | None, _option(WHAT, "NAME", "How weights begin, such as [bold]unbalanced[/].")
    ] = None,
    optimizer: Annotated[str | None, _option(HOW, "NAME", "Such as [bold]gsgd[/].")] = None,
    lr: Annotated[float | None, _option(HOW, "X", "Learning rate.")] = None,
    option: Annotated[
        list[str] | None,
        _option(HOW, "KEY=VALUE", "Of the optimizer, such as [bold]momentum=0.9[/]; repeatable."),
    ] = None,
    schedule: Annotated[
        str | None, _option(HOW, "NAME", "Such as [bold]steps:32000:48000[/].")
    ] = None,
    loss: Annotated[str | None, _option(HOW, "NAME", "By default as the data needs it.")] = None,
    weight_decay: Annotated[float | None, _option(HOW, "X", "Weight decay.")] = None,
    penalty: Annotated[
        list[str] | None, _option(HOW, "NAME", "Such as [bold]basis-path:1e-4[/]; repeatable.")
    ] = None,
    dropout: Annotated[float | None, _option(HOW, "P", "Dropout behind each ReLU.")] = None,
    batch: Annotated[int | None, _option(HOW, "N", "Examples per step.")] = None,
    drop_last: Annotated[
        bool | None, _option(HOW, None, "Leave out a last batch that is not full.")
    ] = None,
    negatives: Annotated[
        int | None, _option(HOW, "N", "Negatives per positive example, for ranking.")
    ] = None,
    seed: Annotated[int | None, _option(HOW, "N", "Of everything random.")] = None,
    epochs: Annotated[int | None, _option(LENGTH, "N", "By default 10.")] = None,
    iterations: Annotated[int | None, _option(LENGTH, "N", "The same in steps.")] = None,
    stop: Annotated[
        str | None, _option(LENGTH, "RULE", "Stop earlier, as in [bold]overfitting:10[/].")
    ] = None,
    evaluate_every: Annotated[
        int | None, _option(LENGTH, "N", "Epochs between evaluations.")
    ] = None,
    store: Annotated[
        Path,
        typer.Option(metavar="DIR", help="The trial store.", rich_help_panel=WHERE),
    ] = Path("runs"),
    data_dir: DataDir = None,
    device: Annotated[str | None, _option(WHERE, "NAME", "cpu, cuda or mps.")] = None,
    dtype: Annotated[
        Literal["float32", "float64"] | None, _option(WHERE, None, "Of the weights.")
    ] = None,
    mixed: Annotated[
        Mixed | None, _option(WHERE, None, "A shorter type for the forward pass.")
    ] = None,
    deterministic: Annotated[
        bool | None, _option(WHERE, None, "Only operations that give the same numbers each time.")
    ] = None,
    streams: Annotated[
        Streams | None, _option(WHERE, None, "Units that are added: pinned, or one scale.")
    ] = None,
    on_unknown: Annotated[
        OnUnknown | None, _option(WHERE, None, "Operations in no table: refuse or pin.")
    ] = None,
    checkpoint_every: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=0, help="Between checkpoints.", rich_help_panel=WHERE),
    ] = CHECKPOINT,
    wait: Annotated[
        bool,
        typer.Option(help="For another process with the same trial.", rich_help_panel=WHERE),
    ] = True,
    tensorboard: Annotated[
        Path | None, _option(WHERE, "DIR", "Write the metrics for TensorBoard too.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
    list_names: Annotated[
        bool, typer.Option("--list", help="List optimizers, schedules, losses and so on.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train a model, or show the result if the store has it.

    A trial is known by its settings: the same ones are trained once. Ctrl-C, SIGTERM or a crash
    lose nothing but the time since the last checkpoint: the same command goes on, and ends with the
    same numbers as if nothing had happened.

    [bold]Examples[/]

    [cyan]pathspace train mlp:64-32-10 --data digits --optimizer gsgd --lr 0.5[/]

    [cyan]pathspace train mlp:49-64-64-10 --data fashion-mnist --preprocess
    average_pool:7,unit_interval,flatten --optimizer sgd --lr 0.1 --epochs 5 --store runs[/]

    [cyan]pathspace train --config trial.toml --seed 3[/]

    Processes that torchrun launches divide each batch among them, and come to the same result; with
    [bold]--device cuda[/] each takes a GPU of its own.

    [cyan]torchrun --nproc-per-node 2 -m pathspace train --config trial.toml[/]
    """
    if list_names:
        _show_names(as_json)
        return
    flags = {
        "model": model,
        "data": data,
        "preprocess": None if preprocess is None else _commas(preprocess),
        "augment": augment,
        "init": init,
        "optimizer": optimizer,
        "lr": lr,
        "schedule": schedule,
        "loss": loss,
        "weight_decay": weight_decay,
        "penalties": penalty or None,
        "dropout": dropout,
        "batch": batch,
        "drop_last": drop_last,
        "negatives": negatives,
        "seed": seed,
        "epochs": epochs,
        "iterations": iterations,
        "stop": stop,
        "evaluate_every": evaluate_every,
        "device": device,
        "dtype": dtype,
        "mixed": mixed,
        "deterministic": deterministic,
        "streams": streams,
        "on_unknown": on_unknown,
    }
    trial = _trial(config, flags, option or [])
    with joined(trial.device) as ranks, _speaking_once(ranks):
        reporter: Reporter = Quiet() if quiet or not ranks.is_first else reporter_named("auto")
        if tensorboard is not None and ranks.is_first:
            reporter = TensorBoard(reporter, tensorboard / trial.key[:16])
        # What the model's own code prints does not belong among the results.
        with contextlib.redirect_stdout(sys.stderr):
            outcome = train_trial(
                trial,
                store,
                data_dir=data_dir,
                report=reporter,
                checkpoint_every=checkpoint_every,
                wait=wait,
                ranks=ranks,
            )
    if not ranks.is_first:
        return
    if tensorboard is not None and outcome.was_there:
        TensorBoard(Quiet(), tensorboard / trial.key[:16]).replay(outcome)
    if as_json:
        show_json(outcome.to_dict())
    else:
        show_tables((_summary(outcome),))


@contextlib.contextmanager
def _speaking_once(ranks: Ranks) -> Iterator[None]:
    """End after a signal with its exit code; what all ranks would say, the first one says."""
    try:
        yield
    except TrialInterrupted as interrupted:
        if ranks.is_first:
            Console(stderr=True, highlight=False).print(Text(str(interrupted), "yellow"))
        raise typer.Exit(128 + interrupted.signal) from None
    except PathspaceError as error:
        if ranks.is_first or isinstance(error, RankError):
            raise
        raise typer.Exit(1) from error


# What is asked for -------------------------------------------------------------------------------


def _trial(config: Path | None, flags: dict[str, Any], options: list[str]) -> Trial:
    """The file's settings, with what the command line says instead."""
    settings = {} if config is None else Trial.read(config)
    given = {name: value for name, value in flags.items() if value is not None}
    for one, other in (("epochs", "iterations"), ("iterations", "epochs")):
        if one in given and other not in given:
            settings.pop(other, None)  # the length in other words
    settings |= given
    if options:
        held = settings.get("options", {})
        settings["options"] = {**(held if isinstance(held, dict) else {}), **_pairs(options)}
    try:
        return Trial.from_dict(settings)
    except TrialError as error:
        if config is None:
            raise
        raise TrialError(f"{config}: {error}") from error.__cause__


def _pairs(texts: list[str]) -> dict[str, Any]:
    pairs: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise typer.BadParameter(
                f"{text!r} should be KEY=VALUE, as in momentum=0.9", param_hint="--option"
            )
        pairs[key.strip()] = (
            [literal(part) for part in _commas(value)] if "," in value else literal(value)
        )
    return pairs


def _commas(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


# What a person sees ------------------------------------------------------------------------------

MARKS = {"diverged": "wrong", "stopped": "invariant", "finished": "invariant"}


def _summary(outcome: Outcome) -> Table:
    """The last metrics, and the best ones if there is a validation set."""
    best = outcome.best
    columns = [Column("metric"), Column("at the end", number=True)]
    columns += [Column("best validation", number=True)] if best is not None else []
    rows = [Row(("status", outcome.status, *_pad(best)), mark=MARKS[outcome.status])]
    for name, value in outcome.final.items():
        if name == "lr" or ("@" in name and not name.endswith(("@1", "@5", "@10"))):
            continue
        cells = [name.replace("_", " "), metric_in_words(name, value)]
        if best is not None:
            cells.append(metric_in_words(name, best.get(name)))
        rows.append(Row(tuple(cells)))
    remarks = [outcome.reason] if outcome.reason else []
    remarks += outcome.notes
    spent = f"{outcome.seconds:.1f} s" + (", from the store" if outcome.was_there else "")
    remarks.append(f"{spent}; {outcome.folder}")
    return Table(outcome.trial.title, tuple(columns), tuple(rows), tuple(remarks))


def _pad(best: object) -> tuple[str, ...]:
    return () if best is None else (NOTHING,)


def _show_names(as_json: bool) -> None:
    names: dict[str, dict[str, str]] = {
        "optimizers": {name: entry.description for name, entry in OPTIMIZERS.items()},
        "losses": {name: entry.description for name, entry in LOSSES.items()},
    }
    builders: dict[str, Any] = {
        "schedules": SCHEDULES,
        "stopping rules": RULES,
        "initialisations": INITIALISATIONS,
        "penalties": PENALTIES,
    }
    for kind, table in builders.items():
        names[kind] = {_usage(name, builder): _line(builder) for name, builder in table.items()}
    if as_json:
        show_json(names)
        return
    console = Console(highlight=False)
    for kind, table in names.items():
        console.print(Text(kind, "bold"))
        for name, description in table.items():
            console.print(Text.assemble(f"  {name}", ("  " + description, "dim")), soft_wrap=True)


def _usage(name: str, builder: Any) -> str:
    """The name with its arguments, as one types them."""
    parts = [name]
    for key, parameter in inspect.signature(builder).parameters.items():
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            parts.append("N:N...")
        elif parameter.default is inspect.Parameter.empty:
            parts.append(key.upper())
        else:
            default = parameter.default
            parts.append(f"[{key}={'' if default is None else str(default).lower()}]")
    return ":".join(parts)


def _line(builder: Any) -> str:
    return (builder.__doc__ or "").partition("\n")[0].replace("``", "")
