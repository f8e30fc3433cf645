"""Landscapes as still pictures: curves, surfaces and contour maps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from pathspace.errors import PathspaceError
from pathspace.plot.backend import pyplot
from pathspace.plot.heights import (
    MODEL,
    axis_labels,
    height_limits,
    height_of,
    heights_of,
    loss_label,
    title_of,
)

if TYPE_CHECKING:
    from pathspace.losslandscape import Landscape

COLOURS = "cividis"  # made for colour-blind people, and of rising lightness
OTHER = "#ffffff"
INK = "#333333"
GAP = "#e6e6e6"
LEVELS = 12


def draw(
    landscape: Landscape,
    ax: Any = None,
    *,
    log: bool = False,
    limits: tuple[float, float] | None = None,
) -> Any:
    """Draw a plane as a surface in three dimensions, and a line as a curve.

    The model is a dot. Points where the chart has ended, or the loss is not finite, are gaps.

    Args:
        landscape: see :func:`pathspace.landscape`.
        ax: matplotlib axes to draw on (``projection="3d"`` for a plane); new ones otherwise.
        log: draw the logarithm of the loss.
        limits: the least and the greatest loss of the height scale; by default the landscape's.

    Returns:
        the axes.
    """
    if landscape.dims == 1:
        return _draw_line(landscape, ax, log)
    plt = pyplot()
    if ax is None:
        figure = plt.figure(figsize=(6.4, 5.2))
        ax = figure.add_subplot(projection="3d", position=(0.0, 0.02, 0.92, 0.9))
    low, high = height_limits([landscape], log) if limits is None else limits
    levels = _levels(low, high, log)  # the colours are those of the contour map
    t1, t2 = torch.meshgrid(*landscape.axes, indexing="ij")
    heights = heights_of(landscape, log).numpy()
    ax.computed_zorder = False  # else the surface may hide the model
    ax.plot_surface(
        t1.numpy(), t2.numpy(), heights,
        cmap=COLOURS, vmin=levels[0], vmax=levels[-1], rcount=60, ccount=60, shade=False,
        linewidth=0.15, edgecolor=INK, zorder=1,
    )  # fmt: skip
    center = height_of(landscape.center, log)
    ax.scatter([0], [0], [center], color=MODEL, edgecolor="white", s=48, depthshade=False, zorder=3)
    ax.set_zlim(low, high)
    for axis in (ax.xaxis, ax.yaxis, ax.zaxis):
        axis.set_major_locator(_locator(5))
    x, y = axis_labels(landscape)
    ax.set_xlabel(x, fontsize=9, labelpad=6)
    ax.set_ylabel(y, fontsize=9, labelpad=6)
    ax.set_zlabel(loss_label(landscape, log), fontsize=9, labelpad=6)
    ax.tick_params(labelsize=8, pad=1)
    ax.view_init(elev=28, azim=-58)
    ax.set_box_aspect((1, 1, 0.75), zoom=1.0)
    ax.set_title(title_of(landscape), fontsize=10, y=0.97, parse_math=False)
    return ax


def draw_contour(
    landscape: Landscape,
    ax: Any = None,
    *,
    log: bool = False,
    limits: tuple[float, float] | None = None,
    colourbar: bool = True,
) -> Any:
    """Draw a plane as a contour map; the model is a dot, gaps are grey.

    Args:
        landscape: see :func:`pathspace.landscape`.
        ax: matplotlib axes to draw on; new ones otherwise.
        log: logarithmic colours and levels.
        limits: the least and the greatest loss (its logarithm with ``log``) of the colours.
        colourbar: whether to draw one beside the map.

    Returns:
        the axes.
    """
    if landscape.dims == 1:
        raise PathspaceError("this landscape is a line, which has no contours; use plot()")
    plt = pyplot()
    from matplotlib import patheffects as effects

    if ax is None:
        _, ax = plt.subplots(figsize=(5.6, 4.6), layout="constrained")
    low, high = height_limits([landscape], log) if limits is None else limits
    levels = _levels(low, high, log)
    t1, t2 = (axis.numpy() for axis in landscape.axes)
    heights = heights_of(landscape, log).T.numpy()
    ax.set_facecolor(GAP)
    if landscape.losses.isfinite().any():
        shown = {"levels": levels, "vmin": levels[0], "vmax": levels[-1]}
        filled = ax.contourf(t1, t2, heights, cmap=COLOURS, **shown)
        lines = ax.contour(
            t1, t2, heights, colors="white", linewidths=0.6, linestyles="solid", **shown
        )
        names = ax.clabel(
            lines, lines.levels[1::2], fontsize=7.5, colors=INK, fmt=lambda z: _number(z, log)
        )
        for text in names:
            text.set_path_effects([effects.withStroke(linewidth=2, foreground="white")])
        if colourbar:
            _colourbar(ax.figure, filled, [ax], landscape, log)
    for name, place in landscape.marks.items():
        ax.plot(*place, "D", color=OTHER, markeredgecolor=INK, label=name.replace("$", r"\$"))
    if landscape.trail:
        ax.plot(
            *zip(*landscape.trail, strict=True), ".-", color=OTHER, markeredgecolor=INK,
            linewidth=1.2, label="checkpoints",
        )  # fmt: skip
    ax.plot([0], [0], "o", color=MODEL, markeredgecolor="white", markersize=7, label="model")
    if landscape.marks or landscape.trail:
        ax.legend(fontsize=8, facecolor="#b0b0b0", framealpha=0.9)
    x, y = axis_labels(landscape)
    ax.set_xlabel(x, fontsize=9)
    ax.set_ylabel(y, fontsize=9)
    ax.tick_params(labelsize=8)
    ax.set_title(title_of(landscape), fontsize=10, parse_math=False)
    return ax


def side_by_side(landscapes: Sequence[Landscape], *, log: bool = False) -> Any:
    """Draw several landscapes, surfaces above contour maps, on one scale of heights and colours.

    Args:
        landscapes: see :func:`pathspace.landscapes`.
        log: draw the logarithm of the losses.

    Returns:
        the figure.

    Reference: Yi et al. 2019, Figure 3.
    """
    if not landscapes:
        raise ValueError("there is no landscape to draw")
    limits, count = height_limits(landscapes, log), len(landscapes)
    if any(landscape.dims == 1 for landscape in landscapes):
        return _lines(landscapes, log)
    plt = pyplot()
    figure = plt.figure(figsize=(4.5 * count + 0.9, 8.0))
    surfaces, maps = figure.subfigures(2, 1, height_ratios=(1.08, 1))
    margin = 0.9 / (4.5 * count + 0.9)  # for the colour bar
    for k, landscape in enumerate(landscapes):
        width = (1 - margin) / count
        position = (k * width, 0.0, width, 0.93)
        ax = surfaces.add_subplot(projection="3d", position=position)
        draw(landscape, ax, log=log, limits=limits)
    drawn = []
    for k, landscape in enumerate(landscapes):
        width = (1 - margin) / count
        position = (k * width + 0.16 * width, 0.14, 0.76 * width, 0.8)
        ax = maps.add_axes(position)
        draw_contour(landscape, ax, log=log, limits=limits, colourbar=False).set_title("")
        drawn.append(ax)
    filled = next((artist for ax in drawn for artist in ax.collections), None)
    if filled is not None:
        bar = maps.add_axes((1 - margin, 0.14, 0.16 * margin, 0.8))
        _colourbar(figure, filled, bar, landscapes[0], log)
    return figure


# Parts of a picture ------------------------------------------------------------------------------


def _draw_line(landscape: Landscape, ax: Any, log: bool) -> Any:
    if ax is None:
        _, ax = pyplot().subplots(figsize=(6.0, 3.8), layout="constrained")
    ax.plot(landscape.axes[0].numpy(), landscape.losses.numpy(), color="#0072b2")
    _finish_line([landscape], ax, log)
    ax.set_title(title_of(landscape), fontsize=10, parse_math=False)
    return ax


def _lines(landscapes: Sequence[Landscape], log: bool) -> Any:
    """Several lines in one picture."""
    figure, ax = pyplot().subplots(figsize=(6.4, 4.0), layout="constrained")
    series = (("#0072b2", "-"), ("#e69f00", "--"), ("#009e73", "-."), ("#cc79a7", ":"))
    for k, landscape in enumerate(landscapes):
        colour, style = series[k % len(series)]
        x, y = landscape.axes[0].numpy(), landscape.losses.numpy()
        ax.plot(x, y, color=colour, linestyle=style, label=landscape.name.replace("$", r"\$"))
    _finish_line(landscapes, ax, log)
    ax.legend(fontsize=9, frameon=False)
    return figure


def _finish_line(landscapes: Sequence[Landscape], ax: Any, log: bool) -> None:
    first = landscapes[0]
    height_limits(landscapes, log)  # refuses logarithms of what is not positive
    for landscape in landscapes:
        ax.plot([0], [landscape.center], "o", color=MODEL, markeredgecolor="white", zorder=3)
    for name, (place,) in first.marks.items():
        ax.axvline(place, color=INK, linewidth=0.8, linestyle=":")
        ax.annotate(
            name, (place, 1), xycoords=("data", "axes fraction"), xytext=(3, -4),
            textcoords="offset points", va="top", fontsize=8,
        )  # fmt: skip
    if log:
        ax.set_yscale("log")
    ax.set_xlabel(axis_labels(first)[0], fontsize=9)
    ax.set_ylabel(loss_label(first, False), fontsize=9)
    ax.tick_params(labelsize=8)
    ax.grid(alpha=0.3)
    ax.spines[["top", "right"]].set_visible(False)


def _colourbar(figure: Any, filled: Any, where: Any, landscape: Landscape, log: bool) -> None:
    place = {"ax": where} if isinstance(where, list) else {"cax": where}
    bar = figure.colorbar(filled, **place, format=lambda z, _: _number(z, log))
    label = loss_label(landscape, False)
    bar.set_label(f"{label}, logarithmic scale" if log else label, fontsize=9)
    bar.ax.tick_params(labelsize=8)


def _levels(low: float, high: float, log: bool) -> list[float]:
    """Where contours are drawn: round losses, or losses in one ratio."""
    if log:
        return [low + (high - low) * k / LEVELS for k in range(LEVELS + 1)]
    return [float(level) for level in _locator(LEVELS).tick_values(low, high)]


def _locator(count: int) -> Any:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(count)


def _number(height: float, log: bool) -> str:
    loss = 10**height if log else height
    return f"{loss:,.0f}" if abs(loss) >= 100 else f"{loss:.{2 if log else 3}g}"
