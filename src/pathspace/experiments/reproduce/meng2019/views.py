"""Tables and figures of comparisons over widths."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from pathspace.experiments.reproduce.controls import Comparison, Rate
from pathspace.experiments.reproduce.figures import Figure, draw_curves, sample_curve
from pathspace.experiments.reproduce.meng2019.gaps import ARMS, GAPS, METRICS, Size, gap_of
from pathspace.experiments.reproduce.statistics import Difference
from pathspace.page import Curve, Curves, DataTable
from pathspace.plot.backend import pyplot
from pathspace.plot.measures import MARKERS, SERIES
from pathspace.tables import Column, Row, Table

# Tables ------------------------------------------------------------------------------------------


def levels_table(comparisons: Mapping[int, Comparison], said: Mapping[Rate, str]) -> DataTable:
    """Every arm at every width, at the common and at its best rate."""
    columns = (Column("h", number=True), *(Column(arm, number=True) for arm in ARMS))
    rows: list[Row] = []
    records: list[dict[str, Any]] = []
    for name, label in METRICS.items():
        for rate, words in said.items():
            for width, comparison in comparisons.items():
                cells = []
                for arm in ARMS:
                    sample = comparison.sample(arm, name, rate)
                    used = comparison.best_rates[arm] if rate == "best" else comparison.common_rate
                    cells.append(f"{sample}{f' ({used:g})' if rate == 'best' else ''}")
                    records.append(
                        {"metric": label, "h": width, "arm": arm, "chosen": rate, "rate": used,
                         **sample.record}
                    )  # fmt: skip
                rows.append(Row((str(width), *cells), f"{label}, {words}"))
    caption = (
        "Mean ± standard deviation over seeds at the end of training; best rates in parentheses."
    )
    table = Table("All arms at every width", columns, tuple(rows))
    return DataTable(table, caption, tuple(records), "all arms")


def gaps_table(comparisons: Mapping[int, Comparison], said: Mapping[Rate, str]) -> DataTable:
    """The differences between arms that the paper's gap is made of."""
    columns = (Column("h", number=True), *(Column(gap, number=True) for gap in GAPS))
    rows: list[Row] = []
    records: list[dict[str, Any]] = []
    for rate, words in said.items():
        for width, comparison in comparisons.items():
            found = {gap: gap_of(comparison, gap, "test_error", rate) for gap in GAPS}
            rows.append(Row((str(width), *map(str, found.values())), words))
            records += [
                {"h": width, "chosen": rate, "gap": gap, **one.record}
                for gap, one in found.items()
            ]  # fmt: skip
    caption = (
        "Paired differences of test errors in percentage points over seeds, with 95 % confidence "
        "intervals. The paper's Δ is the sum of the second and third column."
    )
    table = Table("Where the gap comes from", columns, tuple(rows))
    return DataTable(table, caption, tuple(records), "gaps")


# Figures -----------------------------------------------------------------------------------------


def _curve(arm: str, comparisons: Mapping[int, Comparison], name: str, rate: Rate) -> Curve:
    """A metric at the end against the width."""
    samples = [one.sample(arm, name, rate) for one in comparisons.values()]
    return sample_curve(arm, [*comparisons], samples)


def levels_curves(comparisons: Mapping[int, Comparison], name: str, said: str) -> Curves:
    """A metric against the width at the common rate, for the web page."""
    curves = tuple(_curve(arm, comparisons, name, "common") for arm in ARMS)
    ends = "; ".join(f"{c.name}: from {c.y[0]:.3g} to {c.y[-1]:.3g}" for c in curves)
    return Curves(
        curves,
        "hidden units per layer, h",
        METRICS[name],
        f"The {METRICS[name]} at the end of training against the width, {said}; mean over seeds, "
        "in a band of one standard deviation.",
        f"From the least to the largest width, {ends}.",
        log_x=True,
        file=f"{METRICS[name]} by width",
    )


