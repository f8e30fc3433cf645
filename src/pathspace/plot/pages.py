"""Landscapes as parts of a web page: surfaces to turn, contour maps, lines, and their numbers."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pathspace.page import (
    Block,
    Bullets,
    Code,
    Curve,
    Curves,
    Details,
    Image,
    Page,
    Surface,
    write,
)
from pathspace.page.downloads import json_text
from pathspace.plot.heights import SPACES, loss_label
from pathspace.plot.surfaces import surface

if TYPE_CHECKING:
    from pathspace.losslandscape import Landscape

ABREAST = 2  # surfaces side by side; each holds a drawing context, of which browsers have few


def landscape_blocks(landscapes: Sequence[Landscape], *, log: bool = False) -> list[Block]:
    """Planes as surfaces and contour maps, lines as curves, and what is to be known about them."""
    planes = [one for one in landscapes if one.dims == 2]
    lines = [one for one in landscapes if one.dims == 1]
    found: list[Block] = []
    for k in range(0, len(planes), ABREAST):
        found.append(_surface(planes[k : k + ABREAST], log))
    found += [_contour(one, log) for one in planes]
    for label in dict.fromkeys(one.labels for one in lines):
        found.append(_curves([one for one in lines if one.labels == label], log))
    notes = [f"{one.name}: {note}" for one in landscapes for note in one.notes]
    return [*found, *([Bullets(tuple(notes))] if notes else [])]


def write_html(landscapes: Sequence[Landscape], path: str | Path, *, log: bool = False) -> Path:
    """Write landscapes as a page of their own, which needs no network (about 5 MB)."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    about: list[Block] = [
        Details(f"How the landscape of {one.name} was made", [Code(json_text(dict(one.about), 2))])
        for one in landscapes
    ]
    title = f"Loss around {' and '.join(one.name for one in landscapes)}"
    data = [landscape_data(one) for one in landscapes]
    write(Page(title, [*landscape_blocks(landscapes, log=log), *about], data=data), path)
    return path


def landscape_records(landscape: Landscape) -> tuple[dict[str, Any], ...]:
    """A row per point: where it is, its loss, and whether the chart had ended there."""
    places = [
        [a, *rest]
        for a in landscape.axes[0].tolist()
        for rest in ([[b] for b in landscape.axes[1].tolist()] if landscape.dims == 2 else [[]])
    ]
    names = [f"t{k + 1}" for k in range(landscape.dims)]
    values = zip(
        places, landscape.losses.flatten().tolist(), landscape.outside.flatten().tolist(),
        strict=True,
    )  # fmt: skip
    return tuple(
        {
            "model": landscape.name,
            **dict(zip(names, place, strict=True)),
            "loss": loss,
            "outside": bool(outside),
        }
        for place, loss, outside in values
    )


def landscape_data(landscape: Landscape) -> dict[str, Any]:
    """Everything as data for JSON; a loss that is not finite is a text."""
    return {
        "name": landscape.name,
        "space": landscape.space,
        "loss": landscape.loss,
        "labels": landscape.labels,
        "center": landscape.center,
        "axes": [axis.tolist() for axis in landscape.axes],
        "losses": landscape.losses.tolist(),
        "outside": landscape.outside.tolist(),
        "marks": dict(landscape.marks),
        "trail": landscape.trail,
        "notes": landscape.notes,
        "about": dict(landscape.about),
    }


# Helpers -----------------------------------------------------------------------------------------


def _surface(landscapes: Sequence[Landscape], log: bool) -> Surface:
    names = " and ".join(one.name for one in landscapes)
    scale = ", on one scale of heights and colours" if len(landscapes) > 1 else ""
    caption = (
        f"{_loss(landscapes[0], log)} on a plane through {names}{scale}. {_each_how(landscapes)} "
        "The dot is the model. Drag to turn, scroll to zoom, point to read off."
    )
    alt = " ".join(f"Surface of {_seen(one)}" for one in landscapes)
    records = tuple(record for one in landscapes for record in landscape_records(one))
    figure = surface(landscapes, log=log).to_plotly_json()
    return Surface(figure, caption, alt, records, f"landscape {names}")


def _contour(landscape: Landscape, log: bool) -> Image:
    from matplotlib.figure import Figure

    # Not from pyplot, which would keep the figure and might open a window.
    figure = Figure(figsize=(6.4, 5.0), layout="constrained")
    landscape.contour(figure.subplots(), log=log)
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=130)
    caption = f"The same plane through {landscape.name} as a contour map. {_how(landscape)}"
    return Image(content.getvalue(), caption, f"Contour map of {_seen(landscape)}")


def _curves(landscapes: Sequence[Landscape], log: bool) -> Curves:
    first = landscapes[0]
    curves = tuple(
        Curve(one.name, tuple(one.axes[0].tolist()), tuple(one.losses.tolist()))
        for one in landscapes
    )
    names = " and ".join(one.name for one in landscapes)
    caption = (
        f"{_loss(first, False)} on a line through {names}, which is at 0. {_each_how(landscapes)}"
    )
    alt = " ".join(f"Curve of {_seen(one)}" for one in landscapes)
    records = tuple(record for one in landscapes for record in landscape_records(one))
    x, y = f"t ({first.labels[0]})", loss_label(first, False)
    return Curves(curves, x, y, caption, alt, log_y=log, records=records, file=f"line {names}")


def _loss(landscape: Landscape, log: bool) -> str:
    label = loss_label(landscape, log).replace("$_{10}$", "10")
    return label[:1].upper() + label[1:]


def _each_how(landscapes: Sequence[Landscape]) -> str:
    """How all of them were obtained, or each by its name where they differ."""
    said = {one.name: _how(one) for one in landscapes}
    if len(set(said.values())) == 1:
        return _how(landscapes[0])
    return " ".join(f"{name}: {how}" for name, how in said.items())


def _how(landscape: Landscape) -> str:
    """How it was obtained, as far as the landscape says."""
    about = landscape.about
    size = "×".join(str(len(axis)) for axis in landscape.axes)
    parts = [f"{size} points in {SPACES[landscape.space]}"]
    if about.get("scale"):
        parts.append(f"directions of scale {about['scale']:.3g}")
    if about.get("seed") is not None:
        parts.append(f"seed {about['seed']}")
    if about.get("samples"):
        parts.append(f"{about['samples']:,} samples")
    return f"Computed on {', '.join(parts)}."


def _seen(landscape: Landscape) -> str:
    """The shape in words."""
    low, high = landscape.range
    if not math.isfinite(low):
        return f"the loss around {landscape.name}: no finite value."
    best = landscape.losses.masked_fill(~landscape.losses.isfinite(), math.inf).flatten().argmin()
    place: list[str] = []
    steps = int(best)
    for axis in reversed(landscape.axes):
        place.insert(0, f"{axis[steps % len(axis)]:.3g}")
        steps //= len(axis)
    return (
        f"the loss around {landscape.name} in {SPACES[landscape.space]}: {landscape.center:.4g} at "
        f"the model, from {low:.4g} (near t = {', '.join(place)}) to {high:.4g}."
    )
