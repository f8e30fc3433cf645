"""Landscapes as surfaces to turn in a browser. Needs plotly, of the ``plot`` extra."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pathspace.errors import PathspaceError
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
    from pathspace.landscape import Landscape


def surface(landscapes: Sequence[Landscape], *, log: bool = False) -> Any:
    """Surfaces to turn, side by side on one scale of heights and colours, as a plotly figure."""
    objects, subplots = _plotly()
    if any(landscape.dims == 1 for landscape in landscapes):
        raise PathspaceError("a line has no surface; use plot()")
    low, high = height_limits(landscapes, log)
    figure = subplots.make_subplots(
        cols=len(landscapes),
        specs=[[{"type": "scene"}] * len(landscapes)],
        subplot_titles=[title_of(landscape).replace("\n", "<br>") for landscape in landscapes],
        horizontal_spacing=0.02,
    )
    for k, landscape in enumerate(landscapes):
        t1, t2 = (axis.tolist() for axis in landscape.axes)
        heights = heights_of(landscape, log).T
        label = loss_label(landscape, log).replace("$_{10}$", "<sub>10</sub>")
        figure.add_trace(
            objects.Surface(
                x=t1,
                y=t2,
                z=[[None if math.isnan(z) else z for z in row] for row in heights.tolist()],
                colorscale="Cividis",
                cmin=low,
                cmax=high,
                showscale=k == len(landscapes) - 1,
                colorbar={"title": {"text": label, "side": "right"}, "thickness": 16, "len": 0.7},
                contours={"z": {"show": True, "usecolormap": True, "project": {"z": True}}},
                hovertemplate="t₁ = %{x:.3g}<br>t₂ = %{y:.3g}<br>%{z:.4g}<extra></extra>",
                name=landscape.name,
            ),
            row=1,
            col=k + 1,
        )
        figure.add_trace(
            objects.Scatter3d(
                x=[0.0],
                y=[0.0],
                z=[height_of(landscape.center, log)],
                mode="markers",
                marker={"size": 5, "color": MODEL, "line": {"color": "white", "width": 1}},
                hovertemplate=f"{landscape.name}<br>%{{z:.4g}}<extra></extra>",
                showlegend=False,
            ),
            row=1,
            col=k + 1,
        )
        x, y = (
            text.replace("$t_1$", "t₁").replace("$t_2$", "t₂") for text in axis_labels(landscape)
        )
        figure.update_scenes(
            xaxis_title=x,
            yaxis_title=y,
            zaxis={"title": label, "range": [low, high]},
            camera={"eye": {"x": 1.3, "y": -1.6, "z": 1.0}},
            aspectratio={"x": 1, "y": 1, "z": 0.75},
            row=1,
            col=k + 1,
        )
    figure.update_layout(margin={"l": 10, "r": 10, "t": 60, "b": 10}, height=640)
    return figure


def write_html(landscapes: Sequence[Landscape], path: str | Path, *, log: bool = False) -> Path:
    """Write :func:`surface` into one HTML file that holds all it needs (about 5 MB)."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    surface(landscapes, log=log).write_html(path, include_plotlyjs=True, full_html=True)
    return path


def _plotly() -> tuple[Any, Any]:
    try:
        from plotly import graph_objects, subplots
    except ImportError as error:
        raise ImportError(
            "a surface to turn needs plotly: pip install 'pathspace[plot]'"
        ) from error
    return graph_objects, subplots
