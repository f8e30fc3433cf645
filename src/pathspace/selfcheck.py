"""What a random rescaling moved, and whether that is what each measure claims."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pathspace.entries import Entry, mark, number, relative_change
from pathspace.page import DataTable, Page, write
from pathspace.tables import NOTHING, Column, Row, Table, frame, plain

AS_CLAIMED = "as claimed"
NOT_AS_CLAIMED = "NOT as claimed"
DID_NOT_MOVE = "did not move"  # it may for other factors, so that this refutes nothing
NOT_MEASURED = "not measured"


@dataclass(frozen=True)
class Change:
    """One measure before and after the rescaling.

    Attributes:
        name: of the measure.
        group: the heading under which it stands.
        invariant: what it claims.
        before: the value for the weights as they are.
        after: the value for the rescaled weights.
        change: the size of the difference, divided by the larger one of the two sizes.
        moved: whether the change is above the tolerance; ``None`` if it was not measured.
        verdict: ``"as claimed"``, ``"NOT as claimed"``, or ``"did not move"`` for a measure that
            does not claim to be invariant and yet stayed where it was.
    """

    name: str
    group: str
    invariant: bool | str
    before: Entry
    after: Entry
    change: float | None
    moved: bool | None
    verdict: str


@dataclass(frozen=True)
class SelfCheck:
    """All measures before and after a random rescaling. Made by :func:`pathspace.self_check`."""

    rows: tuple[Change, ...]
    spread: float
    seed: int
    tolerance: float

    @classmethod
    def of(
        cls,
        before: Sequence[Entry],
        after: Sequence[Entry],
        *,
        spread: float,
        seed: int,
        tolerance: float,
    ) -> SelfCheck:
        """Compare entries of the same measures."""
        rows = tuple(_compare(a, b, tolerance) for a, b in zip(before, after, strict=True))
        return cls(rows, spread, seed, tolerance)

    @property
    def ok(self) -> bool:
        """Whether every measure that claims to be invariant is."""
        return all(row.verdict != NOT_AS_CLAIMED for row in self.rows)

    def __getitem__(self, name: str) -> Change:
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(name)

    def table(self) -> Table:
        """The check as a table; what could not be measured is named below it."""
        columns = (
            Column("measure"),
            Column("before", number=True),
            Column("after", number=True),
            Column("change", number=True),
            Column("moved"),
            Column("verdict"),
        )
        rows = []
        missing: dict[str, list[str]] = {}
        for row in self.rows:
            if row.moved is None:
                missing.setdefault(str(row.before.reason), []).append(row.name)
                continue
            change = NOTHING if row.change is None else f"{row.change:.1e}" if row.change else "0"
            moved = "yes" if row.moved else "no"
            cells = (row.name, number(row.before, 4), number(row.after, 4), change, moved)
            colour = "wrong" if row.verdict == NOT_AS_CLAIMED else mark(row.invariant)
            rows.append(Row((*cells, row.verdict), row.group, (), colour))
        moved_count = sum(bool(row.moved) for row in self.rows)
        title = (
            f"self-check: weights rescaled randomly (log c ~ N(0, {self.spread:g}²), seed "
            f"{self.seed}) moved {moved_count} of {len(rows)} measures by more than "
            f"{self.tolerance:g}"
        )
        remarks = tuple(f"not measured: {', '.join(n)}: {r}" for r, n in missing.items())
        return Table(title, columns, tuple(rows), remarks)

    def __str__(self) -> str:
        return self.table().text()

    def __repr__(self) -> str:
        return f"<SelfCheck of {len(self.rows)} measures: {'ok' if self.ok else NOT_AS_CLAIMED}>"

    def _repr_html_(self) -> str:
        return self.table().html()

    def to_html(self, path: str | Path | None = None) -> str:
        """A self-contained HTML page, written to ``path`` if there is one."""
        page = Page("Self-check", [self.block()], "What a random rescaling moves", self.to_dict())
        return write(page, path)

    def block(self) -> DataTable:
        """The table for a page, with what it shows and the numbers to save."""
        caption = (
            "Every measure before and after the hidden units were rescaled at random, which leaves "
            f"the network's function as it is (spread {self.spread:g}, seed {self.seed}). A change "
            f"is the size of the difference by the larger size; up to {self.tolerance:g} counts as "
            "rounding."
        )
        records = tuple(_values(row) for row in self.rows)
        return DataTable(self.table(), caption, records, "self-check")

    def to_dict(self) -> dict[str, Any]:
        """Everything as data for JSON."""
        settings = {"spread": self.spread, "seed": self.seed, "tolerance": self.tolerance}
        return {**settings, "ok": self.ok, "rows": [plain(_values(row)) for row in self.rows]}

    def to_frame(self) -> Any:
        """A pandas ``DataFrame`` with one row per measure, indexed by name."""
        return frame([_values(row) for row in self.rows], "name")


def _values(row: Change) -> dict[str, Any]:
    values = {"before": row.before.value, "after": row.after.value}
    return {**asdict(row), **values}


def _compare(before: Entry, after: Entry, tolerance: float) -> Change:
    change = relative_change(before, after)
    # One that exists for one of the two states only did move: the refusal depends on the scaling.
    unequal = (before.value is None) != (after.value is None)
    moved = (
        None if change is None and not unequal else not (change is not None and change <= tolerance)
    )
    if moved is None:
        verdict = NOT_MEASURED
    elif before.invariant is True:
        verdict = NOT_AS_CLAIMED if moved else AS_CLAIMED
    else:
        verdict = AS_CLAIMED if moved else DID_NOT_MOVE
    about = (before.name, before.group, before.invariant)
    return Change(*about, before, after, change, moved, verdict)
