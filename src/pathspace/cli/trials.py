"""A trial on the command line: what its options ask for, and what came out as a table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from pathspace.experiments.training import Outcome, Trial, TrialError
from pathspace.experiments.training.naming import literal
from pathspace.experiments.training.reporting import metric_in_words
from pathspace.tables import NOTHING, Column, Row, Table

MARKS = {"diverged": "wrong", "stopped": "invariant", "finished": "invariant"}


def trial_asked_for(config: Path | None, flags: dict[str, Any], options: list[str]) -> Trial:
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


def outcome_table(outcome: Outcome) -> Table:
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


def commas(text: str) -> list[str]:
    """The parts between commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


def _pairs(texts: list[str]) -> dict[str, Any]:
    pairs: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise typer.BadParameter(
                f"{text!r} should be KEY=VALUE, as in momentum=0.9", param_hint="--option"
            )
        pairs[key.strip()] = (
            [literal(part) for part in commas(value)] if "," in value else literal(value)
        )
    return pairs


def _pad(best: object) -> tuple[str, ...]:
    return () if best is None else (NOTHING,)
