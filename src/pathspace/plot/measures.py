"""Reports as pictures: a bar per measure, or a point per measure and network."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from pathspace.entries import NETWORK, Entry, number
from pathspace.errors import PathspaceError
from pathspace.plot.backend import pyplot

if TYPE_CHECKING:
    from pathspace.report import Comparison, Report

# Colours of Okabe and Ito, which colour-blind people can tell apart.
INVARIANT = "#0072b2"
MOVING = "#e69f00"
INK = "#333333"
SERIES = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#000000")
MARKERS = "osD^vPX"


def draw_report(report: Report, ax: Any = None) -> Any:
    """Draw the measures of a network as bars on a logarithmic axis, one below the other.

    Invariant measures are blue, those that rescaling moves are orange and hatched. Numbers that
    are zero, negative or not measured have no place on a logarithmic axis and are left out.

    Args:
        report: see :func:`pathspace.measure`.
        ax: matplotlib axes to draw on; new ones otherwise.

    Returns:
        the axes.
    """
    plt = pyplot()
    entries = [entry for entry in report if _is_drawable(entry)]
    if not entries:
        raise PathspaceError("the report has no positive number that could be drawn")
    if ax is None:
        _, ax = plt.subplots(figsize=(8.5, 1.6 + 0.3 * _height(entries)), layout="constrained")
    places = _places(ax, entries)
    for entry, y in zip(entries, places, strict=True):
        x = _log10(entry)
        style = (
            {"color": INVARIANT, "edgecolor": INVARIANT}
            if entry.invariant is True
            else {"color": MOVING, "edgecolor": "white", "hatch": "////"}
        )
        ax.barh(y, x, height=0.66, linewidth=0, **style)
        beside = {"ha": "right" if x < 0 else "left", "va": "center", "fontsize": 8.5}
        ax.annotate(
            " ".join([number(entry), entry.unit]).strip(),
            (x, y),
            xytext=(-4 if x < 0 else 4, 0),
            textcoords="offset points",
            color=INK,
            **beside,
        )
    proxies = [
        plt.Rectangle((0, 0), 1, 1, facecolor=INVARIANT, label="rescaling-invariant"),
        plt.Rectangle(
            (0, 0), 1, 1, facecolor=MOVING, edgecolor="white", hatch="////", linewidth=0,
            label="moved by rescaling",
        ),
    ]  # fmt: skip
    _finish(ax, report.name, proxies, room=0.22)
    return ax


def draw_comparison(comparison: Comparison, ax: Any = None) -> Any:
    """Draw reports as points on a logarithmic axis: a line per measure, a symbol per network.

    Measures whose names are printed in orange are not rescaling-invariant.

    Args:
        comparison: see :func:`pathspace.compare`.
        ax: matplotlib axes to draw on; new ones otherwise.

    Returns:
        the axes.
    """
    plt = pyplot()
    rows = [
        (entry, [e if e is not None and _is_drawable(e) else None for e in found])
        for entry, found, _ in comparison.rows()
    ]
    rows = [(entry, found) for entry, found in rows if any(found)]
    entries = [entry for entry, _ in rows]
    if not entries:
        raise PathspaceError("the reports have no positive number that could be drawn")
    if ax is None:
        _, ax = plt.subplots(figsize=(8.5, 1.6 + 0.3 * _height(entries)), layout="constrained")
    places = _places(ax, entries)
    styles = [
        {
            "color": SERIES[k % len(SERIES)],
            "marker": MARKERS[k % len(MARKERS)],
            "ls": "",
            "ms": max(9.0 - 2 * k, 4),  # what lies on top is smaller
        }
        for k in range(len(comparison.names))
    ]
    for (_, found), y in zip(rows, places, strict=True):
        points = [(_log10(e), style) for e, style in zip(found, styles, strict=True) if e]
        xs = [x for x, _ in points]
        ax.plot([min(xs), max(xs)], [y, y], color="#bbbbbb", lw=2, zorder=1)
        for x, style in points:
            ax.plot(x, y, alpha=0.9, zorder=2, **style)
    proxies = [
        plt.Line2D([], [], label=name, **style)
        for name, style in zip(comparison.names, styles, strict=True)
    ]
    _finish(ax, "", proxies, room=0.06)
    return ax


def _is_drawable(entry: Entry) -> bool:
    """Whether it has a place on a logarithmic axis; counts of weights are no measurements."""
    measured = entry.value is not None and entry.log10 is not None and math.isfinite(entry.log10)
    return measured and entry.group != NETWORK


def _log10(entry: Entry) -> float:
    assert entry.log10 is not None
    return entry.log10


def _height(entries: list[Entry]) -> float:
    """How many lines the entries take, a gap between groups included."""
    return len(entries) + 1.1 * len({entry.group for entry in entries})


def _places(ax: Any, entries: list[Entry]) -> list[float]:
    """The height of each entry, from the top down; writes names and headings of groups."""
    places, y, group = [], 0.0, None
    for entry in entries:
        if entry.group != group:
            group = entry.group
            y -= 1.1
            ax.annotate(
                group,
                (0, y + 0.95),
                xycoords=ax.get_yaxis_transform(),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
                fontsize=9,
                fontweight="bold",
                color=INK,
            )
        places.append(y)
        y -= 1.0
    ax.set_yticks(places, [entry.name for entry in entries], fontsize=9)
    for label, entry in zip(ax.get_yticklabels(), entries, strict=True):
        label.set_color(INK if entry.invariant is True else "#9c6500")
    ax.set_ylim(y + 0.3, 0.2)
    return places


def _finish(ax: Any, title: str, handles: list[Any], room: float) -> None:
    """Axis, ticks as powers of ten, legend."""
    low, high = ax.get_xlim()
    span = max(high - low, 1.0)
    ax.set_xlim(low - room * span * (low < 0), high + room * span)
    ax.axvline(0, color=INK, lw=0.8)
    ax.locator_params(axis="x", nbins=8, integer=True)
    ax.xaxis.set_major_formatter(lambda x, _: f"$10^{{{round(x)}}}$")
    ax.grid(axis="x", color="#dddddd", lw=0.6)
    ax.set_axisbelow(True)
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.tick_params(axis="y", length=0)
    ax.set_xlabel("value (logarithmic)", fontsize=9)
    ax.set_title(title, loc="left", fontsize=11, pad=24)
    ax.legend(
        handles=handles,
        loc="lower left",
        bbox_to_anchor=(0, 1.0),
        ncols=4,
        frameon=False,
        fontsize=9,
        borderaxespad=0.2,
    )