def levels_figure(comparisons: Mapping[int, Comparison], said: Mapping[Rate, str]) -> Figure:
    """Loss and error against the width, as in Figure 4."""

    def draw() -> Any:
        plt = pyplot()
        size, grid = (9, 3.2 * len(said)), {"layout": "constrained", "squeeze": False}
        figure, axes = plt.subplots(len(said), 2, figsize=size, sharex=True, **grid)
        for row, (rate, words) in zip(axes, said.items(), strict=True):
            for ax, (name, label) in zip(row, METRICS.items(), strict=True):
                curves = [_curve(arm, comparisons, name, rate) for arm in ARMS]
                x = "hidden units per layer, h" if rate == [*said][-1] else ""
                draw_curves(ax, curves, x, label, log_x=True, markers=True)
                _width_ticks(ax, list(comparisons))
                ax.set_title(words, fontsize=10)
        axes[0][0].legend(frameon=False, fontsize=8)
        return figure

    return Figure(
        "levels",
        draw,
        "Training loss and test error at the end of training against the width, "
        f"{'; below, '.join(said.values())}. Means over seeds, in bands of one standard deviation.",
        "Panels with a curve per arm over the width; the numbers are in the tables.",
    )


def gaps_figure(
    comparisons: Mapping[int, Comparison], sizes: Mapping[int, Size], said: Mapping[Rate, str]
) -> Figure:
    """The differences against the invariant ratio."""

    def draw() -> Any:
        plt = pyplot()
        size, grid = (1.5 + 3.75 * len(said), 3.9), {"layout": "constrained", "squeeze": False}
        figure, (axes,) = plt.subplots(1, len(said), figsize=size, sharey=True, **grid)
        ratios = [sizes[width].ratio for width in comparisons]
        near = min((abs(math.log(a / b)) for a, b in pairwise(ratios)), default=math.inf)
        apart = math.exp(min(near / 8, 0.04))
        labels = [f"{ratio:.2g}\nh = {width}" for width, ratio in zip(sizes, ratios, strict=True)]
        for ax, (rate, words) in zip(axes, said.items(), strict=True):
            for number, gap in enumerate(GAPS):
                found = [gap_of(one, gap, "test_error", rate) for one in comparisons.values()]
                # Side by side, because intervals on top of each other cannot be read.
                places = [ratio * apart ** (number - (len(GAPS) - 1) / 2) for ratio in ratios]
                ax.errorbar(
                    places,
                    [one.mean for one in found],
                    yerr=_errors(found),
                    color=SERIES[number],
                    marker=MARKERS[number],
                    markersize=4,
                    capsize=2,
                    linewidth=1.2,
                    label=gap,
                )
            ax.axhline(0, color="#333333", linewidth=0.8)
            ax.set_xscale("log")
            ax.set_xticks(ratios, labels, fontsize=8)
            ax.minorticks_off()
            ax.set_xlabel("invariant ratio H/m")
            ax.set_title(words, fontsize=10)
            ax.grid(alpha=0.3)
            ax.spines[["top", "right"]].set_visible(False)
        axes[0].set_ylabel("difference of test errors (% points)")
        figure.legend(
            *axes[0].get_legend_handles_labels(),
            loc="outside lower center", ncols=len(said), frameon=False, fontsize=8,
        )  # fmt: skip
        return figure

    return Figure(
        "gaps",
        draw,
        "Differences of test errors against the invariant ratio H/m: the paper's Δ, and what it "
        "is made of. Paired over seeds, with 95 % confidence intervals; below 0 is better.",
        "Four series over H/m in each panel; the numbers are in the tables.",
    )


def _errors(found: Sequence[Difference]) -> list[list[float]]:
    half = [0.0 if math.isnan(one.high) else one.high - one.mean for one in found]
    return [half, half]


def _width_ticks(ax: Any, widths: Sequence[int]) -> None:
    ax.set_xticks(widths, [str(width) for width in widths])
    ax.minorticks_off()
