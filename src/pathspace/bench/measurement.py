"""What benchmarks report: values, goals, and whether they are met."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pathspace.tables import NOTHING, Column, Row, Table

MET, SHORT = "met", "falls short"


@dataclass(frozen=True)
class Measurement:
    """One value of a benchmark; the smaller the better.

    Attributes:
        what: what was measured.
        value: the number, most often a ratio of two times.
        unit: its unit, such as ``"× forward"``.
        goal: the largest value that is good enough; ``None`` if it is only for comparison.
        note: a few words beside it.

    Example:
        >>> Measurement("norm", 1.62, "× forward", goal=1.5).verdict
        'falls short'
    """

    what: str
    value: float
    unit: str = "×"
    goal: float | None = None
    note: str = ""

    @property
    def verdict(self) -> str:
        """``"met"``, ``"falls short"``, or nothing if there is no goal; NaN falls short."""
        if self.goal is None:
            return ""
        return MET if self.value <= self.goal else SHORT

    def to_dict(self) -> dict[str, Any]:
        """The row as data, with its verdict."""
        return {**asdict(self), "verdict": self.verdict}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Measurement:
        """The row of :meth:`to_dict`."""
        return cls(**{name: data[name] for name in cls.__dataclass_fields__})


@dataclass(frozen=True)
class Benchmark:
    """The rows of one benchmark.

    Attributes:
        name: how it is called on the command line.
        title: what it compares.
        rows: what it measured.
        repeats: each time is the shortest of about so many.
        threads: how many torch used.
        seconds: how long all of it took.
    """

    name: str
    title: str
    rows: tuple[Measurement, ...]
    repeats: int
    threads: int
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """The benchmark as data."""
        return {**asdict(self), "rows": [row.to_dict() for row in self.rows]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Benchmark:
        """The benchmark of :meth:`to_dict`."""
        given = {name: data[name] for name in cls.__dataclass_fields__}
        return cls(**given | {"rows": tuple(map(Measurement.from_dict, data["rows"]))})


def results_table(benchmarks: Sequence[Benchmark]) -> Table:
    """Rows of benchmarks as a table: value, goal and verdict, and how many goals are met.

    Example:
        >>> rows = (Measurement("norm", 1.62, "× forward", 1.5), Measurement("set-up", 2.0, "s"))
        >>> print(results_table([Benchmark("norms", "path norms", rows, 10, 1, 3.0)]).text())
        path norms
        what             value   goal
        ──────  ──────────────  ─────  ───────────
        norm    1.62 × forward  ≤ 1.5  falls short
        set-up          2.00 s      –
        <BLANKLINE>
        goals met: 0 of 1; the shortest of about 10 times each, 1 thread
    """
    noted = any(row.note for benchmark in benchmarks for row in benchmark.rows)
    one = benchmarks[0].title if len(benchmarks) == 1 else ""
    rows = tuple(
        Row(
            (row.what, shown(row), goal(row), row.verdict, *([row.note] if noted else [])),
            "" if one else benchmark.title,
            mark={MET: "invariant", SHORT: "wrong"}.get(row.verdict, ""),
        )
        for benchmark in benchmarks
        for row in benchmark.rows
    )
    columns = [Column("what"), Column("value", True), Column("goal", True), Column("")]
    columns += [Column("note")] if noted else []
    verdicts = [row.verdict for benchmark in benchmarks for row in benchmark.rows]
    met, of = verdicts.count(MET), len(verdicts) - verdicts.count("")
    remark = f"goals met: {met} of {of}"
    if one:
        threads = benchmarks[0].threads
        remark += f"; the shortest of about {benchmarks[0].repeats} times each, {threads} thread"
        remark += "s" if threads > 1 else ""
    return Table(one or "benchmarks", tuple(columns), rows, (remark,))


def shown(row: Measurement) -> str:
    """The value in three digits, with its unit."""
    large = abs(row.value) >= 1000
    number = f"{row.value:,.0f}" if large else f"{row.value:#.3g}".rstrip(".")
    return f"{number} {row.unit}".strip()


def goal(row: Measurement) -> str:
    """The goal as a bound."""
    return NOTHING if row.goal is None else f"≤ {row.goal:.4g}"
