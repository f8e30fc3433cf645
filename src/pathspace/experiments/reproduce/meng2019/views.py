"""Tables and figures of comparisons over widths."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from pathspace.experiments.reproduce.comparisons import level
from pathspace.experiments.reproduce.controls import ARMS, METRICS, Comparison, Rate
from pathspace.experiments.reproduce.figures import Figure, sample_curve
from pathspace.experiments.reproduce.meng2019.gaps import GAPS, Size
from pathspace.experiments.reproduce.panels import (
    Panel,
    draw_differences,
    draw_panels,
    legend_below,
    name_ticks,
)
from pathspace.experiments.reproduce.tables import Line, table_of
from pathspace.experiments.reproduce.words import BAND, BANDS, IN_TABLES, SPREAD
from pathspace.page import Curve, Curves, DataTable
from pathspace.plot.backend import pyplot
from pathspace.tables import Column

WIDTH = "hidden units per layer, h"

# Tables ------------------------------------------------------------------------------------------


def levels_table(comparisons: Mapping[int, Comparison], said: Mapping[Rate, str]) -> DataTable:
    """Every arm at every width, at the common and at its best rate."""
    return table_of(
        "All arms at every width",
        [Column("h", number=True)],
        {arm: arm for arm in ARMS},
        [
            Line(
                (str(width),),
                {arm: level(comparison, arm, name, rate, shown=rate == "best") for arm in ARMS},
                {"metric": label, "h": width, "chosen": rate},
                f"{label}, {words}",
            )
            for name, label in METRICS.items()
            for rate, words in said.items()
            for width, comparison in comparisons.items()
        ],
        f"{SPREAD}; best rates in parentheses.",
        across="arm",
        file="all arms",
    )


def gaps_table(comparisons: Mapping[int, Comparison], said: Mapping[Rate, str]) -> DataTable:
    """The differences between arms that the paper's gap is made of."""
    return table_of(
        "Where the gap comes from",
        [Column("h", number=True)],
        {gap: gap for gap in GAPS},
        [
            Line(
                (str(width),),
                {g: one.difference(*pair, "test_error", rate) for g, pair in GAPS.items()},
                {"h": width, "chosen": rate},
                words,
            )
            for rate, words in said.items()
            for width, one in comparisons.items()
        ],
        "Paired differences of test errors in percentage points over seeds, with 95 % confidence "
        "intervals. The paper's Δ is the sum of the second and third column.",
        across="gap",
        file="gaps",
    )


# Figures -----------------------------------------------------------------------------------------


def levels_curves(comparisons: Mapping[int, Comparison], name: str, said: str) -> Curves:
    """A metric against the width at the common rate, for the web page."""
    curves = _curves(comparisons, name, "common")
    ends = "; ".join(f"{c.name}: from {c.y[0]:.3g} to {c.y[-1]:.3g}" for c in curves)
    return Curves(
        curves,
        WIDTH,
        METRICS[name],
        f"The {METRICS[name]} at the end of training against the width, {said}; {BAND}",
        f"From the least to the largest width, {ends}.",
        log_x=True,
        file=f"{METRICS[name]} by width",
    )


def levels_figure(comparisons: Mapping[int, Comparison], said: Mapping[Rate, str]) -> Figure:
    """Loss and error against the width, as in Figure 4."""

    def panel(name: str, rate: Rate) -> Panel:
        return Panel(
            _curves(comparisons, name, rate),
            WIDTH,
            METRICS[name],
            said[rate],
            log_x=True,
            markers=True,
            ticks=list(comparisons),
        )

    return Figure(
        "levels",
        lambda: draw_panels(
            [[panel(name, rate) for name in METRICS] for rate in said],
            (9, 0.3 + 3.2 * len(said)),
            legend=len(ARMS),
            share_x=True,
        ),
        "Training loss and test error at the end of training against the width, "
        f"{'; below, '.join(said.values())}. {BANDS}.",
        f"Panels with a curve per arm over the width; {IN_TABLES}",
    )


def gaps_figure(
    comparisons: Mapping[int, Comparison], sizes: Mapping[int, Size], said: Mapping[Rate, str]
) -> Figure:
    """The differences against the invariant ratio."""
    ratios = [sizes[width].ratio for width in comparisons]
    near = min((abs(math.log(a / b)) for a, b in pairwise(ratios)), default=math.inf)
    apart = math.exp(min(near / 8, 0.04))

    def places(number: int) -> list[float]:
        return [ratio * apart ** (number - (len(GAPS) - 1) / 2) for ratio in ratios]

    def draw() -> Any:
        # Below each other, with heights of their own: a rate that diverges would flatten both.
        size, grid = (9, 1.0 + 2.6 * len(said)), {"layout": "constrained", "squeeze": False}
        figure, axes = pyplot().subplots(len(said), 1, figsize=size, sharex=True, **grid)
        for ax, (rate, words) in zip(axes[:, 0], said.items(), strict=True):
            series = {
                gap: [one.difference(*pair, "test_error", rate) for one in comparisons.values()]
                for gap, pair in GAPS.items()
            }
            draw_differences(ax, series, places)
            ax.set(xscale="log", xlabel="invariant ratio H/m")
            name_ticks(
                ax, ratios, [f"{r:.2g}\nh = {h}" for h, r in zip(comparisons, ratios, strict=True)]
            )
            ax.set_title(words, fontsize=10)
            ax.label_outer()
        legend_below(figure, axes[0, 0], 2)
        return figure

    return Figure(
        "gaps",
        draw,
        "Differences of test errors against the invariant ratio H/m: the paper's Δ, and what it "
        "is made of. Paired over seeds, with 95 % confidence intervals; below 0 is better.",
        f"Four series over H/m in each panel; {IN_TABLES}",
    )


def _curves(comparisons: Mapping[int, Comparison], name: str, rate: Rate) -> tuple[Curve, ...]:
    """A metric at the end against the width, by arm."""
    return tuple(
        sample_curve(
            arm, [*comparisons], [one.sample(arm, name, rate) for one in comparisons.values()]
        )
        for arm in ARMS
    )
