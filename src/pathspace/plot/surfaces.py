"""Landscapes as surfaces to turn in a browser. Needs plotly, of the ``plot`` extra."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
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
    from pathspace.losslandscape import Landscape


def surface(landscapes: Sequence[Landscape], *, log: bool = False) -> Any:
    """Surfaces to turn, side by side on one scale of heights and colours, as a plotly figure."""
    objects, subplots = _plotly()
    if any(landscape.dims == 1 for landscape in landscapes):
        raise PathspaceError("a line has no surface; use plot()")
    low, high = height_limits(landscapes, log)
    figure = subplots.make_subplots(
        cols=len(landscapes),
        specs=[[{"type": "scene"}] * len(landscapes)],
        subplot_titles=[_plain(title_of(landscape)) for landscape in landscapes],
        horizontal_spacing=0.02,
    )
    far = 1.0 if len(landscapes) == 1 else 1.15  # the labels need room
    eye = {"x": 1.3 * far, "y": -1.6 * far, "z": far}
    for k, landscape in enumerate(landscapes):
        t1, t2 = (axis.tolist() for axis in landscape.axes)
        heights = heights_of(landscape, log).T
        label = _plain(loss_label(landscape, log)).replace("$_{10}$", "<sub>10</sub>")
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
                name=_plain(landscape.name),
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
                hovertemplate=f"{_plain(landscape.name)}<br>%{{z:.4g}}<extra></extra>",
                showlegend=False,
            ),
            row=1,
            col=k + 1,
        )
        x, y = (
            _plain(text.replace("$t_1$", "t₁").replace("$t_2$", "t₂"))
            for text in axis_labels(landscape)
        )
        figure.update_scenes(
            xaxis_title=x,
            yaxis_title=y,
            zaxis={"title": label, "range": [low, high], "nticks": 6},
            camera={"eye": eye, "center": {"x": 0, "y": 0, "z": -0.12}},
            aspectratio={"x": 1, "y": 1, "z": 0.75},
            row=1,
            col=k + 1,
        )
    figure.update_layout(margin={"l": 10, "r": 10, "t": 60, "b": 10}, height=640)
    return figure


def _plain(text: str) -> str:
    """A text that plotly shows as it is: no tags, no templates."""
    return html.escape(text).replace("%{", "%&#123;").replace("\n", "<br>")


def _plotly() -> tuple[Any, Any]:
    try:
        from plotly import graph_objects, subplots
    except ImportError as error:
        raise ImportError(
            "a surface to turn needs plotly: pip install 'pathspace[plot]'"
        ) from error
    return graph_objects, subplots
