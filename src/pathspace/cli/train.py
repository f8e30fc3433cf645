"""``pathspace train``: one trial, trained once, and safe from interruptions."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.text import Text

from pathspace.cli import completion
from pathspace.cli.names import show_names
from pathspace.cli.options import DATA_DIR, AsJson, Model, missing
from pathspace.cli.output import show_json
from pathspace.cli.tables import show_tables
from pathspace.cli.trials import commas, outcome_table, trial_asked_for
from pathspace.errors import PathspaceError
from pathspace.experiments.training import (
    Quiet,
    RankError,
    Ranks,
    Reporter,
    Trial,
    TrialInterrupted,
    joined,
)
from pathspace.experiments.training import train as train_trial
from pathspace.experiments.training.engine import CHECKPOINT
from pathspace.experiments.training.interruption import raising
from pathspace.experiments.training.reporting import reporter_named
from pathspace.experiments.training.step import Mixed
from pathspace.experiments.training.tensorboard import TensorBoard
from pathspace.network import Streams
from pathspace.tracing.graph import OnUnknown

WHAT, HOW, LENGTH = "What is trained", "How", "How long"
WHERE, TYPES, SWITCHES = "Where", "Numbers and tracing", "On and off"
DEFAULTS = {one.name: one.default for one in fields(Trial) if one.default is not MISSING}


def _option(group: str, metavar: str | None, text: str, name: str = "", **more: Any) -> Any:
    """An option of the trial: not given means as in the file, or else the trial's default."""
    default = DEFAULTS.get(name)
    shown: Any = False if default is None or isinstance(default, bool) else str(default)
    return typer.Option(
        metavar=metavar, help=text, rich_help_panel=group, **{"show_default": shown, **more}
    )


