"""Tables and figures of the sweeps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pathspace.experiments.reproduce.figures import Figure, finish_axes, sample_curve
from pathspace.experiments.reproduce.panels import Panel, draw_panels
from pathspace.experiments.reproduce.statistics import Sample
from pathspace.experiments.reproduce.tables import Line, table_of
from pathspace.experiments.reproduce.words import BANDS, IN_TABLES
from pathspace.experiments.reproduce.zheng2019.capacity import (
    CAPACITIES,
    FLATNESS,
    MARGIN,
    PLOTTED,
    SIZE,
    over_margin,
)
from pathspace.experiments.reproduce.zheng2019.correlation import Correlation
from pathspace.experiments.reproduce.zheng2019.sweeps import (
    MEASURES,
    POOLED,
    SAID,
    SWEEPS,
    Networks,
    Sweep,
)
from pathspace.page import Curve, DataTable
from pathspace.plot.backend import pyplot
from pathspace.plot.measures import INK, SERIES
from pathspace.tables import NOTHING, Column, Row, Table

GROUPS = {
    "capacity": CAPACITIES,
    "capacity, divided by the squared margin": tuple(map(over_margin, CAPACITIES)),
    "controls": (MARGIN, SIZE),
    "flatness (large is sharp)": FLATNESS,
}
SHOWN = (*map(over_margin, PLOTTED), MARGIN, SIZE, *FLATNESS)  # in the figure of correlations

# Tables ------------------------------------------------------------------------------------------


def correlations_table(correlations: Mapping[tuple[str, str], Correlation]) -> DataTable:
    """Kendall's τ of every measure with the gap, in every sweep and over all."""
    return table_of(
        "Measures against the generalization gap",
        [Column("measure")],
        {scope: _heading(scope) for scope in SAID},
        [
            Line(
                (measure,),
                {scope: correlations[measure, scope] for scope in SAID},
                {"measure": measure},
                group,
            )
            for group, measures in GROUPS.items()
            for measure in measures
        ],
        "Kendall's τ between each measure and the gap, with 95 % bootstrap intervals over "
        "configurations. A measure of capacity should have τ near 1. A network that a measure "
        "does not exist for is left out of its row; the data say how many there are.",
        across="networks",
        file="kendall",
    )


def networks_table(networks: Networks) -> DataTable:
    """Errors, epochs and measures at every place of every sweep."""
    names = tuple(map(over_margin, PLOTTED))
    columns = (
        Column("sweep"),
        *(Column(name, number=True) for name in ("training error (%)", "test error (%)", "epochs")),
        *(Column(f"log₁₀ {name}", number=True) for name in names),
    )
    rows, records = [], []
    for sweep in SWEEPS:
        for place, found in networks.by_sweep[sweep.name].items():
            errors = [networks.sample(sweep.name, place, split) for split in ("train", "test")]
            epochs = Sample(tuple(float(one.outcome.final["epoch"]) for one in found))
            sizes = [networks.logarithms(name, sweep.name).get(place) for name in names]
            cells = [NOTHING if sample is None else str(sample) for sample in sizes]
            group = f"({', '.join(sweep.panels)}) {sweep.x}"
            rows.append(Row((f"{place:,}", *map(str, errors), str(epochs), *cells), group))
            records += [
                {"sweep": sweep.name, sweep.x: place, "seed": one.outcome.trial.seed,
                 "training error (%)": one.error("train"), "test error (%)": one.error("test"),
                 "epochs": one.outcome.final["epoch"],
                 **{name: one.measures.get(name) for name in MEASURES}}
                for one in found
            ]  # fmt: skip
    caption = (
        "Mean ± standard deviation over seeds. The data hold all measures of every network: "
        "capacities, margin and number of weights as decimal logarithms."
    )
    table = Table("All networks", columns, tuple(rows))
    return DataTable(table, caption, tuple(records), "networks")


# Figures -----------------------------------------------------------------------------------------


