"""Figures of trainings on images: curves in the papers' arrangement, and differences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pathspace.experiments.reproduce.cifar.images import Case
from pathspace.experiments.reproduce.cifar.tables import Gaps, words_of
from pathspace.experiments.reproduce.controls import Comparison, Rate
from pathspace.experiments.reproduce.figures import Figure, draw_curves, learning_curve
from pathspace.experiments.training import Outcome
from pathspace.page import Curve, Curves
from pathspace.plot.backend import pyplot
from pathspace.plot.measures import INK, MARKERS, SERIES

Lines = Mapping[str, Sequence[Outcome]]  # outcomes by the name in the legend


def accuracy_curve(name: str, outcomes: Sequence[Outcome]) -> Curve:
    """Test accuracy in percent over epochs."""
    error = learning_curve(name, outcomes, "test_error")
    y, low, high = (tuple(100 - v for v in values) for values in (error.y, error.high, error.low))
    return replace(error, y=y, low=low, high=high)


def lines_of(comparison: Comparison, arms: Sequence[str], rate: Rate) -> dict[str, list[Outcome]]:
    """The outcomes of some arms."""
    return {arm: comparison.outcomes(arm, rate) for arm in arms}


def curves_figure(name: str, panels: Mapping[str, Lines], caption: str) -> Figure:
    """Training loss and test accuracy over epochs, a row of two panels for each title."""

    def draw() -> Any:
        count = len(panels)
        figure, axes = pyplot().subplots(
            count, 2, figsize=(9, 0.5 + 2.6 * count), layout="constrained", squeeze=False
        )
        for number, (row, (title, lines)) in enumerate(zip(axes, panels.items(), strict=True)):
            epoch = "epoch" if number + 1 == count else ""
            losses = [learning_curve(arm, found, "train_loss") for arm, found in lines.items()]
            draw_curves(row[0], losses, epoch, "training loss", log_y=True)
            _plain_ticks(row[0])
            accuracies = [accuracy_curve(arm, found) for arm, found in lines.items()]
            draw_curves(row[1], accuracies, epoch, "test accuracy (%)")
            for ax in row:
                ax.set_title(title, fontsize=10)
                ax.xaxis.get_major_locator().set_params(integer=True)
        handles = axes[0][0].get_legend_handles_labels()
        columns = len(handles[0]) if len(handles[0]) < 5 else 3
        figure.legend(
            *handles, loc="outside lower center", ncols=columns, frameon=False, fontsize=8
        )
        return figure

    ends = "; ".join(f"{title}: {_ends(lines)}" for title, lines in panels.items())
    return Figure(name, draw, caption, f"Curves over epochs. Test accuracy at the end: {ends}.")


def gaps_figure(comparisons: Mapping[Case, Comparison], gaps: Gaps, caption: str) -> Figure:
    """Paired differences of test errors, a row for each case, a panel for each kind of rate."""

    def draw() -> Any:
        said = words_of(next(iter(comparisons.values())).common_rate)
        size = (9, 1.6 + 0.22 * len(gaps) * len(comparisons) + 0.17 * len(gaps))
        figure, axes = pyplot().subplots(
            1, 2, figsize=size, layout="constrained", sharex=True, sharey=True
        )
        for ax, (rate, words) in zip(axes, said.items(), strict=True):
            for number, (gap, pair) in enumerate(gaps.items()):
                found = [one.difference(*pair, "test_error", rate) for one in comparisons.values()]
                shift = 0.7 * ((number + 0.5) / len(gaps) - 0.5)
                half = [0.0 if math.isnan(one.high) else one.high - one.mean for one in found]
                ax.errorbar(
                    [one.mean for one in found], [k + shift for k in range(len(found))],
                    xerr=[half, half], color=SERIES[number % len(SERIES)], linestyle="none",
                    marker=MARKERS[number % len(MARKERS)], markersize=4, capsize=2,
                    linewidth=1.2, label=gap,
                )  # fmt: skip
            for k in range(1, len(comparisons)):
                ax.axhline(k - 0.5, color="#dddddd", linewidth=0.8)
            ax.axvline(0, color=INK, linewidth=0.8)
            ax.set_yticks(range(len(comparisons)), [case.title for case in comparisons])
            ax.set_title(words, fontsize=10)
            ax.set_xlabel("difference of test errors (% points)")
            ax.grid(alpha=0.3, axis="x")
            ax.spines[["top", "right"]].set_visible(False)
        axes[0].invert_yaxis()
        figure.legend(
            *axes[0].get_legend_handles_labels(),
            loc="outside lower center", ncols=1 if len(gaps) > 4 else 2, frameon=False, fontsize=8,
        )  # fmt: skip
        return figure

    alt = "Two panels with an interval per difference and network; the numbers are in the tables."
    return Figure("differences", draw, caption, alt)


def loss_curves(case: Case, lines: Lines, words: str) -> Curves:
    """Training losses of a case over epochs, for the web page."""
    curves = tuple(learning_curve(arm, found, "train_loss") for arm, found in lines.items())
    return Curves(
        curves,
        "epoch",
        "training loss",
        f"Cross-entropy of {case.title}, {words}; mean over seeds, in a band of one standard "
        "deviation.",
        "; ".join(f"{c.name} ends at {c.y[-1]:.3g}" for c in curves if c.y),
        log_y=True,
        file=f"loss {case.data} {case.network}",
    )


def _ends(lines: Lines) -> str:
    curves = [accuracy_curve(arm, found) for arm, found in lines.items()]
    return ", ".join(f"{curve.name} {curve.y[-1]:.3g} %" for curve in curves if curve.y)


def _plain_ticks(ax: Any) -> None:
    """Numbers instead of powers of ten where the axis spans less than one."""
    low, high = ax.get_ylim()
    if ax.get_yscale() == "log" and low > 0 and high / low < 30:
        from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

        ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 1.5, 2.0, 3.0, 5.0)))
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        ax.yaxis.set_minor_formatter(NullFormatter())
