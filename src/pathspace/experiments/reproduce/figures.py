"""Pictures: drawn by matplotlib when they are needed, and curves of trainings."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pathspace.experiments.training import Outcome
from pathspace.page import Curve, mean_curve
from pathspace.plot.backend import pyplot
from pathspace.plot.measures import MARKERS, SERIES
from pathspace.summary.metrics import value

DPI = 150


@dataclass(frozen=True, eq=False)
class Figure:
    """A picture.

    Attributes:
        name: of its file, without an ending; distinct within an experiment.
        draw: makes the matplotlib figure.
        caption: what is seen and how it was obtained.
        alt: the same for those who do not see it: the shape in words.
    """

    name: str
    draw: Callable[[], Any]
    caption: str
    alt: str

    def render(self, kind: str) -> bytes:
        """The picture as the bytes of a file, ``png`` or ``svg``; the same bytes each time."""
        content = io.BytesIO()
        plt = pyplot()
        with plt.rc_context({"svg.hashsalt": self.name}):
            figure = self.draw()
            no_date = {"Date": None} if kind == "svg" else {}
            figure.savefig(content, format=kind, dpi=DPI, metadata=no_date)
            plt.close(figure)
        return content.getvalue()


def learning_curve(name: str, outcomes: Sequence[Outcome], metric: str) -> Curve:
    """A metric over epochs, mean and standard deviation over seeds; shares in percent.

    Args:
        name: for the legend.
        outcomes: of trials that differ in their seed only.
        metric: as in the rows of metrics, such as ``train_loss``.
    """
    return mean_curve(
        name,
        [
            [
                (float(row["epoch"]), value(row, metric))
                for row in outcome.curves
                if metric in row and not (row[metric] is None and row["epoch"] == 0)
            ]
            for outcome in outcomes
        ],
    )


def draw_curves(
    ax: Any,
    curves: Sequence[Curve],
    x: str,
    y: str,
    *,
    log_x: bool = False,
    log_y: bool = False,
    markers: bool = False,
) -> None:
    """Draw curves with their bands into matplotlib axes, in colours that all can tell apart.

    Args:
        ax: the axes.
        curves: at most seven.
        x: what the horizontal axis shows, with its unit.
        y: what the vertical axis shows, with its unit.
        log_x: logarithmic horizontal axis.
        log_y: logarithmic vertical axis.
        markers: mark the points.
    """
    for number, curve in enumerate(curves):
        colour = SERIES[number % len(SERIES)]
        marker = MARKERS[number % len(MARKERS)] if markers else None
        ax.plot(curve.x, curve.y, color=colour, label=curve.name, marker=marker, markersize=4)
        if curve.low:
            ax.fill_between(curve.x, curve.low, curve.high, color=colour, alpha=0.15, linewidth=0)
    if log_x:
        ax.set_xscale("log")
    if log_y and any(number > 0 for curve in curves for number in curve.y if math.isfinite(number)):
        ax.set_yscale("log")
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    ax.grid(alpha=0.3)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
