"""Tables and figures of the contest of SGD, Path-SGD and G-SGD."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pathspace.experiments.reproduce.comparisons import differences_table, level, rates_line
from pathspace.experiments.reproduce.controls import METRICS, SGD, Comparison, Rate, rate_words
from pathspace.experiments.reproduce.figures import (
    Figure,
    learning_block,
    learning_curves,
    learning_ends,
    show_from,
)
from pathspace.experiments.reproduce.meng2019.rivals import ARMS, GAPS, NAMES
from pathspace.experiments.reproduce.panels import Panel, draw_panels
from pathspace.experiments.reproduce.tables import Line, table_of
from pathspace.experiments.reproduce.words import BANDS, SPREAD
from pathspace.page import Curves, DataTable
from pathspace.tables import Column

PAPER = 3  # arms of the paper, before the controls
RATES: tuple[Rate, ...] = ("best", "common")  # the paper's first

# Tables ------------------------------------------------------------------------------------------


def _said(comparison: Comparison) -> dict[Rate, str]:
    words = rate_words(comparison.common_rate, "step size")
    return {rate: words[rate] for rate in RATES}


def arms_table(comparisons: Mapping[str, Comparison]) -> DataTable:
    """Every optimizer at the end, at its best and at the common step size."""
    cases = [(name, rate) for name in METRICS for rate in RATES]
    return table_of(
        "All optimizers and controls",
        [Column("optimizer"), Column("best", number=True)],
        {(METRICS[name], rate): f"{METRICS[name]}, {rate} step size" for name, rate in cases},
        [
            Line(
                (arm, f"{one.best_rates[arm]:g}"),
                {(METRICS[name], rate): level(one, arm, name, rate) for name, rate in cases},
                {"data": data, "arm": arm},
                NAMES[data],
            )
            for data, one in comparisons.items()
            for arm in ARMS
        ],
        f"{SPREAD}.",
        across=("metric", "chosen"),
        file="all arms",
    )


def sources_table(comparisons: Mapping[str, Comparison]) -> DataTable:
    """All differences of test errors between arms."""
    cases = [(one, {"data": data}, NAMES[data]) for data, one in comparisons.items()]
    return differences_table(cases, GAPS, _said(cases[0][0]))


def rates_table(comparisons: Mapping[str, Comparison]) -> DataTable:
    """The validation errors that step sizes are chosen by."""
    rates = list(next(iter(comparisons.values())).tuning[SGD])
    return table_of(
        "The choice of step sizes",
        [Column("optimizer")],
        {rate: f"{rate:g}" for rate in rates},
        [
            rates_line(arm, one.tuning[arm], "final", {"data": data}, NAMES[data])
            for data, one in comparisons.items()
            for arm in ARMS
        ],
        "Validation error (%) at the end, by step size: what the best ones are chosen by.",
        across="step size",
        file="step sizes",
    )


# Figures -----------------------------------------------------------------------------------------


def contest_block(data: str, comparison: Comparison, name: str) -> Curves:
    """A metric over epochs at the best step sizes, for the web page."""
    return learning_block(
        comparison.lines(ARMS, "best"),
        name,
        METRICS[name],
        f"{NAMES[data]}: {METRICS[name]} over epochs, {_said(comparison)['best']}",
        log_y=name == "train_loss",
        file=f"{data} {METRICS[name]}",
    )


def contest_figure(comparisons: Mapping[str, Comparison], rate: Rate) -> Figure:
    """A row per data set: training loss and test error, as in Figure 5."""
    said = _said(next(iter(comparisons.values())))[rate]

    def panel(data: str, comparison: Comparison, name: str) -> Panel:
        curves, log = learning_curves(comparison.lines(ARMS, rate), name), name == "train_loss"

        def finish(ax: Any) -> None:
            if log:
                show_from(ax, curves, 1)  # the loss of skeleton weights begins far above
            for line in ax.get_lines()[PAPER:]:
                line.set(linestyle="--", linewidth=1)

        title = f"{NAMES[data]}, {said}"
        return Panel(curves, "epoch", METRICS[name], title, log_y=log, finish=finish)

    ends = "; ".join(
        f"{NAMES[data]}: {learning_ends(one.lines(ARMS, rate), 'test_error')}"
        for data, one in comparisons.items()
    )
    return Figure(
        f"curves-{rate}",
        lambda: draw_panels(
            [[panel(data, one, name) for name in METRICS] for data, one in comparisons.items()],
            (9, 3.3 * len(comparisons)),
            legend=3,
        ),
        f"Training loss and test error over epochs, {said}: the paper's three optimizers as solid "
        f"lines, the controls dashed. {BANDS}; a curve breaks off where a training diverged.",
        f"A row of two panels per data set, with six curves each. Test errors (%), {said}: {ends}.",
    )
