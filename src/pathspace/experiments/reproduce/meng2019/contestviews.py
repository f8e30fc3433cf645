"""Tables and figures of the contest of SGD, Path-SGD and G-SGD."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pathspace.experiments.reproduce.controls import SGD, Comparison, Rate
from pathspace.experiments.reproduce.figures import Figure, draw_curves, learning_curve, show_from
from pathspace.experiments.reproduce.meng2019.gaps import METRICS
from pathspace.experiments.reproduce.meng2019.rivals import ARMS, GAPS, NAMES, gap_of
from pathspace.experiments.reproduce.statistics import metric
from pathspace.page import Curve, Curves, DataTable
from pathspace.plot.backend import pyplot
from pathspace.tables import Column, Row, Table

# Tables ------------------------------------------------------------------------------------------


def _said(comparison: Comparison) -> dict[Rate, str]:
    return {
        "best": "each at its best step size",
        "common": f"all at step size {comparison.common_rate:g}",
    }


def arms_table(comparisons: Mapping[str, Comparison]) -> DataTable:
    """Every optimizer at the end, at its best and at the common step size."""
    cases: list[Rate] = ["best", "common"]
    heads = [f"{label}, {'best' if rate == 'best' else 'common'} step size"
             for label in METRICS.values() for rate in cases]  # fmt: skip
    columns = (Column("optimizer"), Column("best", True), *(Column(h, True) for h in heads))
    rows, records = [], []
    for data, one in comparisons.items():
        for arm in ARMS:
            found = [(name, rate, one.sample(arm, name, rate)) for name in METRICS
                     for rate in cases]  # fmt: skip
            cells = (arm, f"{one.best_rates[arm]:g}", *(str(sample) for *_, sample in found))
            rows.append(Row(cells, NAMES[data]))
            records += [
                {"data": data, "arm": arm, "metric": METRICS[name], "chosen": rate,
                 "rate": one.best_rates[arm] if rate == "best" else one.common_rate,
                 **sample.record}
                for name, rate, sample in found
            ]  # fmt: skip
    caption = "Mean ± standard deviation over seeds at the end of training."
    table = Table("All optimizers and controls", columns, tuple(rows))
    return DataTable(table, caption, tuple(records), "all arms")


def sources_table(comparisons: Mapping[str, Comparison]) -> DataTable:
    """All differences of test errors between arms."""
    said = _said(next(iter(comparisons.values())))
    columns = (Column("difference of test errors"), *(Column(text, True) for text in said.values()))
    rows, records = [], []
    for data, one in comparisons.items():
        for gap in GAPS:
            found = {rate: gap_of(one, gap, "test_error", rate) for rate in said}
            rows.append(Row((gap, *map(str, found.values())), NAMES[data]))
            records += [
                {"data": data, "gap": gap, "chosen": rate, **found_.record}
                for rate, found_ in found.items()
            ]  # fmt: skip
    caption = (
        "Paired differences of test errors in percentage points over seeds, with 95 % confidence "
        "intervals; below 0 the first is better."
    )
    table = Table("Where the differences come from", columns, tuple(rows))
    return DataTable(table, caption, tuple(records), "gaps")


def rates_table(comparisons: Mapping[str, Comparison]) -> DataTable:
    """The validation errors that step sizes are chosen by."""
    rates = list(next(iter(comparisons.values())).tuning[SGD])
    columns = (Column("optimizer"), *(Column(f"{rate:g}", True) for rate in rates))
    rows, records = [], []
    for data, one in comparisons.items():
        for arm in ARMS:
            found = {rate: metric(one.tuning[arm][rate], "validation_error") for rate in rates}
            rows.append(Row((arm, *map(str, found.values())), NAMES[data]))
            records += [
                {"data": data, "arm": arm, "rate": rate, "validation error (%)": sample.mean}
                for rate, sample in found.items()
            ]
    caption = "Validation error (%) at the end, by step size: what the best ones are chosen by."
    table = Table("The choice of step sizes", columns, tuple(rows))
    return DataTable(table, caption, tuple(records), "step sizes")


# Figures -----------------------------------------------------------------------------------------


def _learning(comparison: Comparison, name: str, rate: Rate) -> list[Curve]:
    return [learning_curve(arm, comparison.outcomes(arm, rate), name) for arm in ARMS]


def _ends(comparison: Comparison, name: str, rate: Rate) -> str:
    found = {arm: comparison.sample(arm, name, rate) for arm in ARMS}
    return ", ".join(f"{arm} ends at {sample}" for arm, sample in found.items())


def learning_block(data: str, comparison: Comparison, name: str) -> Curves:
    """A metric over epochs at the best step sizes, for the web page."""
    return Curves(
        tuple(_learning(comparison, name, "best")),
        "epoch",
        METRICS[name],
        f"{NAMES[data]}: {METRICS[name]} over epochs, each at its best step size; mean over seeds, "
        "in a band of one standard deviation.",
        f"{_ends(comparison, name, 'best')}.",
        log_y=name == "train_loss",
        file=f"{data} {METRICS[name]}",
    )


def learning_figure(comparisons: Mapping[str, Comparison], rate: Rate) -> Figure:
    """A row per data set: training loss and test error, as in Figure 5."""
    said = _said(next(iter(comparisons.values())))[rate]

    def draw() -> Any:
        plt = pyplot()
        figure, axes = plt.subplots(
            len(comparisons), len(METRICS), figsize=(9, 3.3 * len(comparisons)),
            layout="constrained", squeeze=False,
        )  # fmt: skip
        for row, (data, comparison) in zip(axes, comparisons.items(), strict=True):
            for ax, (name, label) in zip(row, METRICS.items(), strict=True):
                curves, log = _learning(comparison, name, rate), name == "train_loss"
                draw_curves(ax, curves, "epoch", label, log_y=log)
                if log:
                    show_from(ax, curves, 1)  # the loss of skeleton weights begins far above
                for line in ax.get_lines()[3:]:  # the controls
                    line.set(linestyle="--", linewidth=1)
                ax.set_title(f"{NAMES[data]}, {said}", fontsize=10)
        figure.legend(
            *axes[0][0].get_legend_handles_labels(),
            loc="outside lower center", ncols=3, frameon=False, fontsize=8,
        )  # fmt: skip
        return figure

    ends = "; ".join(
        f"{NAMES[data]}: {_ends(one, 'test_error', rate)}" for data, one in comparisons.items()
    )
    return Figure(
        f"curves-{rate}",
        draw,
        f"Training loss and test error over epochs, {said}: the paper's three optimizers as solid "
        "lines, the controls dashed. Means over seeds, in bands of one standard deviation; a curve "
        "breaks off where a training diverged.",
        f"A row of two panels per data set, with six curves each. Test errors (%), {said}: {ends}.",
    )
