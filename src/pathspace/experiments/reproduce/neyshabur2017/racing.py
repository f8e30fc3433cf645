"""Tables and figures of races."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pathspace.experiments.reproduce.controls import SGD_SKELETON
from pathspace.experiments.reproduce.figures import (
    Figure,
    draw_curves,
    learning_curve,
    show_from,
)
from pathspace.experiments.reproduce.neyshabur2017.naming import NAMES, setting_name
from pathspace.experiments.reproduce.neyshabur2017.race import (
    ADAGRAD,
    ADAGRAD_UNBALANCED,
    CONTROLS,
    GSGD,
    PAPER,
    PATHSGD,
    PATHSGD_UNBALANCED,
    SGD,
    SGD_UNBALANCED,
    Race,
)
from pathspace.experiments.reproduce.statistics import Sample, metric
from pathspace.page import Curves, DataTable
from pathspace.plot.backend import pyplot
from pathspace.plot.measures import INK
from pathspace.tables import Column, Row, Table

METRICS = {
    "train_loss": "cross-entropy",
    "train_error": "training error (%)",
    "test_error": "test error (%)",
}
ARMS = (*PAPER, PATHSGD_UNBALANCED, *CONTROLS)
# What is taken from what.
GAPS = (
    (PATHSGD, SGD),
    (PATHSGD, ADAGRAD),
    (PATHSGD, SGD_UNBALANCED),
    (PATHSGD, ADAGRAD_UNBALANCED),
    (SGD_UNBALANCED, SGD),
    (ADAGRAD_UNBALANCED, ADAGRAD),
    (PATHSGD_UNBALANCED, PATHSGD),
    (SGD_SKELETON, SGD),
    (GSGD, SGD),
    (PATHSGD, GSGD),
)
DASHES = {SGD_SKELETON: ":", GSGD: "--"}

Races = Mapping[tuple[str, float], Race]

# Tables ------------------------------------------------------------------------------------------


def levels_table(races: Races) -> DataTable:
    """Every arm in every setting at the end."""
    names = list(METRICS.values())
    columns = (
        Column("optimizer"),
        Column("step size", number=True),
        *(Column(label, number=True) for label in names),
    )
    rows, records = [], []
    for key, one in races.items():
        for arm in ARMS:
            found = {name: one.sample(arm, name) for name in METRICS}
            cells = (arm, f"{one.rates[arm]:g}", *map(str, found.values()))
            rows.append(Row(cells, setting_name(*key)))
            records += [
                {"data": key[0], "dropout": key[1], "arm": arm, "step size": one.rates[arm],
                 "metric": METRICS[name], **sample.record}
                for name, sample in found.items()
            ]  # fmt: skip
    caption = "Mean ± standard deviation over seeds at the end of training."
    table = Table("All optimizers and controls", columns, tuple(rows))
    return DataTable(table, caption, tuple(records), "all arms")


def gaps_table(races: Races) -> DataTable:
    """Differences of test errors between arms."""
    columns = (Column("difference of test errors"),
               *(Column(setting_name(*key), number=True) for key in races))  # fmt: skip
    rows, records = [], []
    for arm, other in GAPS:
        found = {key: one.difference(arm, other, "test_error") for key, one in races.items()}
        gap = f"{arm} − {other}"
        rows.append(Row((gap, *map(str, found.values()))))
        records += [
            {"gap": gap, "data": data, "dropout": dropout, **difference.record}
            for (data, dropout), difference in found.items()
        ]  # fmt: skip
    caption = (
        "Paired differences of test errors in percentage points over seeds, with 95 % confidence "
        "intervals; below 0 the first is better."
    )
    table = Table("Differences between optimizers and starts", columns, tuple(rows))
    return DataTable(table, caption, tuple(records), "gaps")


def speed_table(races: Races) -> DataTable:
    """Epochs until each arm has the training loss that SGD ends with."""
    columns = (Column("setting"), *(Column(arm, number=True) for arm in ARMS))
    rows, records = [], []
    for key, one in races.items():
        found = {arm: one.epochs_to(arm, SGD) for arm in ARMS}
        rows.append(Row((setting_name(*key), *map(_epochs, found.values()))))
        records += [
            {"data": key[0], "dropout": key[1], "arm": arm, "seed": seed, "epochs": epochs}
            for arm, sample in found.items()
            for seed, epochs in zip(one.seeds, sample.values, strict=True)
        ]
    caption = (
        "Epochs until the training loss is at most the last one of SGD from balanced weights with "
        "the same seed: mean ± standard deviation, or how many seeds get there."
    )
    table = Table("How soon SGD's training loss is reached", columns, tuple(rows))
    return DataTable(table, caption, tuple(records), "epochs")


def rates_table(races: Races) -> DataTable:
    """The least validation error of each arm at each step size."""
    rates = list(next(iter(races.values())).tuning[SGD])
    columns = (Column("optimizer"), *(Column(f"{rate:g}", number=True) for rate in rates))
    rows, records = [], []
    for key, one in races.items():
        for arm, tried in one.tuning.items():
            found = {rate: metric(outcomes, "validation_error", "best")
                     for rate, outcomes in tried.items()}  # fmt: skip
            rows.append(Row((arm, *map(str, found.values())), setting_name(*key)))
            records += [
                {"data": key[0], "dropout": key[1], "arm": arm, "step size": rate,
                 "validation error (%)": sample.mean}
                for rate, sample in found.items()
            ]  # fmt: skip
    caption = "Least validation error (%) over epochs by step size: what these are chosen by."
    table = Table("The choice of step sizes", columns, tuple(rows))
    return DataTable(table, caption, tuple(records), "step sizes")


def _epochs(sample: Sample) -> str:
    if sample.diverged:
        return f"{len(sample) - sample.diverged} of {len(sample)}"
    return str(sample)


# Figures -----------------------------------------------------------------------------------------


def race_figure(races: Mapping[str, Race], dropout: float) -> Figure:
    """A row per data set: cross-entropy, training and test error, as in Figure 3."""

    def draw() -> Any:
        plt = pyplot()
        figure, axes = plt.subplots(
            len(races), len(METRICS), figsize=(10, 2.6 * len(races)),
            layout="constrained", squeeze=False,
        )  # fmt: skip
        for row, (data, one) in zip(axes, races.items(), strict=True):
            for ax, (name, label) in zip(row, METRICS.items(), strict=True):
                _draw(ax, one, name, label)
                ax.set_title(setting_name(data, dropout), fontsize=10)
        for ax in axes[:-1].flat:
            ax.set_xlabel("")
        figure.legend(
            *axes[0][0].get_legend_handles_labels(),
            loc="outside lower center", ncols=4, frameon=False, fontsize=8,
        )  # fmt: skip
        return figure

    largest = max(one.apart(PATHSGD, PATHSGD_UNBALANCED, "train_loss") for one in races.values())
    ends = "; ".join(f"{NAMES[data]}: {_ends(one, 'test_error')}" for data, one in races.items())
    return Figure(
        "curves-dropout" if dropout else "curves",
        draw,
        f"Cross-entropy, training error and test error over epochs, "
        f"{f'with dropout {dropout:g}' if dropout else 'without dropout'}. Means over seeds, in "
        "bands of one standard deviation; a curve breaks off where a training diverged. Path-SGD's "
        f"is that from balanced weights; from unbalanced ones its cross-entropy differs by "
        f"{largest:.2g} at most. The thin black curves are controls.",
        f"A row of three panels per data set. Test errors (%): {ends}.",
    )


def race_block(key: tuple[str, float], one: Race, name: str) -> Curves:
    """A metric over epochs, for the web page; seven curves."""
    arms = (*PAPER, *CONTROLS)
    return Curves(
        tuple(learning_curve(arm, one.outcomes[arm], name) for arm in arms),
        "epoch",
        METRICS[name],
        f"{setting_name(*key)}: {METRICS[name]} over epochs; mean over seeds, in a band of one "
        "standard deviation.",
        f"{_ends(one, name)}.",
        file=f"{setting_name(*key)} {METRICS[name]}",
    )


def _draw(ax: Any, one: Race, name: str, label: str) -> None:
    curves = [learning_curve(arm, one.outcomes[arm], name) for arm in PAPER]
    controls = [learning_curve(arm, one.outcomes[arm], name) for arm in CONTROLS]
    log = name == "train_loss"
    draw_curves(ax, curves, "epoch", label, log_y=log)
    for curve in controls:
        ax.plot(
            curve.x, curve.y,
            color=INK, linewidth=0.9, linestyle=DASHES[curve.name], label=curve.name,
        )  # fmt: skip
    if log:
        show_from(ax, curves, 1)
        top = 1.3 * curves[0].y[0]  # of the first loss: what goes far above comes down again
        if math.isfinite(top):
            ax.set_ylim(top=min(top, ax.get_ylim()[1]))


def _ends(one: Race, name: str) -> str:
    found = {arm: one.sample(arm, name) for arm in (*PAPER, *CONTROLS)}
    return ", ".join(f"{arm} ends at {sample}" for arm, sample in found.items())
