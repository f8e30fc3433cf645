"""Figures of panels: what each panel shows, and how panels stand together."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pathspace.experiments.reproduce.figures import draw_curves, finish_axes
from pathspace.experiments.reproduce.statistics import Difference
from pathspace.page import Curve
from pathspace.plot.backend import pyplot
from pathspace.plot.measures import MARKERS, SERIES


@dataclass(frozen=True, eq=False)
class Panel:
    """Curves in one plane.

    Attributes:
        curves: at most seven.
        x: what the horizontal axis shows, with its unit.
        y: what the vertical axis shows, with its unit.
        title: above it.
        log_x: logarithmic horizontal axis.
        log_y: logarithmic vertical axis.
        markers: mark the points.
        ticks: places on the horizontal axis that are named, and no others; by default any.
        title_at: side of the title.
        finish: draws what else there is, into the matplotlib axes.
    """

    curves: Sequence[Curve]
    x: str
    y: str
    title: str = ""
    log_x: bool = False
    log_y: bool = False
    markers: bool = False
    ticks: Sequence[float] = ()
    title_at: str = "center"
    finish: Callable[[Any], None] = lambda ax: None

    def draw(self, ax: Any) -> None:
        """Draw it into matplotlib axes."""
        draw_curves(
            ax, self.curves, self.x, self.y,
            log_x=self.log_x, log_y=self.log_y, markers=self.markers,
        )  # fmt: skip
        if self.x == "epoch" and not self.log_x:
            ax.xaxis.get_major_locator().set_params(integer=True)
        if self.ticks:
            name_ticks(ax, self.ticks)
        ax.set_title(self.title, fontsize=10, loc=self.title_at)
        self.finish(ax)


def draw_panels(
    rows: Sequence[Sequence[Panel]],
    size: tuple[float, float],
    *,
    legend: int | None = 0,
    share_x: bool = False,
    share_y: bool = False,
) -> Any:
    """Draw panels in rows and columns; the matplotlib figure.

    Args:
        rows: panels from left to right, of all rows as many.
        size: in inches.
        legend: columns of the legend below all panels; with 0 it is in the first panel, and with
            None there is none.
        share_x: one horizontal axis for each column, named below the last panel only.
        share_y: one vertical axis for each row, named at the first panel only.
    """
    figure, axes = pyplot().subplots(
        len(rows), len(rows[0]), figsize=size, layout="constrained", squeeze=False,
        sharex="col" if share_x else False, sharey="row" if share_y else False,
    )  # fmt: skip
    for line, panels in zip(axes, rows, strict=True):
        for ax, panel in zip(line, panels, strict=True):
            panel.draw(ax)
    if share_x:
        for ax in axes[:-1].flat:
            ax.set_xlabel("")
    if share_y:
        for ax in axes[:, 1:].flat:
            ax.set_ylabel("")
    if legend:
        legend_below(figure, axes[0][0], legend)
    elif legend is not None:
        axes[0][0].legend(frameon=False, fontsize=8)
    return figure


def legend_below(figure: Any, ax: Any, columns: int) -> None:
    """The legend of one panel, below all of them.

    Args:
        figure: the matplotlib figure.
        ax: the axes whose lines are named.
        columns: of the legend.
    """
    handles = ax.get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=columns, frameon=False, fontsize=8)


def name_ticks(ax: Any, places: Sequence[float], names: Sequence[str] = ()) -> None:
    """Name places on the horizontal axis, and no others.

    Args:
        ax: the axes.
        places: where.
        names: of them; by default the numbers.
    """
    shown = list(names) or [f"{place:g}" for place in places]
    ax.set_xticks(list(places), shown, fontsize=8)
    ax.minorticks_off()


def draw_points(
    ax: Any,
    number: int,
    places: Sequence[float],
    means: Sequence[float],
    halves: Sequence[float],
    label: str,
    *,
    sideways: bool = False,
) -> None:
    """Points with bars to both sides, in the colour and with the mark of a series.

    Args:
        ax: the axes.
        number: of the series.
        places: along the axis of what was trained.
        means: the points.
        halves: half of each bar; NaN for none.
        label: of the series.
        sideways: places from top to bottom, and bars from left to right; points are not joined.
    """
    bars = [0.0 if math.isnan(half) else half for half in halves]
    look = {
        "color": SERIES[number % len(SERIES)],
        "marker": MARKERS[number % len(MARKERS)],
        "markersize": 4,
        "capsize": 2,
        "linewidth": 1.2,
        "label": label,
    }
    if sideways:
        ax.errorbar(means, places, xerr=[bars, bars], linestyle="none", **look)
    else:
        ax.errorbar(places, means, yerr=[bars, bars], **look)


def draw_differences(
    ax: Any,
    series: Mapping[str, Sequence[Difference]],
    places: Callable[[int], Sequence[float]],
    *,
    sideways: bool = False,
) -> None:
    """Differences with their confidence intervals, side by side, and a line at 0.

    Args:
        ax: the axes.
        series: differences by name, one per place.
        places: of the series of a number: shifted, as intervals on top of each other cannot be
            read.
        sideways: see :func:`draw_points`.
    """
    for number, (name, found) in enumerate(series.items()):
        halves = [one.high - one.mean for one in found]
        means = [one.mean for one in found]
        draw_points(ax, number, places(number), means, halves, name, sideways=sideways)
    (ax.axvline if sideways else ax.axhline)(0, color="#333333", linewidth=0.8)
    what = "difference of test errors (% points)"
    finish_axes(
        ax, x=what if sideways else "", y="" if sideways else what, grid="x" if sideways else "both"
    )
