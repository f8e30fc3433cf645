"""Pictures: drawn by matplotlib when they are needed, and curves of trainings."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from pathspace.experiments.reproduce.statistics import Sample, metric
from pathspace.experiments.reproduce.words import BAND
from pathspace.experiments.training import Outcome
from pathspace.page import Curve, Curves, mean_curve
from pathspace.plot.backend import pyplot
from pathspace.plot.measures import MARKERS, SERIES
from pathspace.summary.metrics import value

DPI = 150
Lines: TypeAlias = Mapping[str, Sequence[Outcome]]  # outcomes by the name in the legend


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


def learning_curve(name: str, outcomes: Sequence[Outcome], measured: str) -> Curve:
    """A metric over epochs, mean and standard deviation over seeds; shares in percent.

    Args:
        name: for the legend.
        outcomes: of trials that differ in their seed only.
        measured: the metric, as in its rows, such as ``train_loss``.
    """
    return mean_curve(
        name,
        [
            [
                (float(row["epoch"]), value(row, measured))
                for row in outcome.curves
                if measured in row and not (row[measured] is None and row["epoch"] == 0)
            ]
            for outcome in outcomes
        ],
    )


def learning_curves(lines: Lines, measured: str) -> tuple[Curve, ...]:
    """The learning curves of several arms, see :func:`learning_curve`."""
    return tuple(learning_curve(name, outcomes, measured) for name, outcomes in lines.items())


def learning_ends(lines: Lines, measured: str) -> str:
    """Where a metric of several arms ends, in words: mean ± standard deviation over seeds."""
    return ", ".join(f"{name} ends at {metric(found, measured)}" for name, found in lines.items())


def learning_block(
    lines: Lines,
    measured: str,
    label: str,
    said: str,
    *,
    file: str,
    log_y: bool = False,
) -> Curves:
    """The learning curves of several arms, to zoom into on the web page.

    Args:
        lines: outcomes by the name in the legend.
        measured: the metric, as in its rows.
        label: the metric in words, with its unit.
        said: what is shown, for the caption.
        file: of the data, without an ending.
        log_y: logarithmic vertical axis.
    """
    return Curves(
        learning_curves(lines, measured),
        "epoch",
        label,
        f"{said}; {BAND} A curve breaks off where a training diverged.",
        f"{learning_ends(lines, measured)}.",
        log_y=log_y,
        file=file,
    )


def sample_curve(name: str, x: Sequence[float], samples: Sequence[Sample]) -> Curve:
    """Means of samples at their places, in bands of one standard deviation.

    Args:
        name: for the legend.
        x: the places.
        samples: one each.

    Example:
        >>> curve = sample_curve("error", [8, 16], [Sample((3.0, 5.0)), Sample((2.0,))])
        >>> curve.y, curve.low
        ((4.0, 2.0), (2.58..., 2.0))
    """
    spreads = [0.0 if math.isnan(one.deviation) else one.deviation for one in samples]
    pairs = [(one.mean, spread) for one, spread in zip(samples, spreads, strict=True)]
    return Curve(
        name,
        tuple(map(float, x)),
        tuple(mean for mean, _ in pairs),
        tuple(mean - spread for mean, spread in pairs),
        tuple(mean + spread for mean, spread in pairs),
        tuple(map(len, samples)),
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
    finish_axes(ax, x, y)


def finish_axes(ax: Any, x: str, y: str, grid: str = "both") -> None:
    """Name the axes of a panel, draw a faint grid, and leave out the frame.

    Args:
        ax: the axes.
        x: what the horizontal axis shows, with its unit.
        y: what the vertical axis shows, with its unit.
        grid: across which axes there are lines: ``x``, ``y`` or ``both``.
    """
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    ax.grid(alpha=0.3, axis=grid)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)


def show_from(ax: Any, curves: Sequence[Curve], start: float) -> None:
    """Fit the vertical axis, a logarithmic one, to what curves are from a place on.

    Args:
        ax: the axes in which the curves are drawn.
        curves: those that are to be seen.
        start: the place.
    """
    points = [y for curve in curves for x, y in zip(curve.x, curve.y, strict=True) if x >= start]
    shown = [y for y in points if math.isfinite(y) and y > 0]
    if shown:
        ax.set_ylim(min(shown) / 1.05, max(shown) * 1.05)
