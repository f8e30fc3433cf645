"""Tables and figures of races."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pathspace.experiments.reproduce.comparisons import rates_line
from pathspace.experiments.reproduce.controls import SGD_SKELETON
from pathspace.experiments.reproduce.figures import (
    Figure,
    Lines,
    learning_block,
    learning_curves,
    learning_ends,
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
from pathspace.experiments.reproduce.panels import Panel, draw_panels
from pathspace.experiments.reproduce.statistics import Sample
from pathspace.experiments.reproduce.tables import Cell, Line, table_of
from pathspace.experiments.reproduce.words import BANDS, PAIRED, SPREAD
from pathspace.page import Curves, DataTable
from pathspace.plot.measures import INK
from pathspace.tables import Column

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
    return table_of(
        "All optimizers and controls",
        [Column("optimizer"), Column("step size", number=True)],
        {label: label for label in METRICS.values()},
        [
            Line(
                (arm, f"{one.rates[arm]:g}"),
                {label: one.sample(arm, name) for name, label in METRICS.items()},
                {**_about(key), "arm": arm, "step size": one.rates[arm]},
                setting_name(*key),
            )
            for key, one in races.items()
            for arm in ARMS
        ],
        f"{SPREAD}.",
        across="metric",
        file="all arms",
    )


def gaps_table(races: Races) -> DataTable:
    """Differences of test errors between arms."""
    return table_of(
        "Differences between optimizers and starts",
        [Column("difference of test errors")],
        {key: setting_name(*key) for key in races},
        [
            Line(
                (f"{arm} − {other}",),
                {key: one.difference(arm, other, "test_error") for key, one in races.items()},
                {"gap": f"{arm} − {other}"},
            )
            for arm, other in GAPS
        ],
        PAIRED,
        across=("data", "dropout"),
        file="gaps",
    )


def speed_table(races: Races) -> DataTable:
    """Epochs until each arm has the training loss that SGD ends with."""
    return table_of(
        "How soon SGD's training loss is reached",
        [Column("setting")],
        {arm: arm for arm in ARMS},
        [
            Line(
                (setting_name(*key),),
                {arm: _epochs(one.epochs_to(arm, SGD), one.seeds) for arm in ARMS},
                _about(key),
            )
            for key, one in races.items()
        ],
        "Epochs until the training loss is at most the last one of SGD from balanced weights with "
        "the same seed: mean ± standard deviation, or how many seeds get there.",
        across="arm",
        file="epochs",
    )


def rates_table(races: Races) -> DataTable:
    """The least validation error of each arm at each step size."""
    rates = next(iter(races.values())).tuning[SGD]
    return table_of(
        "The choice of step sizes",
        [Column("optimizer")],
        {rate: f"{rate:g}" for rate in rates},
        [
            rates_line(arm, tried, "best", _about(key), setting_name(*key))
            for key, one in races.items()
            for arm, tried in one.tuning.items()
        ],
        "Least validation error (%) over epochs by step size: what these are chosen by.",
        across="step size",
        file="step sizes",
    )


def _about(key: tuple[str, float]) -> dict[str, Any]:
    return {"data": key[0], "dropout": key[1]}


def _epochs(sample: Sample, seeds: Sequence[int]) -> Cell:
    """The mean, or how many seeds get there; in the data the epochs of each seed."""
    reached = f"{len(sample.finite)} of {len(sample)}"
    by_seed = {f"seed {seed}": value for seed, value in zip(seeds, sample.values, strict=True)}
    return Cell(reached if sample.diverged else str(sample), by_seed)


# Figures -----------------------------------------------------------------------------------------


def race_figure(races: Mapping[str, Race], dropout: float) -> Figure:
    """A row per data set: cross-entropy, training and test error, as in Figure 3."""
    largest = max(one.apart(PATHSGD, PATHSGD_UNBALANCED, "train_loss") for one in races.values())
    ends = "; ".join(
        f"{NAMES[data]}: {learning_ends(_lines(one), 'test_error')}" for data, one in races.items()
    )
    return Figure(
        "curves-dropout" if dropout else "curves",
        lambda: draw_panels(
            [
                [_panel(one, name, setting_name(data, dropout)) for name in METRICS]
                for data, one in races.items()
            ],
            (10, 2.6 * len(races)),
            legend=4,
            share_x=True,
        ),
        f"Cross-entropy, training error and test error over epochs, "
        f"{f'with dropout {dropout:g}' if dropout else 'without dropout'}. {BANDS}; a curve "
        "breaks off where a training diverged. Path-SGD's "
        f"is that from balanced weights; from unbalanced ones its cross-entropy differs by "
        f"{largest:.2g} at most. The thin black curves are controls.",
        f"A row of three panels per data set. Test errors (%): {ends}.",
    )


def race_block(key: tuple[str, float], one: Race, name: str) -> Curves:
    """A metric over epochs, for the web page; seven curves."""
    said = f"{setting_name(*key)}: {METRICS[name]} over epochs"
    file = f"{setting_name(*key)} {METRICS[name]}"
    return learning_block(_lines(one), name, METRICS[name], said, file=file)


def _panel(one: Race, name: str, title: str) -> Panel:
    curves = learning_curves(_lines(one, PAPER), name)
    controls = learning_curves(_lines(one, CONTROLS), name)
    log = name == "train_loss"

    def finish(ax: Any) -> None:
        for curve in controls:
            dashes = DASHES[curve.name]
            ax.plot(curve.x, curve.y, color=INK, linewidth=0.9, linestyle=dashes, label=curve.name)
        if log:
            show_from(ax, curves, 1)
            top = 1.3 * curves[0].y[0]  # of the first loss: what goes far above comes down again
            if math.isfinite(top):
                ax.set_ylim(top=min(top, ax.get_ylim()[1]))

    return Panel(curves, "epoch", METRICS[name], title, log_y=log, finish=finish)


def _lines(one: Race, arms: tuple[str, ...] = (*PAPER, *CONTROLS)) -> Lines:
    return {arm: one.outcomes[arm] for arm in arms}
