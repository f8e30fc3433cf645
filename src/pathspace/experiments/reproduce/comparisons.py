"""Parts of tables that comparisons of optimizers have in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from pathspace.experiments.reproduce.controls import Comparison, Gaps, Rate
from pathspace.experiments.reproduce.statistics import metric
from pathspace.experiments.reproduce.tables import Cell, Line, table_of
from pathspace.experiments.reproduce.words import PAIRED
from pathspace.experiments.training import Outcome
from pathspace.page import DataTable
from pathspace.tables import Column

Case: TypeAlias = tuple[Comparison, Mapping[str, Any], str]


def level(comparison: Comparison, arm: str, name: str, rate: Rate, *, shown: bool = False) -> Cell:
    """A metric of an arm at the end of training, and the rate at which it was trained.

    Args:
        comparison: of optimizers.
        arm: one of them.
        name: of the metric, as in its rows.
        rate: which of both.
        shown: whether the rate is shown in parentheses; it is in the data anyway.
    """
    sample, used = comparison.sample(arm, name, rate), comparison.rate_of(arm, rate)
    return Cell(f"{sample} ({used:g})" if shown else str(sample), {"rate": used, **sample.record})


def differences_table(cases: Iterable[Case], gaps: Gaps, said: Mapping[Rate, str]) -> DataTable:
    """Paired differences of test errors: a line for each, a column for each kind of rate.

    Args:
        cases: comparisons, each with what was trained, for the data, and a heading.
        gaps: what is taken from what.
        said: the kinds of rates in words.
    """
    return table_of(
        "Where the differences come from",
        [Column("difference of test errors")],
        said,
        [
            Line(
                (gap,),
                {rate: comparison.difference(*pair, "test_error", rate) for rate in said},
                {**about, "difference": gap},
                heading,
            )
            for comparison, about, heading in cases
            for gap, pair in gaps.items()
        ],
        PAIRED,
        across="chosen",
        file="differences",
    )


def rates_line(
    arm: str,
    tried: Mapping[float, Sequence[Outcome]],
    at: Literal["final", "best"],
    about: Mapping[str, Any],
    group: str,
) -> Line:
    """The validation errors by which the rate of an arm was chosen: a column for each rate.

    Args:
        arm: its name.
        tried: outcomes by rate.
        at: whether errors at the end count, or the least over epochs.
        about: what was trained, for the data.
        group: the heading above the line.
    """
    return Line(
        (arm,),
        {rate: metric(found, "validation_error", at) for rate, found in tried.items()},
        {**about, "arm": arm, "metric": "validation error (%)"},
        group,
    )
