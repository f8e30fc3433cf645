"""Tables and figures of networks that grow."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pathspace.experiments.reproduce.figures import Figure, sample_curve
from pathspace.experiments.reproduce.neyshabur2017.growth import RULES, TRAINING, ZERO, Sweep
from pathspace.experiments.reproduce.neyshabur2017.naming import NAMES
from pathspace.experiments.reproduce.panels import Panel, draw_panels
from pathspace.experiments.reproduce.statistics import Sample
from pathspace.experiments.reproduce.tables import Cell, Line, table_of
from pathspace.experiments.reproduce.words import BAND, BANDS
from pathspace.page import Curve, Curves, DataTable
from pathspace.tables import Column


def size_table(sweeps: Mapping[str, Sweep]) -> DataTable:
    """Errors at every width, and how long trainings are."""
    curves = (TRAINING, *RULES)
    return table_of(
        "Errors at every width",
        [Column("H", number=True), Column("weights", number=True)],
        {**{curve: f"{curve} (%)" for curve in curves}, "epochs": "epochs"},
        [
            Line(
                (str(width), f"{width * sweep.per_unit:,}"),
                {
                    **{curve: _cell(curve, sweep.sample(width, curve)) for curve in curves},
                    "epochs": sweep.epochs(width),
                },
                {"data": data, "H": width, "weights": width * sweep.per_unit},
                NAMES[data],
            )
            for data, sweep in sweeps.items()
            for width in sweep.widths
        ],
        "Mean ± standard deviation over seeds.",
        across="quantity",
        file="errors by width",
    )


def size_figure(sweeps: Mapping[str, Sweep]) -> Figure:
    """A panel per data set, as in Figure 1."""

    def panel(data: str, sweep: Sweep) -> Panel:
        def finish(ax: Any) -> None:
            if sweep.enough is not None:
                ax.axvline(sweep.enough, color="#333333", linewidth=0.8, linestyle=":")
            ax.set_ylim(bottom=0)

        return Panel(
            _curves(sweep),
            "hidden units, H",
            "error (%)",
            NAMES[data],
            log_x=True,
            markers=True,
            ticks=sweep.widths,
            finish=finish,
        )

    said = "; ".join(f"{NAMES[data]}: {_ends(_curves(one))}" for data, one in sweeps.items())
    return Figure(
        "errors",
        lambda: draw_panels([[panel(*one) for one in sweeps.items()]], (9, 3.9), legend=2),
        "Training error, and test error by three rules of when to stop, against the number of "
        f"hidden units. {BANDS}; the dotted line is "
        "the least width with zero training error for all seeds. Test errors at zero training "
        "error are shown where all seeds reach it.",
        f"From the least to the largest width, in percent: {said}.",
    )


def size_block(data: str, sweep: Sweep) -> Curves:
    """Errors against the width, for the web page."""
    curves = _curves(sweep)
    return Curves(
        tuple(curves),
        "hidden units, H",
        "error (%)",
        f"{NAMES[data]}: errors against the number of hidden units; {BAND} "
        "A rule that some seed never met has no point.",
        f"From the least to the largest width, {_ends(curves)}.",
        log_x=True,
        file=f"errors by width {data}",
    )


def _curves(sweep: Sweep) -> list[Curve]:
    return [
        sample_curve(curve, sweep.widths, [sweep.sample(width, curve) for width in sweep.widths])
        for curve in (TRAINING, *RULES)
    ]


def _ends(curves: list[Curve]) -> str:
    """The first and the last point of each curve that has any."""
    known = {c.name: [y for y in c.y if math.isfinite(y)] for c in curves}
    return ", ".join(f"{name} from {y[0]:.3g} to {y[-1]:.3g}" for name, y in known.items() if y)


def _cell(curve: str, sample: Sample) -> Cell:
    reached = f"reached by {len(sample.finite)} of {len(sample)}"
    rare = curve == ZERO and sample.diverged
    return Cell(reached if rare else str(sample), sample.record)
