"""Tables of numbers over seeds: a line each for what was trained, a column each for what is told.

Every number of such a table is in its data too, with all that says what it is a number of.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from pathspace.errors import PathspaceError
from pathspace.page import DataTable
from pathspace.tables import Column, Row, Table

Key: TypeAlias = str | float | tuple[str | float, ...]


class TableError(PathspaceError, ValueError):
    """A line that has not the numbers of the columns."""


class Number(Protocol):
    """What a cell shows by its ``str``, such as a sample or a difference."""

    @property
    def record(self) -> Mapping[str, Any]:
        """The same in full precision, for the data."""


@dataclass(frozen=True)
class Cell:
    """A number that is shown with something else, such as the rate at which it was reached."""

    text: str
    record: Mapping[str, Any]

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Line:
    """One line of a table.

    Attributes:
        labels: the cells before the numbers.
        numbers: by the keys of the columns, in their order.
        about: what all numbers of the line are of, for the data.
        group: the heading above the line.
    """

    labels: tuple[str, ...]
    numbers: Mapping[Any, Number]
    about: Mapping[str, Any] = field(default_factory=dict)
    group: str = ""


def table_of(
    title: str,
    labels: Iterable[Column],
    columns: Mapping[Any, str],
    lines: Iterable[Line],
    caption: str,
    *,
    across: str | tuple[str, ...],
    file: str,
) -> DataTable:
    """A table of numbers, and its data: one record per number.

    Args:
        title: above it.
        labels: the columns before the numbers.
        columns: headings of the numbers, by key: a text or number, or a tuple of them.
        lines: what stands below.
        caption: what is seen and how it was obtained.
        across: what the keys of the columns are, in the data; for tuples as many names.
        file: of the data, without an ending.

    Raises:
        TableError: the numbers of a line are not those of the columns.

    Example:
        >>> from pathspace.experiments.reproduce.statistics import Sample
        >>> table = table_of(
        ...     "Errors",
        ...     [Column("arm")],
        ...     {"test": "test error (%)"},
        ...     [Line(("SGD",), {"test": Sample((3.0, 5.0))}, {"arm": "SGD"})],
        ...     "Mean ± standard deviation over seeds.",
        ...     across="split",
        ...     file="errors",
        ... )
        >>> print(table.table.text())
        Errors
        arm  test error (%)
        ───  ──────────────
        SGD         4 ± 1.4
        >>> table.records[0]["arm"], table.records[0]["split"], table.records[0]["mean"]
        ('SGD', 'test', 4.0)
    """
    names = (across,) if isinstance(across, str) else across
    rows: list[Row] = []
    records: list[dict[str, Any]] = []
    for line in lines:
        if list(line.numbers) != list(columns):
            raise TableError(
                f"{title}: the line {', '.join(line.labels)} has numbers for "
                f"{list(line.numbers)}, but the columns are {list(columns)}"
            )
        rows.append(Row((*line.labels, *map(str, line.numbers.values())), line.group))
        for key, number in line.numbers.items():
            keys = key if isinstance(key, tuple) else (key,)
            records.append({**line.about, **dict(zip(names, keys, strict=True)), **number.record})
    headings = (*labels, *(Column(name, number=True) for name in columns.values()))
    return DataTable(Table(title, headings, tuple(rows)), caption, tuple(records), file)
