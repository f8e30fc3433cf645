"""Numbers, tables and figure of functions in rescaled weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pathspace.experiments.executors import Result
from pathspace.experiments.reproduce.figures import Figure
from pathspace.experiments.reproduce.panels import Panel, draw_panels
from pathspace.experiments.reproduce.statistics import Sample
from pathspace.experiments.reproduce.yi2019.effort import KINDS, SPACES, Effort
from pathspace.experiments.reproduce.yi2019.pairs import measure_name
from pathspace.page import DataTable, mean_curve
from pathspace.tables import Column, Row, Table


def ratios(results: Sequence[Result], space: str, kind: str, factor: float) -> list[float]:
    """A flatness at a factor over that at the first one, by seed."""
    found = []
    for result in results:
        first, *_ = result["layer"].values()
        start = float(first[space][kind])
        found.append(
            float(result["layer"][f"{factor:g}"][space][kind]) / start if start else math.nan
        )
    return found


def largest_change(results: Sequence[Result], factors: Sequence[float], space: str) -> float:
    """The largest relative change of any kind in a space, over factors and seeds."""
    return max(
        abs(ratio - 1)
        for kind in KINDS
        for factor in factors
        for ratio in ratios(results, space, kind, factor)
    )


def change_of_function(results: Sequence[Result]) -> float:
    """The largest relative change of an output under all rescalings."""
    return max(float(one["outputs"]) for result in results for one in result["layer"].values())


def equation_error(results: Sequence[Result]) -> float:
    """How far the trace is from Eq. (6), relatively and at most."""
    return max(
        abs(float(one["trace"]) / float(one["equation"]) - 1)
        for result in results
        for one in result["unit"].values()
    )


def constant_in_ball(results: Sequence[Result]) -> list[tuple[float, float]]:
    """Ball flatness at the proof's rescaling, and what the constant function in the ball gives."""
    return [
        (
            float(one["weights"]["ball"]),
            (float(one["constant"]) - float(one["loss"])) / (1 + float(one["loss"])),
        )
        for one in (result["proof"] for result in results)
    ]


def layer_table(results: Sequence[Result], factors: Sequence[float], effort: Effort) -> DataTable:
    """All flatnesses by factor of the layer."""
    names = [(space, kind) for space in SPACES for kind in KINDS]
    columns = (
        Column("α", number=True),
        Column("outputs moved", number=True),
        *(Column(measure_name(*name), number=True) for name in names),
    )
    rows, records = [], []
    for factor in factors:
        found = [result["layer"][f"{factor:g}"] for result in results]
        cells = [str(Sample(tuple(float(one[s][k]) for one in found))) for s, k in names]
        moved = max(float(one["outputs"]) for one in found)
        rows.append(Row((f"{factor:g}", f"{moved:.1g}", *cells)))
        records += [
            {"factor": factor, "measure": measure_name(s, k), "network": number,
             "value": float(one[s][k])}
            for number, one in enumerate(found) for s, k in names
        ]  # fmt: skip
    table = Table("Flatness of one function in rescaled weights", columns, tuple(rows))
    caption = (
        "The first hidden layer is rescaled by α: mean ± standard deviation over seeds, in float64 "
        f"on {effort.images:,} training images, ε = {effort.epsilon:g}, "
        f"σ = {effort.sigma:g}. Random draws are the same for all α."
    )
    return DataTable(table, caption, tuple(records), "rescaled layer")


def unit_table(results: Sequence[Result], factors: Sequence[float]) -> DataTable:
    """The trace by factor of one unit, beside Eq. (6)."""
    columns = (
        Column("α", number=True),
        Column("trace of the Hessian", number=True),
        Column("Eq. (6)", number=True),
        Column("relative error", number=True),
    )
    rows, records = [], []
    for factor in factors:
        found = [result["unit"][f"{factor:g}"] for result in results]
        traces, said = (
            Sample(tuple(float(one[name]) for one in found)) for name in ("trace", "equation")
        )
        error = max(abs(float(one["trace"]) / float(one["equation"]) - 1) for one in found)
        rows.append(Row((f"{factor:g}", str(traces), str(said), f"{error:.1g}")))
        records += [
            {"factor": factor, "network": number, **one} for number, one in enumerate(found)
        ]
    table = Table("Eq. (6): one hidden unit rescaled", columns, tuple(rows))
    caption = (
        "The exact trace of the Hessian in the weights, with the one hidden unit rescaled whose "
        "block A₁ has the largest trace, beside tr(α⁻² A₁ + α² A₂ + A₃) from the blocks at α = 1."
    )
    return DataTable(table, caption, tuple(records), "equation 6")


def driven_figure(results: Sequence[Result], factors: Sequence[float]) -> Figure:
    """Flatness over that at the first factor, in both spaces."""

    def curves(space: str) -> list[Any]:
        return [
            mean_curve(
                kind,
                [
                    [
                        (factor, found[number])
                        for factor in factors
                        for found in [ratios(results, space, kind, factor)]
                    ]
                    for number in range(len(results))
                ],
            )
            for kind in KINDS
        ]

    panels = [
        Panel(
            curves(space),
            "factor α of the first hidden layer",
            "flatness / flatness at α = 1",
            f"{name}-flatness",
            log_x=True,
            log_y=True,
            markers=True,
        )
        for space, name in SPACES.items()
    ]

    ends = {
        measure_name(space, kind): Sample(tuple(ratios(results, space, kind, min(factors))))
        for space in SPACES
        for kind in KINDS
    }
    return Figure(
        "driven",
        lambda: draw_panels([panels], (9, 3.6), share_y=True),
        "Theorem 3.2: flatness of one and the same function when its first hidden layer is "
        "rescaled by α, relative to that at α = 1. Left in basis-path space, right in the weights. "
        "Curves that do not move lie on top of each other. Means over seeds, in bands of one "
        "standard deviation.",
        "; ".join(
            f"{name} is multiplied by {ratio} at the least α" for name, ratio in ends.items()
        ),
    )
