"""A small network with its skeleton, as the papers draw it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from pathspace.errors import PathspaceError
from pathspace.plot.backend import pyplot

if TYPE_CHECKING:
    from pathspace.skeleton import Skeleton

SKELETON = "#c0392b"
FREE = "#7b241c"
WEIGHT = "#b8bcc2"
UNIT = "#2c3e50"
PATH = "#56b4e9"


def draw_skeleton(
    skeleton: Skeleton, ax: Any = None, *, path: Sequence[str] = (), limit: int = 2_000
) -> Any:
    """Draw a small network with its skeleton weights in red, as Figure 2 of Meng et al. (2019).

    Units are drawn in columns, by the longest way from an input; squares are pinned units. Free
    skeleton weights are solid, the other skeleton weights dashed. Hover is not needed: names of
    layers stand above the columns.

    Args:
        skeleton: see :func:`pathspace.choose_skeleton`.
        ax: matplotlib axes to draw on; new ones otherwise.
        path: names of weights to underlay in blue, as :meth:`pathspace.BasisPaths.path` gives them.
        limit: refuse to draw more weights than this.

    Returns:
        the axes.
    """
    plt = pyplot()
    graph, network = skeleton.graph, skeleton.graph.network
    if graph.m > limit:
        raise PathspaceError(f"a drawing of {graph.m:,} weights is not readable (limit={limit:,})")
    lines = []
    chosen = {int(n) for n in skeleton.incoming[1:]} | {int(n) for n in skeleton.outgoing[1:]}
    free = {int(n) for n in skeleton.outgoing[1:]}
    for k, edge in enumerate(graph.edges):
        source = edge.source.expand(edge.shape).reshape(-1).tolist()
        target = edge.target.expand(edge.shape).reshape(-1).tolist()
        start = int(graph.start[k])
        lines += [(u, v, start + i) for i, (u, v) in enumerate(zip(source, target, strict=True))]
    names = {graph.name(number): number for _, _, number in lines} if path else {}
    for name in path:
        if name not in names:
            raise PathspaceError(f"there is no weight {name!r} to mark; one is {min(names)!r}")
    marked = {names[name] for name in path}
    joins = [
        (part, total)
        for totals, parts in network.joins
        for part, total in zip(parts.tolist(), totals.tolist(), strict=True)
    ]
    column = _columns([(u, v) for u, v, _ in lines] + joins)
    place = _places(column)
    if ax is None:
        width = 2.2 * (1 + max(column.values()))
        tallest = max(-y for _, y in place.values()) * 2 + 1
        _, ax = plt.subplots(figsize=(width, max(2.6, 0.55 * tallest + 1.2)))
    for u, v, number in sorted(lines, key=lambda line: line[2] in chosen):
        style = {"color": WEIGHT, "lw": 0.8, "zorder": 1}
        if number in chosen:
            solid = number in free
            style = {
                "color": FREE if solid else SKELETON,
                "lw": 2.2 if solid else 1.8,
                "ls": "-" if solid else (0, (4, 2)),
                "zorder": 2,
            }
        ax.plot(*zip(place[u], place[v], strict=True), **style)
        if number in marked:
            ax.plot(*zip(place[u], place[v], strict=True), color=PATH, lw=7, alpha=0.8, zorder=1)
    for u, v in joins:
        ax.plot(*zip(place[u], place[v], strict=True), color=UNIT, lw=1.0, ls=":", zorder=1)
    for unit, (x, y) in place.items():
        pinned = int(network.scale[unit]) == 0
        ax.plot(x, y, "s" if pinned else "o", ms=9, mfc="white", mec=UNIT, mew=1.4, zorder=3)
    _label_columns(ax, network, column, place)
    proxies = [
        ("free skeleton weight", {"color": FREE, "lw": 2.2}),
        ("other skeleton weight", {"color": SKELETON, "lw": 1.8, "ls": (0, (4, 2))}),
        ("weight", {"color": WEIGHT, "lw": 0.8}),
    ]
    handles = [plt.Line2D([], [], label=label, **style) for label, style in proxies]
    ax.legend(
        handles=handles,
        loc="upper center",
        bbox_to_anchor=(0.5, 0.0),
        ncols=3,
        frameon=False,
        fontsize=9,
    )
    ax.margins(0.08, 0.14)
    ax.axis("off")
    return ax


def _columns(arrows: list[tuple[int, int]]) -> dict[int, int]:
    """The longest way from a start to every unit; the constant stands before its first target."""
    column: dict[int, int] = {}
    for u, v in sorted(arrows, key=lambda arrow: arrow[1]):  # units are numbered in order
        column[v] = max(column.get(v, 0), column.setdefault(u, 0) + 1)
    return column


def _places(column: dict[int, int]) -> dict[int, tuple[float, float]]:
    by_column: dict[int, list[int]] = {}
    for unit in sorted(column):
        by_column.setdefault(column[unit], []).append(unit)
    return {
        unit: (float(c), (len(units) - 1) / 2 - row)
        for c, units in by_column.items()
        for row, unit in enumerate(units)
    }


def _label_columns(ax: Any, network: Any, column: dict[int, int], place: Any) -> None:
    top = max(y for _, y in place.values()) + 0.75
    starts = torch.tensor([space.start for space in network.spaces])
    names: dict[int, dict[str, None]] = {}
    for unit, c in column.items():
        if unit >= int(starts[0]):
            index = int(torch.searchsorted(starts, unit, right=True)) - 1
            names.setdefault(c, {})[network.spaces[index].name] = None
        else:
            names.setdefault(c, {})["1"] = None
    for c, found in names.items():
        text = "\n".join("constant 1" if name == "1" else name for name in found)
        ax.text(c, top, text, ha="center", va="bottom", fontsize=9, color=UNIT)