def train(
    model: Model = None,
    config: Annotated[
        Path | None,
        _option(WHAT, "FILE", "A trial in TOML; options given here take precedence."),
    ] = None,
    data: Annotated[
        str | None,
        _option(
            WHAT,
            "NAME",
            "Such as [bold]digits[/]; ml-1m is ranked.",
            autocompletion=completion.data_sets,
        ),
    ] = None,
    preprocess: Annotated[
        str | None, _option(WHAT, "STEPS", "Such as [bold]average_pool:7,unit_interval,flatten[/].")
    ] = None,
    augment: Annotated[
        str | None, _option(WHAT, "NAME", "Such as [bold]crop_and_flip:4[/].")
    ] = None,
    init: Annotated[
        str | None,
        _option(
            WHAT,
            "NAME",
            "How weights begin, such as [bold]unbalanced[/].",
            show_default="he if built in, else as-built",
            autocompletion=completion.initialisations,
        ),
    ] = None,
    optimizer: Annotated[
        str | None,
        _option(
            HOW,
            "NAME",
            "Such as [bold]gsgd[/].",
            "optimizer",
            autocompletion=completion.optimizers,
        ),
    ] = None,
    lr: Annotated[
        float | None, _option(HOW, "X", "Learning rate.", show_default="the optimizer's")
    ] = None,
    option: Annotated[
        list[str] | None,
        _option(HOW, "KEY=VALUE", "Of the optimizer, such as [bold]momentum=0.9[/]; repeatable."),
    ] = None,
    schedule: Annotated[
        str | None,
        _option(
            HOW,
            "NAME",
            "Such as [bold]steps:32000:48000[/].",
            "schedule",
            autocompletion=completion.schedules,
        ),
    ] = None,
    loss: Annotated[
        str | None,
        _option(
            HOW,
            "NAME",
            "What is minimised.",
            show_default="as the data needs it",
            autocompletion=completion.losses,
        ),
    ] = None,
    weight_decay: Annotated[
        float | None, _option(HOW, "X", "Weight decay.", "weight_decay")
    ] = None,
    penalty: Annotated[
        list[str] | None,
        _option(
            HOW,
            "NAME",
            "Such as [bold]basis-path:1e-4[/]; repeatable.",
            autocompletion=completion.penalties,
        ),
    ] = None,
    dropout: Annotated[
        float | None, _option(HOW, "P", "Dropout behind each ReLU.", "dropout")
    ] = None,
    batch: Annotated[int | None, _option(HOW, "N", "Examples per step.", "batch")] = None,
    negatives: Annotated[
        int | None, _option(HOW, "N", "Negatives per positive example, for ranking.", "negatives")
    ] = None,
    seed: Annotated[int | None, _option(HOW, "N", "Of everything random.", "seed")] = None,
    epochs: Annotated[
        int | None, _option(LENGTH, "N", "Passes over the data.", show_default="10")
    ] = None,
    iterations: Annotated[int | None, _option(LENGTH, "N", "The same in steps.")] = None,
    stop: Annotated[
        str | None,
        _option(
            LENGTH,
            "RULE",
            "Stop earlier, as in [bold]overfitting:10[/].",
            "stop",
            autocompletion=completion.stopping_rules,
        ),
    ] = None,
    evaluate_every: Annotated[
        int | None, _option(LENGTH, "N", "Epochs between evaluations.", "evaluate_every")
    ] = None,
    store: Annotated[
        Path,
        typer.Option(metavar="DIR", help="The trial store.", rich_help_panel=WHERE),
    ] = Path("runs"),
    data_dir: Annotated[Path | None, _option(WHERE, "DIR", DATA_DIR)] = None,
    tensorboard: Annotated[
        Path | None, _option(WHERE, "DIR", "Write the metrics for TensorBoard too.")
    ] = None,
    device: Annotated[str | None, _option(WHERE, "NAME", "cpu, cuda or mps.", "device")] = None,
    checkpoint_every: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=0, help="Between checkpoints.", rich_help_panel=WHERE),
    ] = CHECKPOINT,
    dtype: Annotated[
        Literal["float32", "float64"] | None, _option(TYPES, None, "Of the weights.", "dtype")
    ] = None,
    mixed: Annotated[
        Mixed | None, _option(TYPES, None, "A shorter type for the forward pass.", "mixed")
    ] = None,
    streams: Annotated[
        Streams | None,
        _option(TYPES, None, "Units that are added: pinned, or one scale.", "streams"),
    ] = None,
    on_unknown: Annotated[
        OnUnknown | None,
        _option(TYPES, None, "Operations in no table: refuse or pin.", "on_unknown"),
    ] = None,
    drop_last: Annotated[
        bool | None,
        _option(SWITCHES, None, "Leave out a last batch that is not full.", show_default="no"),
    ] = None,
    deterministic: Annotated[
        bool | None,
        _option(SWITCHES, None, "The same numbers each time.", show_default="yes"),
    ] = None,
    wait: Annotated[
        bool,
        typer.Option(
            help="For another process with the same trial.",
            rich_help_panel=SWITCHES,
            show_default="yes",
        ),
    ] = True,
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

    Processes that torchrun launches divide each batch among them, and come to the same result; with
    [bold]--device cuda[/] each takes a GPU of its own.

    Examples:
        pathspace train --list
        pathspace train mlp:64-32-10 --data digits --optimizer gsgd --lr 0.5
        pathspace train mlp:49-64-64-10 --data fashion-mnist --epochs 5
            --preprocess average_pool:7,unit_interval,flatten
        pathspace train --config trial.toml --seed 3
        torchrun --nproc-per-node 2 -m pathspace train --config trial.toml
    """
    given = locals()  # the options of a trial have the names of its settings
    if list_names:
        show_names(as_json)
        return
    if config is None and model is None:
        raise missing("MODEL", "try mlp:64-32-10; `pathspace inspect --list` has more")
    if config is None and data is None:
        raise missing("--data", "try digits; `pathspace data list` has more")
    flags = {one.name: given[one.name] for one in fields(Trial) if one.name in given} | {
        "preprocess": None if preprocess is None else commas(preprocess),
        "penalties": penalty or None,
    }
    trial = trial_asked_for(config, flags, option or [])
    with joined(trial.device) as ranks, _speaking_once(ranks), _stopping(ranks):
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
        show_tables((outcome_table(outcome),))


def _stopping(ranks: Ranks) -> contextlib.AbstractContextManager[object]:
    """Stop at a signal also before the first step and after the last; ranks stop together only."""
    return raising() if ranks.size == 1 else contextlib.nullcontext()


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
