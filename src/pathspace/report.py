"""What was measured, for people and programs: :class:`Report`, and several of them side by side.

Nothing is measured here: a report is made of :class:`pathspace.entries.Entry`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pathspace.entries import Entry, claim, logarithm, mark, nearest, number, ratio
from pathspace.page import DataTable, Page, write
from pathspace.tables import NOTHING, Column, Row, Table, frame, plain

if TYPE_CHECKING:
    from pathspace.selfcheck import SelfCheck

SUBTITLE = "Measures of a network, and which of them rescaling leaves alone"
CAPTION = (
    "The numbers of the network, computed from its weights and, where data were given, its outputs "
    "on them. Rows with a blue edge do not change when hidden units are rescaled, those with an "
    "orange edge do, or may. Where a float has no room, 10^ and the logarithm stand for the number."
)


@dataclass(frozen=True)
class Report:
    """The measures of one network, in order. Made by :func:`pathspace.measure`.

    Printing it gives a table, ``report["loss"]`` one entry, iterating all of them.

    Attributes:
        name: what the network is called in comparisons.
        entries (tuple[pathspace.entries.Entry, ...]): the numbers.
        settings: how they were measured: streams, skeleton, samples.
        check: what a random rescaling moved, if that was asked for.

    Example:
        >>> import torch
        >>> from pathspace.measuring import measure
        >>> model = torch.nn.Sequential(
        ...     torch.nn.Linear(2, 2, bias=False),
        ...     torch.nn.ReLU(),
        ...     torch.nn.Linear(2, 1, bias=False),
        ... )
        >>> with torch.no_grad():
        ...     _ = model[0].weight.copy_(torch.tensor([[1.0, 2.0], [0.0, -3.0]]))
        ...     _ = model[2].weight.copy_(torch.tensor([[2.0, -1.0]]))
        >>> x = torch.ones(1, 2)
        >>> report = measure(model, example_input=x, measures=["path norm"], p=(1, 2))
        >>> print(report)
        Sequential, streams pinned, skeleton modulo
        measure           value  log10  unit    invariant
        ───────────────  ──────  ─────  ──────  ─────────
        path space
        path norm (p=1)       9         out/in  yes
        path norm (p=2)  5.3852         out/in  yes
        >>> float(report["path norm (p=1)"])
        9.0
    """

    name: str
    entries: tuple[Entry, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    check: SelfCheck | None = None

    def __getitem__(self, name: str) -> Entry:
        entry = self.find(name)
        if entry is None:
            raise KeyError(f"the report has no {name!r}{nearest(name, self.names())}")
        return entry

    def find(self, name: str) -> Entry | None:
        """The entry of that name, if there is one."""
        return next((entry for entry in self.entries if entry.name == name), None)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.find(name) is not None

    def names(self) -> list[str]:
        """The names of the entries, in order."""
        return [entry.name for entry in self.entries]

    def table(self) -> Table:
        """The report as a table; :meth:`Table.text` gives it in another width."""
        columns = (
            Column("measure"),
            Column("value", number=True),
            Column("log10", number=True),
            Column("unit"),
            Column("invariant"),
        )
        settings = [f"{key} {value}" for key, value in self.settings.items() if value is not None]
        return Table(", ".join([self.name, *settings]), columns, tuple(map(_row, self.entries)))

    def tables(self) -> tuple[Table, ...]:
        """The table of the report, and that of its self-check if there is one."""
        return (self.table(), *(() if self.check is None else (self.check.table(),)))

    def __str__(self) -> str:
        return "\n\n".join(table.text() for table in self.tables())

    def __repr__(self) -> str:
        missing = sum(entry.value is None for entry in self.entries)
        note = f", {missing} of them not measurable" if missing else ""
        return f"<Report of {self.name}: {len(self.entries)} measures{note}>"

    def _repr_html_(self) -> str:
        return "".join(table.html() for table in self.tables())

    def to_html(self, path: str | Path | None = None) -> str:
        """A self-contained HTML page, written to ``path`` if there is one."""
        return write(Page(self.name, self.blocks(), SUBTITLE, self.to_dict(), self.name), path)

    def blocks(self) -> tuple[DataTable, ...]:
        """The tables for a page, with what they show and the numbers to save."""
        records = tuple(_record(entry) for entry in self.entries)
        own = DataTable(self.table(), CAPTION, records, f"{self.name} measures")
        return (own, *(() if self.check is None else (self.check.block(),)))

    def to_dict(self) -> dict[str, Any]:
        """Everything as data for JSON; what is not finite is a text (``"inf"``, ``"nan"``)."""
        return {
            "name": self.name,
            "settings": dict(self.settings),
            "measures": [plain(asdict(entry)) for entry in self.entries],
            "self_check": None if self.check is None else self.check.to_dict(),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Report:
        """The report that :meth:`to_dict` gave, without its self-check."""
        entries = []
        for row in data["measures"]:
            numbers = {
                key: None if row[key] is None else float(row[key]) for key in ("value", "log10")
            }
            entries.append(Entry(**{**row, **numbers, "notes": tuple(row["notes"])}))
        return cls(data["name"], tuple(entries), dict(data["settings"]))

    def to_frame(self) -> Any:
        """A pandas ``DataFrame`` with one row per measure, indexed by name."""
        return frame([_record(entry) for entry in self.entries], "name")

    def plot(self, ax: Any = None) -> Any:
        """A bar per measure on a logarithmic axis; :func:`pathspace.plot.draw_report`."""
        from pathspace.plot import draw_report

        return draw_report(self, ax)


def compare(*reports: Report, names: list[str] | None = None) -> Comparison:
    """Put reports side by side, in the order of the first, with ratios to the first.

    Args:
        reports: two or more.
        names: what to call the networks; by default the reports' own names, numbered if equal.

    Example:
        >>> import torch
        >>> from pathspace.measuring import measure
        >>> small, large = (torch.nn.Linear(2, n, bias=False) for n in (1, 3))
        >>> x = torch.ones(1, 2)
        >>> for model in (small, large):
        ...     _ = torch.nn.init.ones_(model.weight)
        >>> reports = [
        ...     measure(model, example_input=x, measures=["path norm (p=1)"])
        ...     for model in (small, large)
        ... ]
        >>> print(compare(*reports, names=["small", "large"]))
        small, large side by side; ratios are to small
        measure          small  large  ratio  invariant
        ───────────────  ─────  ─────  ─────  ─────────
        path space
        path norm (p=1)      2      6      3  yes
    """
    if len(reports) < 2:
        raise ValueError("a comparison needs at least two reports")
    names = _numbered([report.name for report in reports]) if names is None else list(names)
    if len(names) != len(reports) or len(set(names)) != len(names):
        raise ValueError(f"{len(reports)} reports need as many different names, not {names}")
    return Comparison(tuple(names), reports)


@dataclass(frozen=True)
class Comparison:
    """Reports side by side. Made by :func:`compare`."""

    names: tuple[str, ...]
    reports: tuple[Report, ...]

    def measures(self) -> list[str]:
        """All measures of all reports; those of the first in its order, further ones behind."""
        return list(dict.fromkeys(name for report in self.reports for name in report.names()))

    def rows(self) -> Iterator[tuple[Entry, list[Entry | None], list[float | None]]]:
        """For each measure: its first entry, the entries of all reports, ratios to the first."""
        for name in self.measures():
            found = [report.find(name) for report in self.reports]
            any_entry = next(entry for entry in found if entry is not None)
            yield any_entry, found, [ratio(entry, found[0]) for entry in found[1:]]

    def table(self) -> Table:
        """The comparison as a table."""
        two = len(self.names) == 2
        ratios_to = ["ratio"] if two else [f"{name} ratio" for name in self.names[1:]]
        numbers = [*self.names, *ratios_to]
        columns = [Column("measure"), *(Column(name, number=True) for name in numbers)]
        rows = []
        for entry, found, ratios in self.rows():
            cells = [NOTHING if e is None else number(e) for e in found]
            cells += [NOTHING if r is None else f"{r:.4g}" for r in ratios]
            notes = tuple(
                f"{name}: {e.reason}"
                for name, e in zip(self.names, found, strict=True)
                if e is not None and e.reason
            )
            cells = [entry.name, *cells, claim(entry.invariant)]
            rows.append(Row(tuple(cells), entry.group, notes, mark(entry.invariant)))
        title = f"{', '.join(self.names)} side by side; ratios are to {self.names[0]}"
        return Table(title, (*columns, Column("invariant")), tuple(rows))

    def __str__(self) -> str:
        return self.table().text()

    def __repr__(self) -> str:
        return f"<Comparison of {', '.join(self.names)}: {len(self.measures())} measures>"

    def _repr_html_(self) -> str:
        return self.table().html()

    def to_html(self, path: str | Path | None = None) -> str:
        """A self-contained HTML page, written to ``path`` if there is one."""
        title = f"{', '.join(self.names)} side by side"
        return write(Page(title, (self.block(),), SUBTITLE, self.to_dict(), title), path)

    def block(self) -> DataTable:
        """The table for a page, with what it shows and the numbers to save."""
        caption = f"{CAPTION} Ratios are to {self.names[0]}."
        return DataTable(self.table(), caption, self._records(), "comparison")

    def to_dict(self) -> dict[str, Any]:
        """Names, reports and ratios as data for JSON."""
        ratios = {
            entry.name: dict(zip(self.names[1:], map(plain, values), strict=True))
            for entry, _, values in self.rows()
        }
        reports = [report.to_dict() for report in self.reports]
        return {"names": list(self.names), "reports": reports, "ratios": ratios}

    def to_frame(self) -> Any:
        """A pandas ``DataFrame``: one row per measure, one column per report and ratio."""
        return frame(list(self._records()), "name")

    def _records(self) -> tuple[dict[str, Any], ...]:
        rows = []
        for entry, found, ratios in self.rows():
            row: dict[str, Any] = {"name": entry.name, "group": entry.group}
            for name, e in zip(self.names, found, strict=True):
                row |= {name: None if e is None else e.value}
                row |= {f"{name} log10": None if e is None else e.log10}
            row |= {f"{n} ratio": r for n, r in zip(self.names[1:], ratios, strict=True)}
            rows.append(row | {"invariant": entry.invariant})
        return tuple(rows)

    def plot(self, ax: Any = None) -> Any:
        """The reports as points on a logarithmic axis; :func:`pathspace.plot.draw_comparison`."""
        from pathspace.plot import draw_comparison

        return draw_comparison(self, ax)


# Helpers -----------------------------------------------------------------------------------------


def _record(entry: Entry) -> dict[str, Any]:
    return {**asdict(entry), "notes": "; ".join(entry.notes)}


def _row(entry: Entry) -> Row:
    notes = [] if entry.reason is None else [entry.reason]
    if isinstance(entry.invariant, str):
        notes.append(f"invariant {entry.invariant}")
    cells = (entry.name, number(entry), logarithm(entry), entry.unit, claim(entry.invariant))
    hint = ": ".join(text for text in (entry.symbol, entry.title) if text)
    return Row(cells, entry.group, (*notes, *entry.notes), mark(entry.invariant), hint)


def _numbered(names: list[str]) -> list[str]:
    """The names, with numbers behind those that occur more than once."""
    if len(set(names)) == len(names):
        return names
    return [f"{name} {k}" for k, name in enumerate(names, 1)]
