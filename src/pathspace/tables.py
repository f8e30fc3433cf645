"""Tables for people: one structure, shown as plain text or as HTML.

A table has rows in named groups, and rows may have notes. Notes are numbered and stand below, so
that a long reason does not push the columns apart.
"""

from __future__ import annotations

import html
import math
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

NOTHING = "–"  # in place of a value that there is not


@dataclass(frozen=True)
class Column:
    """A heading, and whether the cells below it are numbers."""

    name: str
    number: bool = False


@dataclass(frozen=True)
class Row:
    """The cells of one line.

    Attributes:
        cells: one text per column.
        group: the heading under which the row stands.
        notes: texts for below the table.
        mark: a word for how the row is to be seen, such as ``"invariant"``; HTML colours by it.
        hint: what HTML shows when the pointer rests on the row.
    """

    cells: tuple[str, ...]
    group: str = ""
    notes: tuple[str, ...] = ()
    mark: str = ""
    hint: str = ""


@dataclass(frozen=True)
class Table:
    """Rows under headings, with numbered notes below.

    Example:
        >>> rows = (Row(("m", "12"), "counts"), Row(("H", "3"), "counts", ("free scales",)))
        >>> print(Table("a network", (Column("name"), Column("value", number=True)), rows).text())
        a network
        name  value  note
        ────  ─────  ────
        counts
        m        12
        H         3  [1]
        <BLANKLINE>
        [1] free scales
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    remarks: tuple[str, ...] = ()

    def notes(self) -> dict[str, int]:
        """All notes and their numbers; one that several rows share has one number."""
        texts = dict.fromkeys(text for row in self.rows for text in row.notes)
        return {text: number for number, text in enumerate(texts, 1)}

    def lines(self) -> Iterator[tuple[Row, tuple[str, ...]]]:
        """The rows, with the numbers of their notes as a last cell if there are notes."""
        numbers = self.notes()
        for row in self.rows:
            marks = " ".join(f"[{number}]" for number in dict.fromkeys(map(numbers.get, row.notes)))
            yield row, (*row.cells, marks) if numbers else row.cells

    @property
    def headings(self) -> tuple[Column, ...]:
        """The columns, and that of the notes if there are any."""
        return (*self.columns, Column("note")) if self.notes() else self.columns

    def text(self, width: int = 80) -> str:
        """Aligned plain text; notes are wrapped to the width."""
        lines = list(self.lines())
        widths = [
            max(len(column.name), *(len(cells[k]) for _, cells in lines), 0)
            for k, column in enumerate(self.headings)
        ]

        def line(cells: tuple[str, ...]) -> str:
            placed = [
                cell.rjust(size) if column.number else cell.ljust(size)
                for cell, size, column in zip(cells, widths, self.headings, strict=True)
            ]
            return "  ".join(placed).rstrip()

        result = textwrap.wrap(self.title, width)
        result.append(line(tuple(column.name for column in self.headings)))
        result.append("  ".join("─" * size for size in widths))
        group = ""
        for row, cells in lines:
            if row.group != group:
                group = row.group
                result.append(group)
            result.append(line(cells))
        below = self.below(width)
        return "\n".join([*result, *([""] if below else []), *below])

    def below(self, width: int = 80) -> list[str]:
        """The notes and remarks, wrapped to the width."""
        notes = [
            textwrap.fill(f"[{number}] {text}", width, subsequent_indent="    ")
            for text, number in self.notes().items()
        ]
        return notes + [
            textwrap.fill(text, width, subsequent_indent="    ") for text in self.remarks
        ]

    def html(self) -> str:
        """The table, its notes and its style as an HTML element; every text is escaped."""
        return (
            f"<div class='pathspace'><style>{STYLE}</style>{self.element()}{self.footnotes()}</div>"
        )

    def element(self) -> str:
        """The ``table`` element alone, a ``tbody`` per group; every text is escaped."""
        heads = "".join(_cell("th", column, column.name, "col") for column in self.headings)
        body = []
        for group, lines in groupby(self.lines(), lambda line: line[0].group):
            body.append("<tbody>")
            if group:
                span = f"<th scope='rowgroup' colspan='{len(self.headings)}'>"
                body.append(f"<tr class='group'>{span}{html.escape(group)}</th></tr>")
            body += [self._line(row, cells) for row, cells in lines]
            body.append("</tbody>")
        return (
            f"<table><caption>{html.escape(self.title)}</caption>"
            f"<thead><tr>{heads}</tr></thead>{''.join(body)}</table>"
        )

    def footnotes(self) -> str:
        """The numbered notes and the remarks as HTML elements; every text is escaped."""
        notes = "".join(f"<li>{html.escape(text)}</li>" for text in self.notes())
        remarks = "".join(f"<p class='notes'>{html.escape(text)}</p>" for text in self.remarks)
        return (f"<ol class='notes'>{notes}</ol>" if notes else "") + remarks

    def _line(self, row: Row, cells: tuple[str, ...]) -> str:
        """A row; its first cell is a heading, because it says what the others are of."""
        (column, name), *rest = zip(self.headings, cells, strict=True)
        line = _cell("th", column, name, "row") + "".join(_cell("td", *cell) for cell in rest)
        hint = f" title='{html.escape(row.hint)}'" if row.hint else ""
        return f"<tr{_class(row.mark)}{hint}>{line}</tr>"


def plain(data: Any) -> Any:
    """Data as JSON knows it: numbers that are not finite become texts, tuples lists.

    Example:
        >>> plain({"a": (1.0, float("inf")), "b": float("nan")})
        {'a': [1.0, 'inf'], 'b': 'nan'}
    """
    if isinstance(data, Mapping):
        return {key: plain(value) for key, value in data.items()}
    if isinstance(data, tuple | list):
        return [plain(value) for value in data]
    return str(data) if isinstance(data, float) and not math.isfinite(data) else data


def frame(rows: list[dict[str, Any]], index: str) -> Any:
    """A pandas ``DataFrame`` of rows, indexed by one of the columns."""
    try:
        import pandas
    except ImportError as error:
        raise ImportError(
            "to_frame needs pandas: pip install 'pathspace[experiments]'; to_dict does not"
        ) from error
    return pandas.DataFrame(rows).set_index(index)


def _cell(tag: str, column: Column, text: str, scope: str = "") -> str:
    about = (f" scope='{scope}'" if scope else "") + _class("number" if column.number else "")
    return f"<{tag}{about}>{html.escape(text)}</{tag}>"


def _class(name: str) -> str:
    return f" class='{html.escape(name)}'" if name else ""


# Blue and orange of Okabe and Ito, which colour-blind people can tell apart.
STYLE = (
    ".pathspace table{border-collapse:collapse;font:14px/1.45 system-ui,sans-serif}"
    ".pathspace caption{text-align:left;font-weight:600;font-size:1.1em;padding:.4em 0}"
    ".pathspace th{text-align:left;font-weight:600}"
    ".pathspace th,.pathspace td{padding:.15em .8em .15em .5em}"
    ".pathspace thead th{border-bottom:2px solid currentColor}"
    ".pathspace .number{text-align:right;font-variant-numeric:tabular-nums}"
    ".pathspace .group th{padding-top:.9em;border-bottom:1px solid #9995;opacity:.75}"
    ".pathspace tbody tr:not(.group) th{font-weight:inherit}"
    ".pathspace tbody tr>:first-child{border-left:4px solid transparent}"
    ".pathspace tr.invariant>:first-child{border-left-color:#0072b2}"
    ".pathspace tr.moving>:first-child{border-left-color:#e69f00}"
    ".pathspace tr.wrong>*{background:#d55e0033;font-weight:600}"
    ".pathspace ol,.pathspace p{max-width:60em;font:13px/1.45 system-ui,sans-serif;opacity:.85}"
)
