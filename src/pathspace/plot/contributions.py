"""Bars of the units that carry the path norm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pathspace.plot.backend import pyplot

if TYPE_CHECKING:
    from pathspace.contributions import PathContributions

LEGEND = 8  # layers up to which a legend is read; the bars have their names in any case


def draw_contributions(contributions: PathContributions, top: int = 20, ax: Any = None) -> Any:
    """Draw the units with the largest shares of the path norm as bars, one colour per layer.

    Args:
        contributions: see :func:`pathspace.path_contributions`.
        top: how many units to draw.
        ax: matplotlib axes to draw on; new ones otherwise.

    Returns:
        the axes.
    """
    if top < 1:
        raise ValueError(f"top must be at least 1, not {top}")
    plt = pyplot()
    rows = contributions.top(top)
    if ax is None:
        _, ax = plt.subplots(figsize=(7, 1.2 + 0.28 * max(len(rows), 3)), layout="constrained")
    names = [name for name in contributions.units if name in contributions.ranked]
    colours = plt.get_cmap("cividis")
    colour = {
        name: colours(0.15 + 0.7 * k / max(1, len(names) - 1)) for k, name in enumerate(names)
    }
    labels = [f"{name}[{unit}]" for name, unit, _ in rows]
    shares = [100 * share for _, _, share in rows]
    ax.barh(range(len(rows)), shares, color=[colour[name] for name, _, _ in rows], height=0.7)
    drawn = [name for name in names if any(name == row[0] for row in rows)]
    if 1 < len(drawn) <= LEGEND:
        handles = [plt.Rectangle((0, 0), 1, 1, color=colour[name], label=name) for name in drawn]
        ax.legend(handles=handles, title="layer", loc="lower right", frameon=False, fontsize=9)
    ax.set_yticks(range(len(rows)), labels)
    ax.invert_yaxis()
    ax.set_xlim(0, None)
    ax.set_xlabel("share of the paths through the unit, %")
    ax.set_title(f"Units that carry the {contributions.p:g}-path norm")
    ax.grid(axis="x", alpha=0.3)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    return ax
