"""What an experiment found: claims beside the paper's, figures, tables, and words."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

from pathspace.experiments.reproduce.figures import Figure
from pathspace.experiments.reproduce.statistics import Difference, Direction, Sample
from pathspace.page import Block, DataTable
from pathspace.tables import NOTHING, Column, Row, Table

HEADINGS = (
    Column("quantity"),
    Column("paper", number=True),
    Column("ours", number=True),
    Column("difference", number=True),
    Column("seeds", number=True),
)


@dataclass(frozen=True)
class Claim:
    """A number or statement of the paper beside ours.

    Attributes:
        what: the quantity and its unit.
        paper: the paper's number; or in words what it says, where it gives no number.
        ours: a number, a mean over seeds, or a paired difference; or words.
        verdict: whether ours is as the paper says, where the paper gives no number.
        group: a heading above the row.
        note: for below the table.
        digits: significant ones of numbers; those that the paper prints.
    """

    what: str
    paper: float | str
    ours: float | Sample | Difference | str
    verdict: str = ""
    group: str = ""
    note: str = ""
    digits: int = 6

    @property
    def number(self) -> float | None:
        """Ours as one number, if it is one."""
        if isinstance(self.ours, str):
            return None
        found = self.ours if isinstance(self.ours, int | float) else self.ours.mean
        return found if math.isfinite(found) else None

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's, if both are numbers."""
        if isinstance(self.paper, str) or self.number is None:
            return None
        return self.number - self.paper

    @property
    def seeds(self) -> int | None:
        """How many repetitions ours is the mean of."""
        return len(self.ours) if isinstance(self.ours, Sample | Difference) else None

    def row(self) -> Row:
        """The claim as a row of the table."""
        difference = NOTHING if self.difference is None else f"{self.difference:+.3g}"
        cells = (
            self.what,
            _shown(self.paper, self.digits),
            _shown(self.ours, self.digits),
            self.verdict or difference,
            NOTHING if self.seeds is None else str(self.seeds),
        )
        return Row(cells, self.group, (self.note,) if self.note else ())

    def record(self) -> dict[str, Any]:
        """The claim in full precision, for CSV and JSON."""
        spread = self.ours if isinstance(self.ours, Sample) else None
        interval = self.ours if isinstance(self.ours, Difference) else None
        return {
            "group": self.group,
            "quantity": self.what,
            "paper": self.paper,
            "ours": self.ours if isinstance(self.ours, str) else self.number,
            "standard deviation": spread.deviation if spread else None,
            "low": interval.low if interval else None,
            "high": interval.high if interval else None,
            "difference": self.difference,
            "verdict": self.verdict,
            "seeds": self.seeds,
        }


@dataclass(frozen=True)
class Findings:
    """What an experiment found.

    Attributes:
        claims: paper and ours, row by row: the first table.
        statements: what we see, in plain words with the numbers; the most important first.
        figures: pictures in the paper's arrangement.
        tables: further tables, each with its caption and its data.
        blocks: further parts of the web page, such as curves to zoom into.
        deviations: where this is not what the paper did, each in a sentence.
    """

    claims: tuple[Claim, ...] = ()
    statements: tuple[str, ...] = ()
    figures: tuple[Figure, ...] = ()
    tables: tuple[DataTable, ...] = ()
    blocks: tuple[Block, ...] = ()
    deviations: tuple[str, ...] = ()

    def table(self) -> Table:
        """The claims as a table.

        Example:
            >>> findings = Findings((Claim("weights", 536.0, 536.0), Claim("gap", "> 0", "–")))
            >>> print(findings.table().text())
            Paper and reproduction
            quantity  paper  ours  difference  seeds
            ────────  ─────  ────  ──────────  ─────
            weights     536   536          +0      –
            gap         > 0     –           –      –
        """
        return Table(
            "Paper and reproduction", HEADINGS, tuple(claim.row() for claim in self.claims)
        )


class Directed(Protocol):
    """A number with an interval, which may be on one side of 0."""

    def verdict(self, claim: Direction) -> str:
        """Whether it is on the claimed side: ``seen``, ``contrary`` or ``undecided``."""


def directed_claim(what: str, says: Direction, found: Directed, group: str = "") -> Claim:
    """A claim that something is below or above 0, judged by its interval.

    Args:
        what: the quantity and its unit.
        says: the paper's direction.
        found: ours, such as a paired difference.
        group: a heading above the row.

    Example:
        >>> from pathspace.experiments.reproduce.statistics import paired_difference
        >>> gap = paired_difference(Sample((1.0, 2.0)), Sample((2.0, 3.01)))
        >>> directed_claim("G-SGD − SGD", "below 0", gap).verdict
        'seen'
    """
    ours = found if isinstance(found, Difference) else str(found)
    return Claim(what, says, ours, found.verdict(says), group)


def _shown(value: object, digits: int) -> str:
    return f"{value:.{digits}g}" if isinstance(value, int | float) else str(value)