def panels_figure(networks: Networks) -> Figure:
    """Errors above, relative measures below, a column per sweep: the paper's arrangement."""

    def errors(sweep: Sweep) -> list[Curve]:
        places = networks.by_sweep[sweep.name]
        return [
            _curve(word, {place: networks.sample(sweep.name, place, split) for place in places})
            for split, word in (("train", "training error"), ("test", "test error"))
        ]

    def measures(sweep: Sweep) -> list[Curve]:
        return [_curve(name, networks.relative(over_margin(name), sweep.name)) for name in PLOTTED]

    def finish(ax: Any) -> None:
        ax.set_ylim(-0.05, 1.25)

    def draw() -> Any:
        above = [_panel(networks, sweep, 0, errors(sweep), "error (%)") for sweep in SWEEPS]
        below = [
            replace(_panel(networks, sweep, 1, measures(sweep), "measure / largest"), finish=finish)
            for sweep in SWEEPS
        ]
        figure = draw_panels([above, below], (11, 6.2))
        figure.axes[len(SWEEPS)].legend(frameon=False, fontsize=8)
        return figure

    return Figure(
        "figure-2",
        draw,
        "Training and test errors (top), and four capacity measures, each divided by the squared "
        f"margin and by its largest mean over the sweep (bottom). {BANDS}.",
        f"Six panels: errors and measures over random labels, widths and depths; {IN_TABLES}",
    )


def logarithms_figure(networks: Networks) -> Figure:
    """The measures themselves, as logarithms, beside the gap."""

    def panel(sweep: Sweep) -> Panel:
        curves = [
            _curve(name, networks.logarithms(over_margin(name), sweep.name)) for name in PLOTTED
        ]
        return _panel(networks, sweep, 1, curves, "log₁₀ (measure / margin²)")

    return Figure(
        "measures-log",
        lambda: draw_panels([[panel(sweep) for sweep in SWEEPS]], (11, 3.6)),
        "The same four measures as decimal logarithms, not made relative: how far apart they are, "
        f"and what a linear scale hides. {BANDS}.",
        f"Three panels, each with four curves of logarithms; {IN_TABLES}",
    )


def correlations_figure(correlations: Mapping[tuple[str, str], Correlation]) -> Figure:
    """Kendall's τ with its interval, a panel per sweep."""

    def draw() -> Any:
        figure, axes = pyplot().subplots(
            1, len(SAID), figsize=(11, 0.9 + 0.3 * len(SHOWN)), layout="constrained", sharey=True
        )
        places = list(range(len(SHOWN)))
        for ax, scope in zip(axes, SAID, strict=True):
            for place, measure in zip(places, SHOWN, strict=True):
                found = correlations[measure, scope]
                if not math.isfinite(found.tau):
                    continue
                colour = SERIES[0] if measure in GROUPS["capacity, divided by the squared margin"] \
                    else SERIES[2] if measure in FLATNESS else INK  # fmt: skip
                if math.isfinite(found.low):
                    ax.hlines(place, found.low, found.high, color=colour, linewidth=1.4)
                ax.plot(found.tau, place, "o", color=colour, markersize=4.5)
            ax.axvline(0, color=INK, linewidth=0.8)
            ax.set_xlim(-1.08, 1.08)
            ax.set_title(_heading(scope), fontsize=10)
            finish_axes(ax, "Kendall's τ", "", grid="x")
        axes[0].set_yticks(places, SHOWN, fontsize=8)
        axes[0].invert_yaxis()
        return figure

    best = "; ".join(
        f"{_heading(scope)}: {correlations[over_margin(PLOTTED[0]), scope]} for the BP measure"
        for scope in SAID
    )
    return Figure(
        "kendall",
        draw,
        "Kendall's τ between measures and the gap between test and training error, with 95 % "
        "bootstrap intervals over configurations. Blue: measures of the paper's figure; black: "
        "controls that know no norm; green: flatness.",
        f"Four panels with a point and an interval per measure. {best}.",
    )


def _curve(name: str, samples: Mapping[int, Sample]) -> Curve:
    return sample_curve(name, list(samples), list(samples.values()))


def _panel(networks: Networks, sweep: Sweep, row: int, curves: list[Curve], y: str) -> Panel:
    """The panel with its letter, and ticks where something was trained."""
    return Panel(
        curves,
        sweep.x,
        y,
        f"({sweep.panels[row]})",
        log_x=sweep.log_x,
        markers=True,
        ticks=list(networks.by_sweep[sweep.name]),
        title_at="left",
    )


def _heading(scope: str) -> str:
    return "all networks" if scope == POOLED else SAID[scope]
