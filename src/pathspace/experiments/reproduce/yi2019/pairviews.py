"""Figures and tables of pairs of networks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pathspace.experiments.executors import Result
from pathspace.experiments.reproduce.figures import Figure
from pathspace.experiments.reproduce.yi2019.effort import KINDS, SPACES, Effort
from pathspace.experiments.reproduce.yi2019.pairs import (
    HEIGHT,
    MEASURES,
    Pair,
    both,
    log_ratio,
    mean_change,
    measure_name,
)
from pathspace.losslandscape import Landscape
from pathspace.page import DataTable
from pathspace.plot.backend import pyplot
from pathspace.plot.landscape import side_by_side
from pathspace.plot.measures import MARKERS, SERIES
from pathspace.tables import NOTHING, Column, Row, Table

MOVED = 1e-6  # relative change beyond which a number has moved


def landscapes_figure(pair: Pair) -> Figure:
    """Surfaces above contour maps of both networks, on one scale."""
    found = pair.landscapes()
    seed = pair.outcomes[0].trial.seed
    accuracies = " and ".join(
        f"{100 - 100 * float(one.final['test_error']):.1f} % ({landscape.name})"
        for one, landscape in zip(pair.outcomes, found, strict=True)
    )
    notes = "".join(f" {note}." for one in found for note in one.notes)
    return Figure(
        "landscapes",
        lambda: side_by_side(found, log=_spans(found)),
        "Figure 3: the training loss f(t₁, t₂) around both networks of seed "
        f"{seed} along the same two random directions of basis-path values of scale "
        f"{found[0].about['scale']:.2g}, on one scale of heights and colours. Above surfaces, "
        f"below contour maps; the dot is the network. Test accuracies are {accuracies}.{notes}",
        "; ".join(
            f"{one.name}: the loss is {one.center:.3g} in the middle, between {one.range[0]:.3g} "
            f"and {one.range[1]:.3g} on the grid, and {mean_change(one):.3g} away from that in the "
            "middle on average"
            for one in found
        ),
    )


def measures_figure(names: tuple[str, ...], pairs: Sequence[Pair]) -> Figure:
    """Every measure against the test error: a line joins the two networks of a seed."""

    def draw() -> Any:
        figure, axes = pyplot().subplots(
            2, 4, figsize=(11, 5.4), layout="constrained", sharey=True
        )  # fmt: skip
        for ax, measure in zip(axes.flat, MEASURES, strict=False):
            _scatter(ax, names, pairs, measure)
        for ax in axes[:, 0]:
            ax.set_ylabel("test error (%)")
        for ax in list(axes.flat)[len(MEASURES) :]:
            ax.set_axis_off()
        handles, labels = axes.flat[0].get_legend_handles_labels()
        axes.flat[-1].legend(handles, labels, loc="center", frameon=False)
        return figure

    return Figure(
        "measures",
        draw,
        "Flatness and test error of all networks; a line joins the two of a seed. If flatter "
        "networks generalized better, all lines would rise to the right. Bars, often smaller than "
        "the symbols, are standard errors of the estimates.",
        "; ".join(
            f"{measure}: {both(pairs, measure)[0]} with {names[0]}, {both(pairs, measure)[1]} with "
            f"{names[1]}"
            for measure in MEASURES
        ),
    )


def measures_table(names: tuple[str, ...], pairs: Sequence[Pair], effort: Effort) -> DataTable:
    """All measures over seeds, with the mean standard error of an estimate."""
    columns = (
        Column("measure"),
        *(Column(name, number=True) for name in names),
        Column("standard error of one", number=True),
        Column("log₁₀ large/small", number=True),
    )
    rows, records = [], []
    for measure in MEASURES:
        small, large = both(pairs, measure)
        errors = [_error(pair, k, measure) for pair in pairs for k in (0, 1)]
        known = [error for error in errors if error is not None]
        shown = f"{sum(known) / len(known):.2g}" if known else NOTHING
        gap = log_ratio(pairs, measure)
        rows.append(Row((measure, str(small), str(large), shown, str(gap))))
        for pair in pairs:
            for k, name in enumerate(names):
                records.append(
                    {"measure": measure, "network": name, "seed": pair.outcomes[k].trial.seed,
                     "value": pair.values(measure)[k], "standard error": _error(pair, k, measure),
                     "test error": 100 * float(pair.outcomes[k].final["test_error"])}
                )  # fmt: skip
    caption = (
        f"On {effort.images:,} training images: ball, the largest rise of the loss found within "
        f"ε = {effort.epsilon:.2g} (of weights {effort.weight_epsilon:g}), over 1 + loss; trace of "
        "the Hessian; expected, the mean rise for perturbations of standard deviation "
        f"{effort.sigma:.2g} (of weights {effort.weight_sigma:g}); the height is the mean absolute "
        "change over the grid of the landscape. Over seeds: mean ± standard deviation. Standard "
        "errors are those of the estimates by random draws; a search and a grid have none."
    )
    table = Table("Flatness of both networks", columns, tuple(rows))
    return DataTable(table, caption, tuple(records), "flatness")


def moved_table(names: tuple[str, ...], moved: Sequence[Result]) -> DataTable:
    """Both networks of one seed before and after a random rescaling."""
    columns = (
        Column("measure"),
        Column("trained", number=True),
        Column("rescaled", number=True),
        Column("factor", number=True),
        Column("moved?"),
    )
    rows, records = [], []
    for name, result in zip(names, moved, strict=False):
        for space in SPACES:
            for kind in KINDS:
                before, after = (result[when][space][kind] for when in ("before", "after"))
                ratio = after["value"] / before["value"] if before["value"] else math.nan
                change = abs(ratio - 1)
                verdict = "yes" if change > MOVED else "no"
                cells = (
                    measure_name(space, kind),
                    _with_error(before),
                    _with_error(after),
                    f"{ratio:.4g}",
                    verdict,
                )
                rows.append(Row(cells, name, mark="invariant" if verdict == "no" else ""))
                records.append(
                    {"network": name, "measure": measure_name(space, kind),
                     "trained": before["value"], "rescaled": after["value"], "factor": ratio}
                )  # fmt: skip
    caption = (
        "The weights into every hidden unit are multiplied by a factor and those out of it divided "
        "by it, with logarithms of factors drawn from N(0, 1): the function is the same. Computed "
        "in float64, on few images, with the same random draws before and after; ± standard errors."
    )
    table = Table("Which numbers a random rescaling moves", columns, tuple(rows))
    return DataTable(table, caption, tuple(records), "rescaled")


# Helpers -----------------------------------------------------------------------------------------


def _spans(landscapes: Sequence[Landscape]) -> bool:
    """Whether heights are so different that only logarithms show them."""
    low, high = (choose(one.range[k] for one in landscapes) for k, choose in ((0, min), (1, max)))
    return bool(low > 0 and high > 100 * low)


def _scatter(ax: Any, names: tuple[str, ...], pairs: Sequence[Pair], measure: str) -> None:
    points: tuple[list[tuple[float, float]], list[tuple[float, float]]] = ([], [])
    for pair in pairs:
        for k, value in enumerate(pair.values(measure)):
            points[k].append((value, 100 * float(pair.outcomes[k].final["test_error"])))
        ax.plot(*zip(points[0][-1], points[1][-1], strict=True), color="#bbbbbb", zorder=1)
    for k, name in enumerate(names):
        x, y = zip(*points[k], strict=True)
        errors = [_error(pair, k, measure) or 0.0 for pair in pairs]
        ax.errorbar(
            x, y, xerr=errors, fmt=MARKERS[k], color=SERIES[k], label=name, markersize=5, zorder=2,
        )  # fmt: skip
    numbers = [x for side in points for x, _ in side if math.isfinite(x)]
    if numbers and min(numbers) > 0 and max(numbers) > 3 * min(numbers):
        ax.set_xscale("log")
    ax.set_xlabel(measure, fontsize=9)
    ax.tick_params(labelsize=8)
    ax.grid(alpha=0.3)
    ax.spines[["top", "right"]].set_visible(False)


def _error(pair: Pair, k: int, measure: str) -> float | None:
    """Standard error of an estimate; None where it is none."""
    if measure == HEIGHT:
        return None
    for space in SPACES:
        for kind in KINDS:
            if measure_name(space, kind) == measure:
                found = pair.measured[k][space][kind]["error"]
                return None if found is None else float(found)
    return None


def _with_error(found: Any) -> str:
    error = found["error"]
    return f"{found['value']:.6g}" + (f" ± {error:.2g}" if error else "")
