"""The numbers that trials write: which there are, when, and in which unit a person reads them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pathspace.experiments.training.reporting import PERCENT
from pathspace.summary.groups import Group, Row, as_number

# Numbers in a row that say when it was written, the one for axes first.
POSITIONS = ("epoch", "iteration")
SETTINGS = ("lr",)  # what a schedule prescribes is drawn, but is no result
LISTS, SHOWN = "@", "@10"  # of recommendations, several lengths are measured and one is shown


def results(groups: Sequence[Group]) -> list[str]:
    """The names of the results, in the order of the rows."""
    rows = _rows(groups)
    names = dict.fromkeys(name for row in rows for name in row)
    return [
        name
        for name in names
        if name not in (*POSITIONS, *SETTINGS)
        and (LISTS not in name or name.endswith(SHOWN))
        and any(_is_number(row.get(name)) for row in rows)
    ]


def schedules(groups: Sequence[Group]) -> list[str]:
    """The prescribed numbers that change during some trial."""
    return [
        name
        for name in SETTINGS
        if any(len({row.get(name) for row in rows}) > 1 for g in groups for rows in g.rows)
    ]


def position(groups: Sequence[Group]) -> str | None:
    """The number that says when a row was written, if all rows have one."""
    rows = _rows(groups)
    return next((name for name in POSITIONS if rows and all(name in row for row in rows)), None)


def points(group: Group, metric: str, at: str) -> list[list[tuple[float, float]]]:
    """A metric of each trial as points (position, value), in the unit of :func:`label`.

    A value that is missing before the first step is not there yet; later it was not finite.
    """
    return [
        [
            (float(row[at]), value(row, metric))
            for row in rows
            if metric in row and not (row[metric] is None and row[at] == 0)
        ]
        for rows in group.rows
    ]


def value(row: Row | None, metric: str) -> float:
    """A metric in the unit of :func:`label`; NaN where it is missing or was not finite."""
    found = math.nan if row is None else as_number(row.get(metric))
    return 100 * found if is_share(metric) else found


def label(metric: str) -> str:
    """The metric and its unit, in words.

    Example:
        >>> label("test_error"), label("train_loss")
        ('test error (%)', 'train loss')
    """
    return metric.replace("_", " ") + (" (%)" if is_share(metric) else "")


def is_share(metric: str) -> bool:
    """Whether a metric is a share of all examples, read in percent."""
    return metric.endswith(PERCENT)


def _rows(groups: Sequence[Group]) -> list[Row]:
    return [row for group in groups for rows in group.rows for row in rows]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
