"""What trials came to: tables of their last and best evaluations, and curves of all of them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any

from pathspace.page import Block, Bullets, Curve, Curves, DataTable, Details, Section, mean_curve
from pathspace.summary.groups import SEED, Group, Row, as_number, flatten
from pathspace.summary.metrics import label, points, position, results, schedules, value
from pathspace.tables import NOTHING, Column, Table
from pathspace.tables import Row as Line


def trial_sections(groups: Sequence[Group]) -> list[Section]:
    """The results of the trials, and how they got there."""
    notes = dict.fromkeys(
        str(note)
        for group in groups
        for trial in group.trials
        for note in trial.result.get("notes", ())
    )
    best = best_table(groups)
    blocks: list[Block] = [
        last_table(groups),
        *([best] if best else []),
        *([Bullets(tuple(notes))] if notes else []),
        Details("Every trial on its own", [trials_table(groups)]),
    ]
    curves = metric_curves(groups)
    return [Section("Results", blocks), *([Section("Curves", curves)] if curves else [])]


def last_table(groups: Sequence[Group]) -> DataTable:
    """One row per configuration: mean and standard deviation at the last evaluation."""
    rows = [[trial_rows[-1] if trial_rows else None for trial_rows in g.rows] for g in groups]
    return _table(groups, rows, "Last evaluation, by configuration", "last evaluation", "results")


def best_table(groups: Sequence[Group]) -> DataTable | None:
    """The same at the evaluation with the least validation error, if every trial has one."""
    rows = [[trial.result.get("best") or {} for trial in group.trials] for group in groups]
    if not all(row for members in rows for row in members):
        return None
    title = "Evaluation with the least validation error, by configuration"
    what = "evaluation that had the least validation error (early stopping, seen afterwards)"
    flat = [[flatten(row) for row in members] for members in rows]
    return _table(groups, flat, title, what, "best results")


def trials_table(groups: Sequence[Group]) -> DataTable:
    """One row per trial: its last metrics and the time it took."""
    metrics = results(groups)
    columns = (
        Column("configuration"),
        Column("seed", number=True),
        *(Column(label(name), number=True) for name in metrics),
        Column("seconds", number=True),
        Column("status"),
        Column("key"),
    )
    lines, records = [], []
    for group in groups:
        for trial, seed, rows in zip(group.trials, group.seeds, group.rows, strict=True):
            last = rows[-1] if rows else {}
            seconds, status = trial.timings.get("seconds"), str(trial.result["status"])
            took = NOTHING if seconds is None else f"{seconds:.1f}"
            cells = [_single(value(last, name)) for name in metrics]
            reason = trial.result.get("reason")
            lines.append(
                Line(
                    (group.name, str(seed), *cells, took, status, trial.key[:16]),
                    notes=(str(reason),) if reason else (),
                )
            )
            held = {"key": trial.key, "seconds": seconds, "status": status}
            records.append({**flatten(trial.config), **last, **held})
    caption = "The last evaluation of every trial, with the key under which the store holds it."
    return DataTable(Table("All trials", columns, tuple(lines)), caption, tuple(records), "trials")


def metric_curves(groups: Sequence[Group]) -> list[Block]:
    """A figure per metric that has more than one point somewhere."""
    at = position(groups)
    if at is None:
        return []
    found: list[Block] = []
    for metric in [*results(groups), *schedules(groups)]:
        runs = {group.name: points(group, metric, at) for group in groups}
        curves = tuple(mean_curve(name, run) for name, run in runs.items() if any(run))
        if max((len(curve.x) for curve in curves), default=0) < 2:
            continue
        said = label(metric)
        records = tuple(
            {"configuration": group.name, SEED: seed, at: row[at], metric: row[metric]}
            for group in groups
            for seed, rows in zip(group.seeds, group.rows, strict=True)
            for row in rows
            if metric in row
        )
        words = " ".join(_in_words(curve, said, at) for curve in curves)
        caption, log = _caption(said, at, groups), _spans_decades(curves)
        found.append(Curves(curves, at, said, caption, words, False, log, records, metric))
    return found


def spread(values: Sequence[float]) -> str:
    """Mean and standard deviation, the deviation to two digits.

    Example:
        >>> spread([0.25]), spread([1.0, 2.0, 4.0])
        ('0.25', '2.333 ± 1.5')
    """
    mean = _single(fmean(values))
    return f"{mean} ± {stdev(values):.2g}" if len(values) > 1 else mean


# Helpers -----------------------------------------------------------------------------------------


def _table(
    groups: Sequence[Group], rows: Sequence[Sequence[Row | None]], title: str, what: str, file: str
) -> DataTable:
    """Means over the trials of each group of one row of each trial."""
    metrics = results(groups)
    settings = list(groups[0].settings)
    columns = (
        *(
            Column(name.removeprefix("options."), number=_is_numeric(groups, name))
            for name in settings
        ),
        *(() if settings else (Column("trial"),)),
        Column("seeds", number=True),
        *(Column(label(name), number=True) for name in metrics),
        Column("status"),
    )
    lines, records = [], []
    for group, members in zip(groups, rows, strict=True):
        told = list(group.settings.values()) or [group.name]
        record: dict[str, Any] = {**group.settings, "seeds": len(members)}
        cells, notes = [], []
        for metric in metrics:
            values = [value(row, metric) for row in members]
            wild = sum(not math.isfinite(v) for v in values)
            if wild:
                notes.append(f"in {wild} of {len(values)} trials {label(metric)} is not finite")
            cells.append(NOTHING if wild else spread(values))
            record[f"{label(metric)} mean"] = None if wild else fmean(values)
            record[f"{label(metric)} std"] = stdev(values) if len(values) > 1 and not wild else None
        status = _status(group)
        lines.append(Line((*told, str(len(members)), *cells, status), notes=tuple(notes)))
        records.append({**record, "status": status})
    caption = f"The metrics at the {what} of each configuration" + (
        ": mean ± standard deviation over the trials that differ in their seed only."
        if max(len(members) for members in rows) > 1
        else ", of a single trial each: one seed says nothing about the spread."
    )
    return DataTable(Table(title, columns, tuple(lines)), caption, tuple(records), file)


def _single(number: float) -> str:
    return f"{number:.4g}" if math.isfinite(number) else NOTHING


def _status(group: Group) -> str:
    counts = Counter(str(trial.result["status"]) for trial in group.trials)
    if len(counts) == 1:
        return next(iter(counts))
    return ", ".join(f"{count} {name}" for name, count in counts.items())


def _is_numeric(groups: Sequence[Group], setting: str) -> bool:
    """Whether a setting is a number, or nothing, in all groups."""
    values = [group.settings[setting] for group in groups]
    return all(text == NOTHING or not math.isnan(as_number(text)) for text in values)


def _caption(said: str, at: str, groups: Sequence[Group]) -> str:
    counts = sorted({len(group.trials) for group in groups})
    if counts == [1]:
        how = "one trial each"
    else:
        several = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        how = f"mean of {several} seeds, in a band of one standard deviation"
    return (
        f"{said[:1].upper()}{said[1:]} by {at}, as the trials wrote it: {how}. A gap means that a "
        "trial was not finite there."
    )


def _in_words(curve: Curve, said: str, at: str) -> str:
    """The shape of a curve in words."""
    known = [(x, y) for x, y in zip(curve.x, curve.y, strict=True) if math.isfinite(y)]
    if not known:
        return f"{curve.name}: {said} is nowhere finite."
    (x0, y0), (x1, y1) = known[0], known[-1]
    low, high = min(y for _, y in known), max(y for _, y in known)
    return (
        f"{curve.name}: {said} goes from {y0:.4g} at {at} {x0:g} to {y1:.4g} at {at} {x1:g}, "
        f"between {low:.4g} and {high:.4g}."
    )


def _spans_decades(curves: Sequence[Curve]) -> bool:
    """Whether a linear axis would hide most of the curve: all positive, over two decades."""
    known = [y for curve in curves for y in curve.y if math.isfinite(y)]
    return bool(known) and min(known) > 0 and max(known) / min(known) > 100
